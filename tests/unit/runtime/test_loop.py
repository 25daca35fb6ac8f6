from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tsunagi.runtime.loop import DONE, FAILED, REFUSED, StopFlag, run_service
from tsunagi.runtime.sensors import SensorsError
from tsunagi.runtime.settings import ConfigError

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_sets_the_flag_and_handlers_come_back(number: signal.Signals) -> None:
    former = signal.getsignal(number)
    with StopFlag() as stop:
        assert not stop.is_set()
        signal.raise_signal(number)
        assert stop.is_set()
        assert stop.wait(60)
    assert signal.getsignal(number) is former


def test_flag_can_be_set_by_hand_and_waits_no_longer_than_asked() -> None:
    stop = StopFlag(install=False)
    assert not stop.wait(0)
    stop.set()
    assert stop.wait(60)


def test_outside_the_main_thread_it_is_a_plain_flag() -> None:
    flags: list[StopFlag] = []
    thread = threading.Thread(target=lambda: flags.append(StopFlag()))
    thread.start()
    thread.join()
    flags[0].set()
    assert flags[0].is_set()


@pytest.mark.slow
def test_second_signal_ends_the_process() -> None:
    code = (
        "import signal; from tsunagi.runtime.loop import StopFlag; stop = StopFlag();"
        "signal.raise_signal(signal.SIGTERM); assert stop.is_set(); signal.raise_signal(signal.SIGTERM)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, timeout=60)
    assert done.returncode == -signal.SIGTERM


def test_clean_end_and_own_code() -> None:
    assert run_service(lambda: None) == DONE
    assert run_service(lambda: 0) == DONE
    assert run_service(lambda: 3) == 3


@pytest.mark.parametrize(
    "error", [ConfigError("tsunagi.toml: [slots.count] found 0"), SensorsError("line 2: edge is empty")]
)
def test_bad_configuration_and_input_are_one_line(error: ValueError, capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        raise error

    assert run_service(main) == REFUSED
    assert capsys.readouterr().err == f"{error}\n"


@pytest.mark.parametrize(
    "error", [ValueError("a bug"), RuntimeError("no broker"), UnicodeDecodeError("utf-8", b"", 0, 1, "x")]
)
def test_anything_else_is_logged_with_its_traceback(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        raise error

    assert run_service(main) == FAILED
    written = "".join(capsys.readouterr())
    assert "failed" in written
    assert type(error).__name__ in written


def test_interrupt_is_a_clean_end_and_exit_passes() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    def left() -> None:
        sys.exit(5)

    assert run_service(interrupted) == DONE
    with pytest.raises(SystemExit):
        run_service(left)
