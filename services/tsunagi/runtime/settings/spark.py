"""[spark] of the configuration: the Spark job, the order of its results, and its limits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from tsunagi.runtime.settings.section import Bytes, Count, Directory, Few, Seconds, SecondsOrNone, Section

JavaBytes = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,9}[kmgKMG]$")]


class SparkSettings(Section):
    """The aggregation job."""

    master: str = Field("local[*]", description="Spark master URL")
    cores: Few = Field(2, description="P-SORT cores; partitions of results")
    order: Literal["auto", "basic", "optimised"] = Field(
        "auto",
        description="auto | basic | optimised: P-SORT (docs/explanation/psort.md); auto takes the one that pays",
    )
    rebalance_s: SecondsOrNone = Field(
        60.0, description="least time between two changes of which core works on what, by measured rates; 0 = never"
    )
    checkpoint: Directory = Field(
        Path("out/checkpoint"), description="directory for checkpoint and state, seen by all Spark workers"
    )
    max_offsets: Count = Field(20_000, description="records of `recovered` in one batch at most")
    max_bytes: Bytes = Field(268_435_456, description="bytes of these records in one batch at most")
    wait_s: Seconds = Field(30.0, description="how long the frontier waits for a slot that gives nothing")
    max_carried: Count = Field(
        10_000_000, description="rows that may wait for a lagging slot; beyond it the slot is left behind at once"
    )
    unknown_group: str = Field("ungrouped", description="group of sensors without one in the sensors table")
    ungrouped: Literal["group", "refuse"] = Field(
        "group",
        description="sensors without a group: group (they make up unknown_group), refuse (the job does not run)",
    )
    memory: JavaBytes = Field("512m", description="heap of the driver")
    executor_memory: JavaBytes = Field(
        "512m", description="heap of an executor, on a cluster; less than its worker has"
    )
    options: dict[str, str | int | float | bool] = Field(default_factory=dict, description="any Spark option")
