"""[paper] of the configuration: what the figures of the papers are measured with (`tests/bench`)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tsunagi.runtime.settings.section import Seconds, Section


class PaperSettings(Section):
    """Settings with which the figures of the papers are measured; users need none of them."""

    order: Literal["", "none", "full"] = Field(
        "", description="results without order (none) or in one order (full), instead of [spark] order; empty = as that"
    )
    batch_steps: bool = Field(
        default=False, description="policy model of [standby] moves B in steps, as algorithm 3 of A-SAS was published"
    )
    hour_s: Seconds = Field(3600.0, description="what a paid hour lasts; less for trials on a compressed clock")
