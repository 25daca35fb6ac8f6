from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tsunagi.chaos.proxy import rules

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import sys, time
from tsunagi.chaos import proxy

def iptables(table, *arguments, check=True):
    with open(sys.argv[1], "a") as log:
        log.write(" ".join([table, *arguments]) + "\\n")
    time.sleep(0.02)
    return check

proxy._iptables = iptables
sys.exit(proxy.main(["client", "loss", "0.1", "0.2"]))
"""


@pytest.mark.slow
def test_a_signal_that_comes_while_the_rules_go_does_not_keep_any(tmp_path: Path) -> None:
    log = tmp_path / "iptables"
    helper = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(log)], cwd=ROOT, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert helper.stdout is not None
    assert helper.stdout.readline().startswith("set ")
    before = log.read_text().count("\n")
    while log.read_text().count("\n") == before:  # its time is over, and the first rule goes
        time.sleep(0.005)
    helper.send_signal(signal.SIGTERM)
    assert helper.wait(30) == 0
    helper.stdout.close()
    gone = [line for line in log.read_text().splitlines()[before:] if " -X " in line]
    assert len(gone) == 4


def test_delay_leaves_the_proxys_own_connections_alone() -> None:
    for _, _, rule in rules("client", "delay", 0.0):
        assert "--gid-owner" in rule
    for _, _, rule in rules("server", "delay", 0.0):
        assert rule[:3] == ["!", "-i", "lo"]
