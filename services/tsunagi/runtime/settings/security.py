"""[security] of the configuration: whether records are signed, and with which key."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from tsunagi.runtime.settings.section import Section


class SecuritySettings(Section):
    """Keyed hashes of records, which prove who wrote them (docs/howto/security.md)."""

    auth: Literal["none", "hmac"] = Field("none", description="none | hmac: sign what is written, verify what is read")
    key_file: str = Field("", description="master key; for an edge its own key alone (deploy/secure)")

    @model_validator(mode="after")
    def _keyed(self) -> SecuritySettings:
        if self.auth != "none" and not self.key_file:
            raise ValueError(f'auth = "{self.auth}" needs key_file')
        return self
