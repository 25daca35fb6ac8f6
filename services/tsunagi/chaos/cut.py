"""Cuts one process of this machine off: what it sends is dropped, and so what it hears stops with the next request.

Packets are told by a supplementary group that `tsunagi.system.processes` gives each process it starts as root. A
connection that the process gives up while it is cut off belongs to nobody from then on, and the kernel goes on trying
to deliver what was sent last: packets without a socket are dropped for as long, on this machine's own interface.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable

from tsunagi.chaos.targets import ChaosError
from tsunagi.system.processes import group_of

_IPTABLES = "iptables"
_COMMENT = "tsunagi-chaos"


def able() -> bool:
    """Return whether this process may do so."""
    return os.geteuid() == 0 and shutil.which(_IPTABLES) is not None


def cut_off(state: os.PathLike[str], node: str) -> None:
    """Drop from now on what the node's process sends.

    Raises:
        ChaosError: the rule cannot be set.
    """
    _iptables("-I", state, node)


def join(state: os.PathLike[str], node: str) -> None:
    """Take the rule back.

    Raises:
        ChaosError: it cannot be.
    """
    _iptables("-D", state, node)


def clean(state: os.PathLike[str], nodes: Iterable[str]) -> None:
    """Take back what a run that was itself killed has left."""
    rules = [_IPTABLES, "-w", "-S", "OUTPUT"]
    found = subprocess.run(rules, capture_output=True, text=True, check=False).stdout
    for node in nodes:
        for _ in range(found.count(f"--gid-owner {group_of(state, node)} ")):
            join(state, node)


def _iptables(action: str, state: os.PathLike[str], node: str) -> None:
    group = str(group_of(state, node))
    given_up = ["-o", "lo", "-p", "tcp", "-m", "owner", "!", "--socket-exists"]
    for match in (given_up, ["-m", "owner", "--gid-owner", group, "--suppl-groups"]):
        comment = ["-m", "comment", "--comment", f"{_COMMENT}-{group}"]
        rule = [_IPTABLES, "-w", action, "OUTPUT", *match, *comment, "-j", "DROP"]
        done = subprocess.run(rule, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ChaosError(f"{node}: `{' '.join(rule)}` failed: {done.stderr.strip()}")
