"""Tests, with one BLAS thread as the services have it: set here, since this is imported before anything loads numpy."""

import os

from tsunagi.runtime.threads import fix_arithmetic

fix_arithmetic(os.environ)
