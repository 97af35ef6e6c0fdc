"""A run's record as panels: loss, learning rate, gradient norm, speed and update-to-weight ratio over the updates.

Values alone; plot.py draws them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from fastbp.report.colours import BLUE, CATEGORIES, GREEN, INK, RED
from fastbp.train.metrics import tokens_per_second
from fastbp.train.update_ratio import KINDS

Line = dict[str, Any]

MOST_POINTS = 1500
"""Of a curve: more than the picture has columns."""
WINDOW = 15
"""Points that a smooth curve takes the median of."""


@dataclass(frozen=True)
class Curve:
    """Points (update, value) and how they are drawn: as a "faint", "plain" or "marked" line."""

    label: str
    points: Sequence[tuple[int, float]]
    colour: str
    how: str = "plain"


@dataclass(frozen=True)
class Panel:
    """Curves over the updates. A logarithmic one has no room for values that are not positive."""

    title: str
    curves: tuple[Curve, ...]
    logarithmic: bool = False


def training_panels(record: Sequence[Line]) -> tuple[Panel, ...]:
    """The panels of a record, the loss first. What older records lack is an empty curve."""
    updates = [line for line in record if "loss" in line]
    evaluations = [line for line in record if "valid_loss" in line]
    speeds = [{"update": line["update"], "speed": tokens_per_second(line)} for line in updates]
    ratios = [{"update": line["update"], **line.get("update_ratio", {})} for line in updates]
    kinds = zip(("all", *KINDS), (INK, BLUE, GREEN, RED, CATEGORIES["logits"]), strict=True)
    return (
        Panel(
            "Loss (nats a token)",
            (
                Curve("one batch", _points(updates, "loss"), BLUE, "faint"),
                Curve("training", _points(evaluations, "train_loss"), BLUE, "marked"),
                Curve("validation", _points(evaluations, "valid_loss"), RED, "marked"),
            ),
        ),
        Panel("Learning rate", (Curve("", _points(updates, "learning_rate"), BLUE),)),
        Panel("Gradient norm, before clipping", _raw_and_smooth(_points(updates, "norm")), logarithmic=True),
        Panel("Tokens a second", _raw_and_smooth(_points(speeds, "speed"))),
        Panel(
            "Update / weights (norms)",
            tuple(Curve(kind, _smooth(_points(ratios, kind)), colour) for kind, colour in kinds),
            logarithmic=True,
        ),
    )


def training_title(record: Sequence[Line]) -> str:
    """The last validation loss, or how far the run has come."""
    last = next((line for line in reversed(record) if "valid_loss" in line), None)
    if last is None:
        return "No evaluation yet"
    return f"Validation loss {last['valid_loss']:.3f} after {last['update']} updates"


def _points(lines: Iterable[Line], name: str) -> list[tuple[int, float]]:
    """Every n-th, so that at most MOST_POINTS are left; the last is always one of them."""
    points = [(line["update"], line[name]) for line in lines if line.get(name) is not None]
    return points[:: -max(1, -(-len(points) // MOST_POINTS))][::-1]


def _raw_and_smooth(points: Sequence[tuple[int, float]]) -> tuple[Curve, ...]:
    return (Curve("at the line", points, BLUE, "faint"), Curve(f"median of {WINDOW}", _smooth(points), BLUE))


def _smooth(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Medians of WINDOW points about each, of fewer at the ends."""
    half, values = WINDOW // 2, [value for _, value in points]
    return [(update, median(values[max(0, i - half) : i + half + 1])) for i, (update, _) in enumerate(points)]
