"""Pictures of training and of policies, as PNG files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Annotation, Text
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from matplotlib.transforms import Bbox

from fastbp.policy.frontier import Point, frontier, knee
from fastbp.report.colours import BLUE, GREEN, INK, RED
from fastbp.report.comparison import PLANNER
from fastbp.report.curves import Panel

STYLES: dict[str, dict[str, Any]] = {
    "faint": {"alpha": 0.35, "linewidth": 0.8},
    "plain": {"linewidth": 1.4},
    "marked": {"linewidth": 1.6, "marker": "o", "markersize": 3},
}
"""How a curve of a panel is drawn."""
LIBRARIES = {"fastbp": (BLUE, "o"), "torch": (RED, "s"), "jax": (GREEN, "^")}
"""Colour and marker of each in a comparison."""
NAMED, PLANNED = RED, BLUE
"""Colours of named policies and of the planner's budgets."""
MIB = 1 << 20


def training_curves(panels: Sequence[Panel], title: str, path: Path) -> None:
    """Five panels over the updates, the first twice as wide as the others. They have fixed places: to find some takes
    as long as all the rest, and this picture is drawn while others wait for the processor.
    """
    figure = Figure(figsize=(13, 6.5))
    FigureCanvasAgg(figure)
    figure.subplots_adjust(left=0.05, right=0.98, bottom=0.1, top=0.88, wspace=0.18, hspace=0.3)
    axes_of = figure.subplot_mosaic("AAB;CDE")
    for panel, axes in zip(panels, axes_of.values(), strict=True):
        _draw(axes, panel)
    figure.supxlabel("update", color=INK, fontsize=10)
    figure.suptitle(title, color=INK, fontsize=12)
    figure.savefig(path, dpi=100, format="png")


def _draw(axes: Axes, panel: Panel) -> None:
    for curve in panel.curves:
        points = [(x, y) for x, y in curve.points if y > 0] if panel.logarithmic else curve.points
        axes.plot(*_columns(points), color=curve.colour, label=curve.label, **STYLES[curve.how])
    if panel.logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    many = len(panel.curves) > 3
    axes.margins(y=0.2 if many else 0.05)  # room for the names
    axes.set_title(panel.title, color=INK, fontsize=10)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if any(curve.label for curve in panel.curves):
        axes.legend(frameon=False, fontsize=8, ncols=2 if many else 1)


