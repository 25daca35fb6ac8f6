"""[results] of the configuration: the form of the results, and the Parquet files."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tsunagi.runtime.settings.section import Seconds, Section


class ResultsSettings(Section):
    """The form of the results, and whether they are also written as Parquet files."""

    format: Literal["blocks", "json"] = Field(
        "blocks", description="blocks: protobuf ResultBlock; json: a row a message"
    )
    readings: bool = Field(
        default=True, description="each reading is a row with q1 to q3; false: only rows of queries are written"
    )
    files: str = Field("", description="directory that the job also writes results to, as Parquet files; empty = none")
    files_s: Seconds = Field(60.0, description="event time in one file of a partition")
