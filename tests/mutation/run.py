"""Change one token of a core module at a time; see whether a unit test notices: `make mutation N=100 SEED=1`.

mutmut and cosmic-ray were looked at. Both run pytest anew for each mutant, in a tree that they rewrite. Here pytest
collects once; each mutant is a fork in which one function has another code, and which runs the tests that pass the
changed line, the shortest first, until one fails. No file is changed.

A survivor is printed as a JSON line. It is a gap in the tests, or it means the same: then `equivalent.jsonl` says why.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import random
import resource
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.mutation.mutants import Key, Mutant, mutants

ROOT = Path(__file__).parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.jsonl")
"""Survivors that mean the same, as they were printed, each with `why`."""

CORE = (
    "services/tsunagi/standby/*.py",
    "services/tsunagi/slot/*.py",
    "services/tsunagi/owner/*.py",
    "services/tsunagi/worker/*.py",
    "services/tsunagi/runtime/results.py",
    "services/tsunagi/runtime/door.py",
    "services/tsunagi/runtime/ranges.py",
    "services/tsunagi/runtime/ranges_check.py",
    "services/tsunagi/runtime/plan.py",
    "services/tsunagi/runtime/marked.py",
    "services/tsunagi/runtime/marks.py",
    "services/tsunagi/runtime/deaths.py",
    "services/tsunagi/runtime/names.py",
    "services/tsunagi/edge/publish.py",
    "services/tsunagi/edge/spool.py",
    "services/tsunagi/scaler/handover.py",
    "spark/tsunagi_spark/frontier.py",
    "spark/tsunagi_spark/merge.py",
    "spark/tsunagi_spark/state.py",
)
FOLDERS = ("standby", "slot", "owner", "worker", "runtime", "edge", "scaler", "spark")
TESTS = tuple(f"tests/unit/{folder}" for folder in FOLDERS)
CPU_S = 3.0
WAIT_S = 60.0
"""A mutant that computes, or takes, so much longer than the tests did unchanged never ends: it is killed."""

MEMORY_BYTES = 4 << 30
"""A mutant that asks for more memory than this is killed: what the tests need unchanged is far less."""

Lines = dict[str, dict[int, set[int]]]
"""The numbers of the tests that run a line of a file, by file and line."""


def say(line: dict[str, object]) -> None:
    """Write a line of JSON."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def names(survivors: Path) -> set[tuple[str, str, str, str]]:
    """Return the names of the mutants that a file holds, one a line of JSON; other lines are passed over."""
    lines = [json.loads(line) for line in survivors.read_text().splitlines() if line.startswith("{")]
    return {(line["module"], line["function"], line["before"], line["after"]) for line in lines if "function" in line}


