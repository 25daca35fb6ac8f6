"""[console] of the configuration: where the console listens, and who may see it."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from tsunagi.runtime.settings.metrics import EVERY_ADDRESS
from tsunagi.runtime.settings.section import Port, Section

_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
"""Hosts that only this machine reaches."""


class ConsoleSettings(Section):
    """The console: pages that show the running system in a browser."""

    host: str = Field("127.0.0.1", description="address on which the console listens")
    port: Port = Field(8470, description="its port; 0 = any free one")
    names: list[str] = Field(
        default_factory=list, description="further host names by which browsers reach it, such as tsunagi.example.org"
    )
    users: str = Field("", description="file of users (`tsunagi console user`); empty = everybody sees, nobody acts")
    prometheus: str = Field(
        "",
        description="address of a Prometheus whose alerts are shown, such as http://127.0.0.1:9090; empty = none",
        pattern=r"^(https?://[^\s/]+.*)?$",
    )
    traces: str = Field(
        "",
        description="address of an OpenTelemetry collector that gets traces of some steps (OTLP over HTTP), such as "
        "http://127.0.0.1:4318; empty = none",
        pattern=r"^(https?://[^\s/]+.*)?$",
    )
    traces_share: float = Field(0.01, ge=0.0, le=1.0, description="share of all steps of which traces are sent")
    public: bool = Field(default=False, description="let everybody see it who reaches an address beyond this machine")

    @property
    def everywhere(self) -> bool:
        """Whether it listens on all addresses of its machine."""
        return self.host in EVERY_ADDRESS

    @model_validator(mode="after")
    def _closed(self) -> Self:
        if self.host not in _LOOPBACK and not self.users and not self.public:
            raise ValueError(
                f"host: found {self.host!r}, which others reach, and no users; expected users = a file "
                "(`tsunagi console user`), or public = true"
            )
        return self
