"""Makes the policy that `[scaler] policy` names."""

from __future__ import annotations

import math
from collections.abc import Callable

from tsunagi.scaler.elasticstream_policy import ElasticStream
from tsunagi.scaler.lookahead_policy import LookaheadPolicy
from tsunagi.scaler.policy import Policy, PolicySettings
from tsunagi.scaler.threshold_policy import Threshold

_MAKERS: dict[str, Callable[[PolicySettings], Policy]] = {
    "lookahead": LookaheadPolicy,
    "elasticstream": ElasticStream,
    "threshold": Threshold,
}
"""Makes each policy, by name."""
POLICIES = tuple(_MAKERS)
"""The names of the policies, as `[scaler] policy` may have them."""


class PolicyError(ValueError):
    """The policy cannot be made. The message names the setting, what was found and what was expected."""


def make_policy(settings: PolicySettings) -> Policy:
    """Return the policy that the settings name.

    Raises:
        PolicyError: there is no such policy, or it cannot work with these settings.
        ForecasterError: there is no such forecaster.
    """
    if settings.policy not in _MAKERS:
        raise PolicyError(f"policy: found {settings.policy!r}, expected one of {', '.join(POLICIES)}")
    if not settings.types:
        raise PolicyError("types: found none, expected at least one worker type")
    names = [kind.name for kind in settings.types]
    if len(set(names)) < len(names):
        raise PolicyError(f"types: found a name twice among {', '.join(names)}, expected each once")
    for kind in settings.types:
        for field in ("rate", "price_h"):
            value = getattr(kind, field)
            if not (math.isfinite(value) and value > 0):
                raise PolicyError(f"type {kind.name}: found {field} = {value!r}, expected a number above 0")
        for field in ("boot_s", "price_gb"):
            value = getattr(kind, field)
            if not (math.isfinite(value) and value >= 0):
                raise PolicyError(f"type {kind.name}: found {field} = {value!r}, expected 0 or more")
    if settings.application == "tasks" and (settings.tasks < 1 or settings.policy != "elasticstream"):
        raise PolicyError('application = "tasks" needs policy = "elasticstream" and tasks of 1 or more')
    return _MAKERS[settings.policy](settings)
