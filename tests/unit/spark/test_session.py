from __future__ import annotations

from pathlib import Path

import pytest

from tsunagi.runtime.settings import ConfigError, KafkaSettings, Settings
from tsunagi_spark.session import security_options, session_options


def secured(path: Path, password: str, **changes: object) -> KafkaSettings:
    path.write_text(password)
    kafka = KafkaSettings(security="sasl_tls", username="spark", password_file=str(path), ca_file="/run/secrets/ca.pem")
    return kafka.model_copy(update=changes)


def test_a_user_without_a_name_is_refused_before_java_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", nobody)
    with pytest.raises(ConfigError, match="found no entry in the system's table of users"):
        session_options(Settings(), tmp_path)


def test_without_security_there_is_nothing() -> None:
    assert security_options(KafkaSettings()) == {}


def test_a_password_in_a_file_is_in_no_option(tmp_path: Path) -> None:
    options = security_options(secured(tmp_path / "password-spark", "s3cr3t-pw"))
    assert options["kafka.security.protocol"] == "SASL_SSL"
    assert options["kafka.sasl.mechanism"] == "SCRAM-SHA-512"
    assert options["kafka.ssl.truststore.location"] == "/run/secrets/ca.pem"
    assert options["kafka.ssl.truststore.type"] == "PEM"
    assert not any("s3cr3t-pw" in value for value in options.values())
    assert f'password="${{files:{tmp_path}:password-spark}}"' in options["kafka.sasl.jaas.config"]
    assert "scram.ScramLoginModule" in options["kafka.sasl.jaas.config"]


@pytest.mark.parametrize("password", ["pw\n", 'p"w', "p w", "p$w", "p\\w"])
def test_what_the_client_would_read_otherwise_is_refused(tmp_path: Path, password: str) -> None:
    with pytest.raises(ConfigError, match="password_file") as error:
        security_options(secured(tmp_path / "p", password))
    assert password not in str(error.value)


def test_a_password_in_the_settings_still_works() -> None:
    kafka = KafkaSettings(
        username="u", password='p"\\w', options={"security.protocol": "sasl_ssl", "sasl.mechanism": "PLAIN"}
    )
    options = security_options(kafka)
    assert options["kafka.security.protocol"] == "SASL_SSL"
    assert options["kafka.sasl.jaas.config"].endswith(
        'plain.PlainLoginModule required username="u" password="p\\"\\\\w";'
    )


def test_encryption_alone_needs_no_user() -> None:
    assert security_options(KafkaSettings(security="tls", ca_file="/ca.pem")) == {
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "/ca.pem",
    }