def memory_against_time(rows: Sequence[Mapping[str, Any]], title: str, path: Path) -> None:
    """Peak of activation memory (MiB, logarithmic) against the time of an update, one point a contender.

    Of a row `contender` ("torch eager"), `measured_peak_bytes` (None: it is left out) and `median_seconds` are read. A
    line joins those of ours that no other of ours beats in both.
    """
    figure = Figure(figsize=(9, 6), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    points = {
        row["contender"]: (row["measured_peak_bytes"] / MIB, row["median_seconds"] * 1e3)
        for row in rows
        if row["measured_peak_bytes"] is not None
    }
    for library, (colour, marker) in LIBRARIES.items():
        own = [point for name, point in points.items() if name.split()[0] == library]
        axes.plot(*_columns(own), marker, color=colour, label=library)
        if library == "fastbp":
            axes.plot(*_columns(frontier(own)), color=colour, linewidth=1.2, alpha=0.6)
    _against_memory(axes, "ms an update")
    axes.set_title(title, color=INK, fontsize=11)
    axes.legend(frameon=False)
    figure.draw_without_rendering()  # places the axes, so that names can be fitted in
    names = [Name(name.partition(" ")[2], point, LIBRARIES[name.split()[0]][0]) for name, point in points.items()]
    _label(axes, names, canvas.get_renderer())  # type: ignore[no-untyped-call]
    figure.savefig(path, dpi=120)


def memory_against_cost(rows: Sequence[Mapping[str, Any]], title: str, path: Path) -> None:
    """Rows of `fastbp compare`: measured peak of activations (MiB, logarithmic) against seconds, and against extra
    FLOPs. Named policies are points; the planner's budgets are a line, its knee marked.
    """
    figure = Figure(figsize=(13, 6), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12, wspace=0.04))
    canvas = FigureCanvasAgg(figure)
    rows = [row for row in rows if "failed" not in row]
    left, right = figure.subplots(1, 2)
    names = [
        (left, _panel(left, rows, lambda row: 1e3 * float(row["seconds"]["median"]), 0)),
        (right, _panel(right, rows, lambda row: 1e2 * float(row["extra_flops_share"]), WITHOUT_EXTRA)),
    ]
    _against_memory(left, "ms a forward and backward pass")
    _against_memory(right, "extra FLOPs (%)")
    keys = {label: key for axes in (right, left) for key, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    left.legend(keys.values(), keys.keys(), frameon=False)
    figure.suptitle(title, color=INK, fontsize=11)
    figure.draw_without_rendering()
    for axes, found in names:
        _label(axes, found, canvas.get_renderer())  # type: ignore[no-untyped-call]
    figure.savefig(path, dpi=120)


WITHOUT_EXTRA = 100
"""Percent of its FLOPs that a pass takes which recomputes nothing: a knee is a matter of all that is paid."""


def _panel(
    axes: Axes, rows: Sequence[Mapping[str, Any]], cost: Callable[[Mapping[str, Any]], float], paid: float
) -> list[Name]:
    """Draws points, the planner's line and its knee, where `paid` comes on top of every cost; returns the names that
    points are to have: the planner's are named at the ends of their line and at the knee.
    """
    points = {row["policy"]: (row["peak_bytes_measured"] / MIB, cost(row)) for row in rows}
    planned = {name: point for name, point in points.items() if name.startswith(PLANNER)}
    named = {name: point for name, point in points.items() if name not in planned}
    line = sorted(planned.values())
    axes.plot(*_columns(line), "o-", color=PLANNED, markersize=4, linewidth=1.4, label="planner, by budget")
    axes.plot(*_columns(list(named.values())), "s", color=NAMED, markersize=5, label="named policies")
    bend = knee([(x, y + paid) for x, y in line])
    told = {line[0], line[-1]} if line else set()
    if bend:
        bend = (bend[0], bend[1] - paid)
        nearest = min(line, key=lambda point: abs(point[0] - bend[0]) + abs(point[1] - bend[1]))
        axes.plot(*nearest, "o", color=PLANNED, markersize=12, fillstyle="none", label="knee of the planner's line")
        told.add(nearest)
    return [Name(name, point, NAMED) for name, point in named.items()] + [
        Name(name if point in told else "", point, PLANNED) for name, point in planned.items()
    ]


def _columns(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _against_memory(axes: Axes, cost: str) -> None:
    """Axes whose points are drawn: memory in MiB runs to the right, `cost` upwards."""
    axes.set_xscale("log")
    axes.margins(0.12)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("peak of activation memory (MiB)")
    axes.set_ylabel(cost)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


@dataclass(frozen=True)
class Name:
    """What is to be written beside a point, in which colour; "" for a point that must only not be covered."""

    text: str
    point: Point
    colour: str


OFFSETS = [
    (distance * dx, distance * dy)
    for distance in (7, 14, 22, 32, 44, 58)
    for dx, dy in ((1, 0), (0, 1), (0, -1), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1))
]
"""Where a name may stand, in typographic points from its own point: the best place first."""


def _label(axes: Axes, names: Sequence[Name], renderer: RendererAgg) -> None:
    """Names beside their points, where they cover no point, no line and no other name."""
    places = [axes.transData.transform(name.point) for name in names]
    taken = [Bbox.from_extents(x - 5, y - 5, x + 5, y + 5) for x, y in places]
    taken += [Bbox.from_extents(x - 1, y - 1, x + 1, y + 1) for x, y in _along_lines(axes)]
    taken += [legend.get_window_extent(renderer) for legend in [axes.get_legend()] if legend]
    for name in names:
        if not name.text:
            continue
        for offset in OFFSETS:
            text = _name_at(axes, name, offset)
            text.update_positions(renderer)
            box = Text.get_window_extent(text, renderer)  # an annotation's own would have its line in it
            within = axes.bbox.contains(*box.min) and axes.bbox.contains(*box.max)
            if within and not any(box.overlaps(other) for other in taken):
                break
            text.remove()
        else:
            text = _name_at(axes, name, OFFSETS[0])
        taken.append(box)


def _along_lines(axes: Axes) -> Iterator[tuple[float, float]]:
    """Places on the lines that are drawn, in pixels, a few apart."""
    for line in axes.get_lines():
        if line.get_linestyle() == "-":
            corners = axes.transData.transform(line.get_xydata())
            for start, stop in pairwise(corners):
                steps = max(1, int(np.abs(stop - start).max() / 3))
                yield from (tuple(start + (stop - start) * i / steps) for i in range(steps))


def _name_at(axes: Axes, name: Name, offset: tuple[float, float]) -> Annotation:
    """A name at an offset; the further away, the more it needs the thin line to its point."""
    dx, dy = offset
    text = axes.annotate(
        name.text, name.point, offset, textcoords="offset points", fontsize=8, color=name.colour,
        ha="left" if dx > 0 else "right" if dx < 0 else "center",
        va="bottom" if dy > 0 else "top" if dy < 0 else "center",
        arrowprops={
            "arrowstyle": "-", "color": name.colour, "linewidth": 0.5, "alpha": 0.5, "shrinkA": 0, "shrinkB": 3,
        },
    )  # fmt: skip
    text.set_in_layout(False)  # the axes stay where they are
    return text
