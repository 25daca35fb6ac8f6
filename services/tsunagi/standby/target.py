"""What a slot's secondary aims at, as somebody asks for it while it runs (`StandbyTarget` in `plan`)."""

from __future__ import annotations

from pydantic import ValidationError
from structlog.stdlib import BoundLogger

from tsunagi.runtime.messages import StandbyTarget
from tsunagi.runtime.settings import StandbySettings, Target


def read_target(asked: StandbyTarget, settings: StandbySettings, logger: BoundLogger) -> Target | None:
    """Return what is aimed at, the settings' where nothing is asked; None = as the settings say in all.

    One that cannot be is refused in the log of the process, and counts as none: a worker must not end by a wish.
    """
    if asked.as_configured:
        return None
    fields = settings.target(asked.slot).model_dump()
    for name in fields:
        if asked.HasField(name):
            fields[name] = getattr(asked, name)
    if asked.HasField("batch_size"):
        fields["batch_size"] = asked.batch_size or "inf"
    try:
        return Target(**fields)
    except ValidationError as error:
        logger.warning("a target that cannot be", slot=asked.slot, detail=str(error))
        return None
