"""Pictures, as PNG files. The only file that knows matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

INK, TRAIN, VALID = "#222222", "#4477aa", "#cc5533"


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
