"""[kafka] of the configuration: the brokers, the topics, and how a client proves who it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, model_validator

from tsunagi.runtime.settings.section import ConfigError, Seconds, Section


class KafkaSettings(Section):
    """Where the log is."""

    servers: str = Field("127.0.0.1:9092", min_length=1, description="bootstrap servers, host:port, comma-separated")
    prefix: str = Field("", description="put before every topic's name", pattern=r"^[A-Za-z0-9._-]*$", max_length=200)
    group_prefix: str = Field("tsunagi", max_length=100, description="put before every consumer group's name")
    topics: Literal["create", "check"] = Field("create", description="make missing topics, or only check them")
    replication: Annotated[int, Field(ge=1, le=100)] = Field(
        1, description="replication factor of topics that we create"
    )
    retention_s: Seconds = Field(7 * 86400.0, description="how long tuples, recovered and results are kept")
    flush_messages: Annotated[int, Field(ge=0, le=1_000_000_000)] = Field(
        0, description="records a partition after which the broker flushes it to disk; 0 = it leaves it to the system"
    )
    max_message_bytes: Annotated[int, Field(ge=1024, le=1_000_000_000)] = Field(
        1_048_576, description="largest record of tuples; for topics that we create"
    )
    security: Literal["plaintext", "tls", "sasl_plaintext", "sasl_tls"] = Field(
        "plaintext", description="plaintext | tls | sasl_plaintext | sasl_tls: encryption, and SASL for who we are"
    )
    mechanism: Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"] = Field(
        "SCRAM-SHA-512", description="SASL mechanism, for sasl_plaintext and sasl_tls"
    )
    username: str = Field("", description="SASL user")
    password: SecretStr = Field(SecretStr(""), description="SASL password; a file is better: password_file")
    password_file: str = Field("", description="file that holds the SASL password and nothing else")
    ca_file: str = Field("", description="PEM file of the certificates that sign the brokers'; empty = the system's")
    options: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="any librdkafka option, passed on as it stands"
    )

    def read_password(self) -> str:
        """Return the SASL password. It is read from the file if the settings name one.

        Raises:
            ConfigError: the file cannot be read, or is empty.
        """
        if not self.password_file:
            return self.password.get_secret_value()
        try:
            found = Path(self.password_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError(f"{self.password_file} ([kafka] password_file): {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{self.password_file} ([kafka] password_file): found other than UTF-8") from None
        if not found:
            raise ConfigError(f"{self.password_file} ([kafka] password_file): found nothing, expected a password")
        return found

    @model_validator(mode="after")
    def _complete(self) -> KafkaSettings:
        secret = self.password.get_secret_value()
        if secret and self.password_file:
            raise ValueError("password and password_file are both given; expected one of them")
        if self.security.startswith("sasl") and not (self.username and (secret or self.password_file)):
            raise ValueError(f'security = "{self.security}" needs username and password_file')
        return self
