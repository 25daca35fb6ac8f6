"""[metrics] of the configuration: where each service serves its metrics."""

from __future__ import annotations

import socket

from pydantic import Field

from tsunagi.runtime.settings.section import Port, Section

EVERY_ADDRESS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - recognised here, not bound
"""Hosts by which a service listens on all addresses of its machine. None of them is an address for others."""


class MetricsSettings(Section):
    """Prometheus metrics, /healthz and /readyz of every service."""

    host: str = Field("127.0.0.1", description="address that every service listens on")
    port: Port = Field(0, description="0 = any free port, shown by `tsunagi status`")
    advertise: str = Field(
        "",
        description="host name or address at which Prometheus reaches this service; empty = host, or this machine's "
        "name where host means every address",
        pattern=r"^[A-Za-z0-9._:-]*$",
    )

    @property
    def advertised(self) -> str:
        """The host name or address at which others reach the metrics."""
        return self.advertise or (socket.gethostname() if self.host in EVERY_ADDRESS else self.host)
