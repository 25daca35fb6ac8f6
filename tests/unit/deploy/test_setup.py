"""`deploy/setup.sh` looks first for all that the machine must have: installed where it may be, else in one list."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SETUP = Path(__file__).resolve().parents[3] / "deploy" / "setup.sh"
TOOLS = ("bash", "dirname", "sort", "paste")
STUBBED = ("mosquitto", "pg_ctlcluster", "psql", "influxd", "chromium", "chromedriver", "npm")
PACKAGES = {
    "promtool": "prometheus",
    "prometheus": "prometheus",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "openssl": "openssl",
    "docker-compose": "docker-compose",
}


class Machine:
    """A PATH with what a test puts there, and /usr/sbin, which is always searched: what may lie there is left out."""

    def __init__(self, directory: Path) -> None:
        self.bin = directory / "bin"
        self.bin.mkdir()
        self.installed = directory / "installed"
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found is not None
            (self.bin / tool).symlink_to(found)
        self.stub("java", "echo 'openjdk version \"17.0.1\"' >&2")
        self.user(1000)

    def stub(self, name: str, script: str = "") -> None:
        (self.bin / name).write_text(f"#!{self.bin}/bash\n{script}\n")
        (self.bin / name).chmod(0o755)

    def user(self, number: int) -> None:
        self.stub("id", f"echo {number}")

    def can_install(self) -> None:
        """Give it an apt-get that notes what it is told, and brings the commands of the packages."""
        brings = "\n".join(
            f'case " $* " in *" {package} "*) echo "#!{self.bin}/bash" >{self.bin}/{name}; '
            f"{shutil.which('chmod')} 755 {self.bin}/{name};; esac"
            for name, package in PACKAGES.items()
        )
        self.stub("apt-get", f'echo "$*" >>{self.installed}\n{brings}')

    def setup(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.bin / "bash"), str(SETUP), "--machine", *arguments]
        environment = {"PATH": str(self.bin), "PYTHON": sys.executable}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_machine_that_has_all_is_left_alone(machine: Machine) -> None:
    machine.user(0)
    machine.can_install()
    done = machine.setup()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not machine.installed.exists()


@pytest.mark.parametrize("root", [False, True])
def test_all_that_is_missing_is_named_in_one_list(machine: Machine, *, root: bool) -> None:
    machine.user(0 if root else 1000)  # root of a system without apt-get is no better off
    (machine.bin / "java").unlink()
    done = machine.setup("--for", "test", "--for", "containers")
    assert done.returncode == 1
    said = [line.strip() for line in done.stderr.splitlines()]
    assert said[0] == "setup: this machine lacks"
    assert {"prometheus", "promtool", "openssl", "docker", "docker-compose"} <= set(said)
    assert any(line.startswith("java: Java is missing") for line in said)
    advice = said[-1].partition("apt-get install ")[2].split()
    assert {"prometheus", "openssl", "docker.io", "docker-compose", "openjdk-17-jre-headless"} <= set(advice)
    assert len(advice) == len(set(advice))


def test_no_more_is_asked_for_than_is_needed(machine: Machine) -> None:
    assert machine.setup().returncode == 0
    for name in (*PACKAGES.keys() - {"docker-compose"}, *STUBBED):
        machine.stub(name)
    assert machine.setup("--for", "test").returncode == 0
    assert "docker-compose" in machine.setup("--for", "containers").stderr


def test_root_installs_what_is_missing_in_one_go(machine: Machine) -> None:
    machine.user(0)
    machine.can_install()
    for name in STUBBED:
        machine.stub(name)
    done = machine.setup("--for", "test")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "setup: installing openssl prometheus prometheus-alertmanager\n"
    assert machine.installed.read_text().splitlines()[-1].endswith(" openssl prometheus prometheus-alertmanager")
    assert machine.setup("--for", "test").stdout == ""


def test_what_could_not_be_installed_is_named(machine: Machine) -> None:
    machine.user(0)
    machine.stub("mosquitto")
    machine.stub("apt-get", "echo 'E: no such thing' >&2; exit 100")
    done = machine.setup("--for", "test")
    assert done.returncode == 1
    assert "E: no such thing" in done.stderr
    assert "promtool" in done.stderr


def test_an_unknown_purpose_is_refused(machine: Machine) -> None:
    done = machine.setup("--for", "fun")
    assert (done.returncode, done.stderr) == (2, "setup: --for: found 'fun', expected test or containers\n")
