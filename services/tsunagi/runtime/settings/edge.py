"""[edge] of the configuration: the spool of an edge."""

from __future__ import annotations

from pydantic import Field

from tsunagi.runtime.settings.section import Bytes, Section


class EdgeSettings(Section):
    """What an edge does while the broker is away."""

    spool_bytes: Bytes = Field(
        33_554_432, description="of batches that may wait to be sent, in memory and on disk; the oldest go first"
    )
