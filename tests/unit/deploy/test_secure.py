from __future__ import annotations

import ssl
import stat
from pathlib import Path

import pytest

from deploy.secure.make import main, make
from tsunagi.broker import secure
from tsunagi.broker.checks import BrokerError
from tsunagi.runtime import acls
from tsunagi.runtime.keys import EDGE, derive, read_keys
from tsunagi.runtime.settings import ConfigError

EDGES = ("edge-1", "edge-2")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("secure") / "out"
    make(out, EDGES)
    return out


def test_every_user_has_a_password_and_every_edge_its_own_key(made: Path) -> None:
    names = {path.name for path in made.iterdir()}
    users = {"admin", "gateway", "scaler", "learner", "spark", "console", "sink", "tools", *EDGES}
    assert names == {"ca.pem", "ca.key", "kafka.pem", "key-master", "key-edge-1", "key-edge-2"} | {
        f"password-{user}" for user in users
    }
    passwords = secure.read_passwords(made)
    assert passwords.keys() == users
    assert len(set(passwords.values())) == len(users)
    assert all(len(password) >= 32 for password in passwords.values())
    master = read_keys(made / "key-master").masters[0]
    for edge in EDGES:
        keys = read_keys(made / f"key-{edge}")
        assert (keys.edge, keys.edge_key) == (edge, derive(master, EDGE + edge))


def test_nobody_else_can_read_a_secret(made: Path) -> None:
    for path in made.iterdir():
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o644 if path.name == "ca.pem" else 0o600), path.name


def test_a_password_file_ends_without_a_newline(made: Path) -> None:
    """Spark's client takes the file as it stands."""
    assert not any(path.read_bytes().endswith(b"\n") for path in made.glob("password-*"))


def test_the_certificate_is_of_the_ca_and_for_the_broker_hosts(made: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made / "kafka.pem")
    client = ssl.create_default_context(cafile=str(made / "ca.pem"))
    for host in ("kafka", "kafka-3", "localhost", "127.0.0.1"):
        _shake(context, client, host)
    with pytest.raises(ssl.SSLCertVerificationError):
        _shake(context, client, "elsewhere")
    with pytest.raises(ssl.SSLCertVerificationError):
        _shake(context, ssl.create_default_context(), "kafka")


def _shake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> None:
    """Do a handshake in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname=host)
    two = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (one, two):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert one.version()


def test_again_makes_only_what_is_new(made: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in made.iterdir()}
    assert make(made, EDGES) == []
    assert make(made, (*EDGES, "edge-3")) == ["password-edge-3", "key-edge-3"]
    assert all((made / name).read_bytes() == data for name, data in before.items())
    for name in ("password-edge-3", "key-edge-3"):
        (made / name).unlink()
    assert main(["--out", str(tmp_path / "cli"), "--edges", "a, b"]) == 0
    assert (tmp_path / "cli" / "key-b").exists()


@pytest.mark.parametrize("edge", ["admin", "gateway", "a/b", "", "../x", "!a"])
def test_edges_that_cannot_be_called_so(tmp_path: Path, edge: str) -> None:
    with pytest.raises(ConfigError, match="edge"):
        make(tmp_path, (edge,))


def test_a_lost_ca_is_not_replaced_in_silence(tmp_path: Path) -> None:
    make(tmp_path, ())
    (tmp_path / "ca.key").unlink()
    with pytest.raises(ConfigError, match=r"ca\.key is missing"):
        make(tmp_path, ())


def test_broker_properties_leave_no_way_in_without_a_secret(made: Path) -> None:
    found = secure.properties(made, clients=("CLIENTS", "EXTERNAL"))
    protocols = dict(pair.split(":") for pair in found["listener.security.protocol.map"].split(","))
    assert protocols == {"CLIENTS": "SASL_SSL", "EXTERNAL": "SASL_SSL", "BROKERS": "SSL", "CONTROLLER": "SSL"}
    for name in ("brokers", "controller"):
        assert found[f"listener.name.{name}.ssl.client.auth"] == "required"
    assert found["allow.everyone.if.no.acl.found"] == "false"
    assert found["super.users"] == "User:admin;User:CN=kafka"
    assert not any(password in value for password in secure.read_passwords(made).values() for value in found.values())
    with pytest.raises(BrokerError, match=r"ca\.pem: missing"):
        secure.properties(made.parent)


def test_passwords_are_on_no_command_line_and_gone_afterwards(tmp_path: Path) -> None:
    with secure.format_arguments(tmp_path, ["format", "--config", "x"], {"admin": "pw"}) as arguments:
        (argument,) = arguments
        assert "pw" not in argument
        file = Path(argument.removeprefix("@"))
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert file.read_text() == (
            '"kafka.tools.StorageTool"\n"format"\n"--config"\n"x"\n'
            '"--add-scram"\n"SCRAM-SHA-512=[name=admin,password=pw]"\n'
        )
    assert list(tmp_path.iterdir()) == []


def test_the_same_admin_everywhere() -> None:
    assert secure.ADMIN == acls.ADMIN
