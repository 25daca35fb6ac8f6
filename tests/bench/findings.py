"""What a benchmark of a paper's figures leaves: CSV, pictures, and the paper's statements, each held or not."""

from __future__ import annotations

import csv
import itertools
import json
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

Curves = dict[str, tuple[Sequence[float], Sequence[float]]]
"""Label -> (x, y)."""

MARKERS = "osv^D*P"
EQUAL = 0.10
"""Two figures count as equal within this, as the issues' bounds have it."""


class Claim(NamedTuple):
    """What the paper says, and what was found."""

    figure: str
    says: str
    held: bool
    found: str


class Panel(NamedTuple):
    """One pair of axes of a picture; `limit` is drawn as a level line, points where there are few of them."""

    curves: Curves
    x: str
    y: str
    limit: float | None = None
    limit_label: str = "limit"
    log_x: bool = False
    log_y: bool = False
    points: bool = True


def say(line: str) -> None:
    """Tell the user what was found."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Findings:
    """Writes into a directory, which need not be there, and tells how far the benchmark is."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.claims: list[Claim] = []
        self._begun = time.monotonic()
        out.mkdir(parents=True, exist_ok=True)

    @property
    def took_s(self) -> int:
        """How long the benchmark has run."""
        return round(time.monotonic() - self._begun)

    def progress(self, line: str) -> None:
        """Tell how far it is, on stderr."""
        sys.stderr.write(f"{time.monotonic() - self._begun:7.1f} s  {line}\n")
        sys.stderr.flush()

    def claim(self, figure: str, says: str, held: bool, found: str) -> None:
        """Note whether a statement held."""
        self.claims.append(Claim(figure, says, held, found))
        say(f"      {figure}: {'held' if held else 'DID NOT HOLD'}: {says} ({found})")

    def judge(self, found: Iterable[Claim]) -> None:
        """Note what was judged."""
        for claim in found:
            self.claim(*claim)

    def write(self, name: str, rows: Sequence[Sequence[Any]], columns: Sequence[str]) -> None:
        """Write a CSV."""
        with (self.out / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(rows)

    def picture(self, name: str, panels: Sequence[Panel], columns: int = 1) -> None:
        """Draw panels, `columns` beside each other; a legend where the curves are not those of the panel before."""
        rows = -(-len(panels) // columns)
        figure, axes = plt.subplots(rows, columns, figsize=(6 * columns, 3.6 * rows), squeeze=False)
        known: list[str] = []
        for axis, panel in zip(axes.flat, panels, strict=False):
            for marker, (label, (x, y)) in zip(itertools.cycle(MARKERS), panel.curves.items(), strict=False):
                axis.plot(x, y, marker=marker if panel.points else "", markersize=4, linewidth=1.2, label=label)
            if panel.limit is not None:
                axis.axhline(panel.limit, color="#b91c1c", linestyle="--", linewidth=1, label=panel.limit_label)
            axis.set_xlabel(panel.x)
            axis.set_ylabel(panel.y)
            if panel.log_x:
                axis.set_xscale("log")
            if panel.log_y:
                axis.set_yscale("log")
            else:
                axis.set_ylim(0, 1.05 * axis.get_ylim()[1])
            if list(panel.curves) != known:
                known = list(panel.curves)
                axis.legend(frameon=False, fontsize=8)
        for axis in axes.flat[len(panels) :]:
            axis.set_visible(False)
        figure.tight_layout()
        figure.savefig(self.out / f"{name}.png", dpi=150)
        plt.close(figure)

    def bars(self, name: str, groups: Mapping[str, Mapping[str, float]], *, log: Collection[str] = ()) -> None:
        """Draw groups of bars beside each other, title -> (label -> value); all groups have the same labels."""
        labels = list(next(iter(groups.values())))
        size = (3.0 + 2.6 * len(groups), 0.8 + 0.28 * len(labels))
        figure, axes = plt.subplots(1, len(groups), figsize=size, squeeze=False, sharey=True)
        for axis, (title, values) in zip(axes[0], groups.items(), strict=True):
            drawn = axis.barh(labels, [values[label] for label in labels], color="#1d4ed8")
            axis.bar_label(drawn, fmt="{:.3g}", fontsize=7, padding=2)
            axis.set_title(title, fontsize=9)
            if title in log:
                axis.set_xscale("log")
            axis.margins(x=0.2)
        axes[0, 0].invert_yaxis()
        axes[0, 0].tick_params(axis="y", labelsize=8)
        figure.tight_layout()
        figure.savefig(self.out / f"{name}.png", dpi=150)
        plt.close(figure)

    def save(self, found: Mapping[str, Any]) -> None:
        """Write claims.json: what was run, and every statement so far."""
        whole = {**found, "claims": [claim._asdict() for claim in self.claims]}
        (self.out / "claims.json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
