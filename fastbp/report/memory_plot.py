"""A picture of a profile: live bytes over the schedule's ticks, and resident memory beneath where it was watched."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch

from fastbp.base.units import format_bytes
from fastbp.report.colours import CATEGORIES, INK, RED, STAGES

MIB = 1 << 20
COLUMNS = 2000
"""Ticks that are drawn at most: of more, the one with the most live bytes stands for its neighbours."""
SHADE = 0.28
"""Of a stage's colour behind the areas."""
BESIDE = "#d9dce1"
"""What stands beside the arena, in the panel of resident memory."""


def memory_over_ticks(profile: Mapping[str, Any], path: Path) -> None:
    """Draws the JSON of a profile: areas by category, the schedule's stages behind them, the peak, and the budget."""
    rss = profile.get("rss")
    figure = Figure(figsize=(11, 8.6 if rss else 6), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2)) if rss else [figure.subplots()]
    ticks, live = drawn_ticks(profile["timeline"])
    top = _ledger(axes[0], profile, ticks, live)
    _stages(axes[0], profile["timeline"], top)
    if rss:
        _resident(axes[1], rss, ticks, live)
    axes[-1].set_xlabel("tick of the schedule")
    axes[0].set_title(f"{profile['title']}, {profile['policy']}", color=INK, fontsize=11)
    for each in axes:
        each.set_xlim(0, len(profile["timeline"]["actions"]))
        each.grid(alpha=0.25)
        each.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def drawn_ticks(timeline: Mapping[str, Any]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The ticks that are drawn, and what is live at each by category, in MiB; categories that stay empty left out."""
    live = {name: np.array(column) for name, column in timeline["live_bytes"].items() if any(column)}
    total = np.sum([*live.values()], axis=0) if live else np.zeros(len(timeline["actions"]))
    edges = np.linspace(0, len(total), min(COLUMNS, len(total)) + 1).astype(int)
    ticks = np.array([start + int(total[start:stop].argmax()) for start, stop in pairwise(edges)])
    return ticks, {name: column[ticks] / MIB for name, column in live.items()}


def _ledger(axes: Axes, profile: Mapping[str, Any], ticks: np.ndarray, live: Mapping[str, np.ndarray]) -> float:
    """Areas, peak and budget; returns the upper end of the axis."""
    peak, budget = profile["peak"], profile["budget_bytes"]
    _areas(axes, ticks, live, np.zeros(len(ticks)))
    highest = sum(buffer["bytes"] for buffer in peak["live"]) / MIB
    top = 1.22 * float(max(highest, (budget or 0) / MIB))
    axes.set_ylim(0, top)
    axes.plot([peak["tick"] + 0.5], [highest], "o", color=INK, markersize=5, zorder=5)
    late = peak["tick"] > 0.6 * len(profile["timeline"]["actions"])
    axes.annotate(
        f"peak {format_bytes(peak['bytes'])} ({peak['bytes']} bytes)\nat tick {peak['tick']}: {peak['action']}",
        (peak["tick"] + 0.5, highest), (-10 if late else 10, 1.03 * max(highest, (budget or 0) / MIB)),
        textcoords=("offset points", "data"), fontsize=9, color=INK,
        ha="right" if late else "left", va="bottom", zorder=6,
        bbox={"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
    )  # fmt: skip
    if budget:
        axes.axhline(budget / MIB, color=RED, linewidth=1.2, linestyle="--", zorder=4)
        axes.text(
            0.995, budget / MIB / top + 0.008, f"budget {format_bytes(budget)}", transform=axes.transAxes, color=RED,
            fontsize=9, ha="right", va="bottom", zorder=6,
        )  # fmt: skip
    axes.set_ylabel("live bytes (MiB)")
    return top


def _areas(axes: Axes, ticks: np.ndarray, live: Mapping[str, np.ndarray], floor: np.ndarray) -> None:
    """One step a tick, categories one upon the other."""
    below, edges = floor, np.append(ticks, ticks[-1] + 1)
    for name, column in live.items():
        above = below + column
        axes.fill_between(
            edges, np.append(below, below[-1]), np.append(above, above[-1]), step="post", color=CATEGORIES[name],
            linewidth=0, alpha=0.92, zorder=2,
        )  # fmt: skip
        below = above


def _stages(axes: Axes, timeline: Mapping[str, Any], top: float) -> None:
    """The stages as one picture behind everything: where they change faster than there are pixels, they blend."""
    ticks = len(timeline["actions"])
    starts = [tick for tick, _ in timeline["stages"]]
    colours = [to_rgb(STAGES[stage]) for _, stage in timeline["stages"]]
    strip = np.repeat(colours, np.diff([*starts, ticks]), axis=0)[np.newaxis]
    axes.imshow(strip, extent=(0, ticks, 0, top), aspect="auto", alpha=SHADE, zorder=0)
    used = [name for name, column in timeline["live_bytes"].items() if any(column)]
    keys = [Patch(color=CATEGORIES[name], label=name) for name in reversed(used)]
    keys += [Patch(color=STAGES[name], alpha=SHADE, label=name) for name in STAGES if name in dict(_turned(timeline))]
    axes.legend(handles=keys, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)


def _turned(timeline: Mapping[str, Any]) -> list[tuple[str, int]]:
    return [(stage, tick) for tick, stage in timeline["stages"]]


def _resident(axes: Axes, rss: Mapping[str, Any], ticks: np.ndarray, live: Mapping[str, np.ndarray]) -> None:
    """What the system saw, before what was foretold: what stands beside the arena, and upon it the live bytes."""
    beside = (rss["predicted_bytes"] - rss["parts"]["activations"]) / MIB
    axes.fill_between([0, ticks[-1] + 1], 0, beside, color=BESIDE, linewidth=0, zorder=2, label="beside the arena")
    _areas(axes, ticks, live, np.full(len(ticks), beside))
    line = rss["line"]
    axes.plot(
        line["ticks"], np.array(line["bytes"]) / MIB, color=INK, linewidth=1.4, zorder=5, label="resident (RSS)"
    )  # fmt: skip
    axes.axhline(
        rss["predicted_bytes"] / MIB, color=INK, linewidth=1, linestyle=":", zorder=4, label="foretold at most"
    )
    axes.set_ylim(0, 1.15 * max(rss["peak_bytes"], rss["predicted_bytes"]) / MIB)
    axes.set_ylabel("resident memory (MiB)")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)
