"""Pictures, as PNG files. The only file that knows matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Annotation, Text
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from matplotlib.transforms import Bbox

INK, TRAIN, VALID = "#222222", "#4477aa", "#cc5533"
LIBRARIES = {"fastbp": ("#4477aa", "o"), "torch": ("#cc5533", "s"), "jax": ("#228833", "^")}
"""Colour and marker of each in a comparison."""
MIB = 1 << 20


def loss_curve(metrics: Sequence[dict[str, Any]], path: Path) -> None:
    """Training and validation loss over the updates, from a run's record."""
    figure = Figure(figsize=(7, 4.2), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    updates = [line for line in metrics if "loss" in line]
    evaluations = [line for line in metrics if "valid_loss" in line]
    axes.plot(
        [line["update"] for line in updates], [line["loss"] for line in updates],
        color=TRAIN, alpha=0.3, linewidth=0.8, label="one batch",
    )  # fmt: skip
    for key, colour, label in (("train_loss", TRAIN, "training"), ("valid_loss", VALID, "validation")):
        axes.plot(
            [line["update"] for line in evaluations], [line[key] for line in evaluations],
            color=colour, marker="o", markersize=3, linewidth=1.6, label=label,
        )  # fmt: skip
    axes.set_xlabel("update")
    axes.set_ylabel("cross-entropy (nats a token)")
    axes.set_title(_title(evaluations), color=INK, fontsize=11)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


def _title(evaluations: Sequence[dict[str, Any]]) -> str:
    if not evaluations:
        return "Loss"
    last = evaluations[-1]
    return f"Validation loss {last['valid_loss']:.3f} after {last['update']} updates"


def memory_against_time(rows: Sequence[Mapping[str, Any]], title: str, path: Path) -> None:
    """Peak of activation memory (MiB, logarithmic) against the time of an update, one point a contender.

    Of a row `contender` ("torch eager"), `measured_peak_bytes` (None: it is left out) and `median_seconds` are read. A
    line joins those of ours that no other of ours beats in both.
    """
    figure = Figure(figsize=(9, 6), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot(xscale="log")
    points = {
        row["contender"]: (row["measured_peak_bytes"] / MIB, row["median_seconds"] * 1e3)
        for row in rows
        if row["measured_peak_bytes"] is not None
    }
    for library, (colour, marker) in LIBRARIES.items():
        own = [point for name, point in points.items() if name.split()[0] == library]
        axes.plot(*zip(*own, strict=True) if own else ([], []), marker, color=colour, label=library)
        if library == "fastbp":
            best = frontier(own)
            axes.plot(*zip(*best, strict=True) if best else ([], []), color=colour, linewidth=1.2, alpha=0.6)
    axes.margins(0.12)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("peak of activation memory (MiB)")
    axes.set_ylabel("ms an update")
    axes.set_title(title, color=INK, fontsize=11)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.draw_without_rendering()  # places the axes, so that names can be fitted in
    _label(axes, points, canvas.get_renderer())  # type: ignore[no-untyped-call]
    figure.savefig(path, dpi=120)


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points to which no other is as good or better in both, by their first number."""
    best: list[tuple[float, float]] = []
    for point in sorted(points):
        if not best or point[1] < best[-1][1]:
            best.append(point)
    return best


OFFSETS = [
    (distance * dx, distance * dy)
    for distance in (7, 14, 22, 32, 44, 58)
    for dx, dy in ((1, 0), (0, 1), (0, -1), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1))
]
"""Where a name may stand, in typographic points from its own point: the best place first."""


def _label(axes: Axes, points: Mapping[str, tuple[float, float]], renderer: RendererAgg) -> None:
    """Names beside their points, where they cover no point and no other name."""
    places = [axes.transData.transform(point) for point in points.values()]
    taken = [Bbox.from_extents(x - 5, y - 5, x + 5, y + 5) for x, y in places]
    taken += [legend.get_window_extent(renderer) for legend in [axes.get_legend()] if legend]
    for name, point in points.items():
        library, _, mode = name.partition(" ")
        for offset in OFFSETS:
            text = _name_at(axes, mode, point, offset, LIBRARIES[library][0])
            text.update_positions(renderer)
            box = Text.get_window_extent(text, renderer)  # an annotation's own would have its line in it
            within = axes.bbox.contains(*box.min) and axes.bbox.contains(*box.max)
            if within and not any(box.overlaps(other) for other in taken):
                break
            text.remove()
        else:
            text = _name_at(axes, mode, point, OFFSETS[0], LIBRARIES[library][0])
        taken.append(box)


def _name_at(axes: Axes, name: str, point: tuple[float, float], offset: tuple[float, float], colour: str) -> Annotation:
    """A name at an offset; the further away, the more it needs the thin line to its point."""
    dx, dy = offset
    text = axes.annotate(
        name, point, offset, textcoords="offset points", fontsize=8, color=colour,
        ha="left" if dx > 0 else "right" if dx < 0 else "center",
        va="bottom" if dy > 0 else "top" if dy < 0 else "center",
        arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5, "alpha": 0.5, "shrinkA": 0, "shrinkB": 3},
    )  # fmt: skip
    text.set_in_layout(False)  # the axes stay where they are
    return text
