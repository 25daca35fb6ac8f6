"""Draws the charts of the report, as SVG for use inside the page."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np

from tsunagi.audit.check import Checked
from tsunagi.audit.evidence import Kill, Outage
from tsunagi.audit.truth import World
from tsunagi.runtime.columns import Floats

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_TRUTH, _ESTIMATE, _BAND, _KILL = "#333333", "#c2410c", "#fdba74", "#b91c1c"
"""The colours of the truth, of estimates and their bands, and of kills."""
_SLOTS = ("#1d4ed8", "#0f766e", "#7c3aed", "#a16207")
"""The colours of slots, which take turns."""
_SHOWN = 4
"""Most sensors in the chart of recovered values. More would make their panels too small to read."""
_OUTAGE_SHARE = 0.5  # more than this share of the sensors is missing at once only while an edge is down
_BIN_STEPS = 2
"""Length of a bar in the chart of rates, in steps. Bars of one step would show the jitter of single outputs."""


def recovered_chart(checked: Checked, world: World, origin_us: int) -> Figure | None:
    """Draw some recovered sensors and their bands beside the truth; return None if nothing was recovered."""
    delivery, truth = checked.delivery, world.truth
    rows = delivery.rows(truth)
    estimated = delivery.estimated[rows]
    counts = estimated.sum(axis=0)
    if not counts.any():
        return None
    most = np.flatnonzero(counts >= 0.9 * counts.max())
    # The choice is fair: among the sensors that were missing longest, it takes evenly spaced quantiles of the error.
    error = [float(np.nanmean(np.abs(delivery.mean[rows, s] - truth.values[:, s])[estimated[:, s]])) for s in most]
    places = np.argsort(error)[np.linspace(0, len(most) - 1, min(_SHOWN, len(most))).round().astype(int)]
    time_s = ((truth.first_step + np.arange(len(truth.values))) * world.steps.slide_us - origin_us) / 1e6
    gone = np.flatnonzero(estimated[:, most].mean(axis=1) > _OUTAGE_SHARE)
    low, high = (time_s[0], time_s[-1]) if len(gone) == 0 else (time_s[gone[0]] - 4, time_s[gone[-1]] + 4)
    figure, axes = plt.subplots(len(places), 1, figsize=(10, 1.9 * len(places)), sharex=True, squeeze=False)
    for axis, place in zip(axes[:, 0], places, strict=True):
        sensor = int(most[place])
        _recovered(axis, time_s, truth.values[:, sensor], checked, rows, sensor)
        unit = world.table.sensors[sensor].unit
        axis.set_ylabel(world.table.sensors[sensor].name + (f"\n{unit}" if unit else ""))
        axis.set_xlim(low, high)
    axes[0, 0].legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, fontsize=8, frameon=False)
    axes[-1, 0].set_xlabel("stream time, s")
    return figure


def _recovered(axis: Axes, time_s: Floats, truth: Floats, checked: Checked, rows: slice, sensor: int) -> None:
    estimated = checked.delivery.estimated[rows, sensor]
    mean = np.where(estimated, checked.delivery.mean[rows, sensor], np.nan)
    bound = np.where(estimated, checked.delivery.bound[rows, sensor], np.nan)
    axis.fill_between(
        time_s, mean - bound, mean + bound, color=_BAND, alpha=0.6, lw=0, label="band (probability delta)"
    )
    axis.plot(time_s, truth, color=_TRUTH, lw=1.0, label="truth (CSV)")
    axis.plot(time_s, mean, color=_ESTIMATE, lw=1.3, label="recovered")
    axis.spines[["top", "right"]].set_visible(False)


def rate_chart(
    checked: Checked, world: World, origin_us: int, kills: Sequence[Kill], outages: Sequence[Outage]
) -> Figure:
    """Draw how many rows a second each slot appended to `recovered`, with the kills and the outages."""
    figure, axis = plt.subplots(figsize=(10, 3.2))
    end_s = (world.truth.last_step * world.steps.slide_us - origin_us) / 1e6
    bin_s = _BIN_STEPS * world.steps.slide_us / 1e6
    edges = np.arange(0.0, end_s + 2 + bin_s, bin_s)
    usual = 0.0
    for slot, outputs in sorted(checked.outputs.items(), reverse=True):  # the slot whose owners are killed on top
        at = np.array([(output.written_us - origin_us) / 1e6 for output in outputs])
        rows = np.array([len(output.sensor) for output in outputs])
        counts, _ = np.histogram(at, bins=edges, weights=rows)
        usual = max(usual, float(np.median(counts)) / bin_s)
        axis.stairs(counts / bin_s, edges, color=_SLOTS[slot % len(_SLOTS)], lw=1.3, label=f"slot {slot}")
    for outage in outages:
        axis.axvspan(
            (outage.from_us - origin_us) / 1e6,
            (outage.to_us - origin_us) / 1e6,
            color="#e5e7eb",
            lw=0,
            zorder=0,
            label=f"{outage.edge} down",
        )
    _mark(axis, origin_us, kills)
    axis.set(xlabel="stream time, s", ylabel="rows appended a second", xlim=(0, end_s + 1), ylim=(0, 4 * usual or None))
    axis.legend(loc="lower right", bbox_to_anchor=(1, 1), fontsize=8, frameon=False, ncols=4)
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def latency_chart(at_s: Floats, latencies_s: Floats, origin_us: int, kills: Sequence[Kill]) -> Figure:
    """Draw the latency of the rows: its median and 99th percentile in each second of event time.

    Args:
        at_s: event time of each row, in seconds since the origin of the stream.
        latencies_s: latency of each row, in seconds.
        origin_us: the origin of the stream, in microseconds since 1970.
        kills: the kills, which are marked.
    """
    figure, axis = plt.subplots(figsize=(10, 3.2))
    if len(at_s):
        second = np.floor(at_s).astype(int)
        seconds = np.unique(second)
        groups = [latencies_s[second == value] for value in seconds]
        axis.plot(seconds + 0.5, [np.quantile(group, 0.99) for group in groups], color=_ESTIMATE, lw=1.3, label="p99")
        axis.plot(seconds + 0.5, [np.quantile(group, 0.5) for group in groups], color=_SLOTS[0], lw=1.3, label="p50")
    _mark(axis, origin_us, kills)
    axis.set(xlabel="stream time, s", ylabel="latency, s", ylim=(0, None))
    axis.legend(loc="lower right", bbox_to_anchor=(1, 1), fontsize=8, frameon=False, ncols=2)
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def _mark(axis: Axes, origin_us: int, kills: Sequence[Kill]) -> None:
    for kill in kills:
        at = (kill.at_us - origin_us) / 1e6
        axis.axvline(at, color=_KILL, lw=1.0, ls="--")
        axis.annotate(
            f"kill {kill.node}",
            (at, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(3, -2),
            textcoords="offset points",
            rotation=90,
            va="top",
            fontsize=8,
            color=_KILL,
        )


def svg(figure: Figure) -> str:
    """Return the figure as an SVG element, and free the figure."""
    text = io.StringIO()
    options: dict[str, Any] = {"metadata": {"Date": None}, "bbox_inches": "tight"}
    figure.savefig(text, format="svg", **options)
    plt.close(figure)
    content = text.getvalue()
    return content[content.index("<svg") :]
