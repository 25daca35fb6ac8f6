"""Cuts one process of this machine off the network: the packets that it sends are dropped.

It also receives nothing from its next request on. The packets are recognised by a supplementary group, which
`tsunagi.system.processes` gives to each process that it starts as root. A connection that the process gives up while it
is cut off belongs to no process any more, but the kernel goes on trying to deliver what was sent last. So packets
without a socket are dropped as well meanwhile, on the loopback interface.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable

from tsunagi.chaos.targets import ChaosError
from tsunagi.system.processes import group_of

_IPTABLES = "iptables"
"""The program that sets the packet filter's rules."""
_COMMENT = "tsunagi-chaos"
"""Each rule has a comment that begins with this, so that people see where it comes from."""


def able() -> bool:
    """Return whether this process may cut others off: it runs as root, and iptables is installed."""
    return os.geteuid() == 0 and shutil.which(_IPTABLES) is not None


def cut_off(state: os.PathLike[str], node: str) -> None:
    """Drop from now on all packets that the node's process sends.

    Raises:
        ChaosError: the rule cannot be set.
    """
    _iptables("-I", state, node)


def join(state: os.PathLike[str], node: str) -> None:
    """Remove the rules that cut the node off.

    Raises:
        ChaosError: a rule cannot be removed.
    """
    _iptables("-D", state, node)


def clean(state: os.PathLike[str], nodes: Iterable[str]) -> None:
    """Remove the rules that an earlier run left because it was killed."""
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