def in_fork(work: Callable[[], int], limit_s: float) -> int:
    """Return what the work returns in a fork of this process; -1 = it did not end in time."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            os.setsid()
            code = work()
        finally:
            os._exit(code)
    ended, _, _ = select.select([os.pidfd_open(pid)], [], [], limit_s)
    if not ended:
        os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) if ended else -1


def passes(item: pytest.Item, following: pytest.Item | None) -> bool:
    """Run a test; return whether it passes."""
    return not any(report.failed for report in runtestprotocol(item, nextitem=following, log=False))


class Mutation:
    """A pytest plugin: instead of running the tests once, it runs those that a mutant concerns, for each mutant."""

    def __init__(self, options: argparse.Namespace, modules: Sequence[str]) -> None:
        self._options = options
        self._modules = {str(ROOT / module): module for module in modules}
        self._same = names(EQUIVALENT)

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Have hypothesis find the same examples each time, and none smaller than the first."""
        import hypothesis  # pytest wants to import it itself, with its plugin

        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        tsunagi = hypothesis.settings.get_profile("tsunagi")
        hypothesis.settings.register_profile("mutation", tsunagi, phases=phases, derandomize=True, database=None)
        hypothesis.settings.load_profile("mutation")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run all tests unchanged, then what each mutant concerns."""
        self._items = session.items
        lines, seconds = self._unchanged(Path(session.config.option.basetemp))
        figures = {}
        for path, module in self._modules.items():
            live = self._live(path)
            for key, functions in islice(live.items(), 1):  # or what is counted as killed may not be
                same = Mutant(module, "", (1, max(lines[path], default=1)), "", "", key, functions[0].__code__)
                if self._outcome(same, functions, lines[path], seconds)[0] != "survived":
                    raise RuntimeError(f"{module}: in a fork the tests fail though nothing is changed")
            count: Counter[str] = Counter()
            for mutant in self._chosen(module, Path(path)):
                if mutant.key not in live:
                    raise RuntimeError(f"{module}: {mutant.key} was not imported so; the file has changed since")
                outcome, ran = self._outcome(mutant, live[mutant.key], lines[path], seconds)
                count[outcome] += 1
                if outcome == "survived":
                    line = {"module": module, "line": mutant.lines[0], "function": mutant.function, "tests": ran}
                    say(line | {"before": mutant.before, "after": mutant.after})
            figures[module] = count
            say({"module": module, "made": count.total()} | dict(sorted(count.items())))
        total = sum(figures.values(), Counter[str]())
        say({"seed": self._options.seed, "made": total.total()} | dict(sorted(total.items())))
        return True

    def _unchanged(self, scratch: Path) -> tuple[Lines, list[float]]:
        """Return which tests pass which line, and how long each takes; one that fails unchanged takes for ever."""
        found = scratch / "unchanged.json"

        def work() -> int:
            passed: dict[str, defaultdict[int, set[int]]] = {path: defaultdict(set) for path in self._modules}
            number, seconds = 0, []

            def note(frame: FrameType, event: str, _: Any) -> Any:
                lines = passed.get(frame.f_code.co_filename)
                if lines is None:
                    return None
                lines[frame.f_lineno].add(number)
                return note

            threading.settrace(note)
            for number, (item, following) in enumerate(zip(self._items, [*self._items[1:], None], strict=True)):  # noqa: B007
                began = time.process_time()
                sys.settrace(note)
                passing = passes(item, following)
                sys.settrace(None)
                seconds.append(time.process_time() - began if passing else float("inf"))
            lines = {path: {line: sorted(tests) for line, tests in of.items()} for path, of in passed.items()}
            found.write_text(json.dumps([lines, seconds]))
            return 0

        if in_fork(work, 3600) != 0:
            raise RuntimeError("the tests, unchanged, did not come to their end")
        lines, seconds = json.loads(found.read_text())
        return {path: {int(line): set(tests) for line, tests in of.items()} for path, of in lines.items()}, seconds

    def _live(self, path: str) -> dict[Key, list[FunctionType]]:
        """Return the functions of a module, as they are in this process."""
        live = defaultdict(list)
        for found in gc.get_objects():
            if isinstance(found, FunctionType) and found.__code__.co_filename == path:
                live[found.__code__.co_qualname, found.__code__.co_firstlineno].append(found)
        return live

    def _chosen(self, module: str, path: Path) -> list[Mutant]:
        """Return so many mutants of a module at random, or those that survived before."""
        order, again = random.Random(self._options.seed), self._options.again
        if again is None:
            return list(islice(mutants(module, path, order), self._options.count))
        return [mutant for mutant in mutants(module, path, order, {name[2] for name in again}) if mutant.name in again]

    def _outcome(
        self, mutant: Mutant, live: list[FunctionType], lines: dict[int, set[int]], seconds: list[float]
    ) -> tuple[str, int]:
        """Return what became of a mutant, and how many tests concern it."""
        if mutant.name in self._same:
            return "equivalent", 0
        first, last = mutant.lines
        concerned = {test for line in range(first, last + 1) for test in lines.get(line, ())}
        tests = sorted((test for test in concerned if seconds[test] < float("inf")), key=seconds.__getitem__)

        unchanged_s = sum(seconds[test] for test in tests)

        def work() -> int:
            resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(CPU_S + unchanged_s),) * 2)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            for function in live:
                function.__code__ = mutant.code
            items = [self._items[test] for test in tests]
            return int(not all(passes(*pair) for pair in zip(items, [*items[1:], None], strict=True)))

        code = in_fork(work, WAIT_S + 10 * unchanged_s)
        return ("survived" if code == 0 else "killed"), len(tests)


def main() -> int:
    """Run the mutants; return 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="mutants a module, at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--modules", nargs="+", default=CORE, help="patterns of files")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="folders")
    parser.add_argument("--mark", default="not slow", help="which of them, as pytest has it")
    parser.add_argument("--again", type=Path, help="a file with survivors: only these")
    options = parser.parse_args()
    modules = sorted({str(path.relative_to(ROOT)) for name in options.modules for path in ROOT.glob(name)})
    if options.again is not None:
        options.again = names(options.again)
        modules = sorted({name[0] for name in options.again})
    scratch = tempfile.mkdtemp(prefix="mutation-")
    try:
        plain = ["-q", "-p", "no:cacheprovider", "-m", options.mark, f"--basetemp={scratch}", f"--rootdir={ROOT}"]
        return int(pytest.main([*plain, *options.tests], plugins=[Mutation(options, modules)]))
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    sys.exit(main())
