"""Tests, with one BLAS thread as the services have it: set here, since this is imported before anything loads numpy."""

import os

from tsunagi.runtime.threads import one_thread

one_thread(os.environ)
