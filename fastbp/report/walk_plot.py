"""A walk as a picture: the norm of every row at every stop, and a head's dS."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from fastbp.report.colours import INK
from fastbp.report.walk_lines import visible

FUTURE = "#e8e6e1"
NAMED = 40
"""Tokens that are named along an axis; of more there are only positions."""

Result = Mapping[str, Any]


def walk_plot(result: Result, path: Path) -> None:
    """The rows of every stop as a heat map whose colour is logarithmic, from the loss down to the embedding; beside it
    dS of the first attention on the way and of the last.
    """
    stops = result["stops"]
    attentions = [stop for stop in stops if stop["scores"]]
    attentions = attentions[:1] + attentions[1:][-1:]
    height = 1.6 + 0.27 * max(len(stops), 12)
    figure = Figure(figsize=(13, height), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(len(attentions), 2, width_ratios=[3, 2])
    tokens = [visible(token) for token in result["tokens"]]
    _norms(figure, figure.add_subplot(grid[:, 0]), stops, tokens)
    for i, stop in enumerate(attentions):
        _triangle(figure, figure.add_subplot(grid[i, 1]), stop, tokens)
    window = "".join([*tokens, visible(result["targets"][-1])])
    figure.suptitle(
        f"The gradient's way back for “{window if len(window) <= NAMED else window[:NAMED] + '…'}”,"
        f" decoder {result['decoder']}, loss {result['loss']:.3f}",
        color=INK, fontsize=11, parse_math=False,
    )  # fmt: skip
    with warnings.catch_warnings():
        # A token that the font lacks is drawn as a box.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(path, dpi=120)


def _norms(figure: Figure, axes: Axes, stops: Sequence[Result], tokens: Sequence[str]) -> None:
    sizes = np.array([stop["rows"] for stop in stops])
    positive = sizes[sizes > 0]
    low, high = (positive.min(), positive.max()) if positive.size else (0.1, 1.0)
    norm = LogNorm(low, max(high, low * 1.01))
    image = axes.imshow(np.ma.masked_equal(sizes, 0), aspect="auto", cmap="viridis", norm=norm)
    axes.set_yticks(range(len(stops)), [f"{stop['stop']}  {_name(stop)}" for stop in stops], fontsize=8)
    _along(axes, tokens)
    axes.set_title("Norm of every row, stop by stop", color=INK, fontsize=10)
    figure.colorbar(image, ax=axes, label="norm of the row's gradient", pad=0.02)


def _name(stop: Result) -> str:
    role = {"copy": " (copy)", "sum": " (sum)"}.get(stop["role"], "")
    return f"{stop['node']}: {stop['op'].replace('linear_cross_entropy', 'head and loss')}{role}"


def _along(axes: Axes, tokens: Sequence[str]) -> None:
    """Names the positions along the lower edge."""
    if len(tokens) <= NAMED:
        axes.set_xticks(range(len(tokens)), tokens, parse_math=False)
    axes.set_xlabel("token")


def _triangle(figure: Figure, axes: Axes, stop: Result, tokens: Sequence[str]) -> None:
    """dS: red above 0, blue below; the future is no colour of the scale."""
    ds = np.array(stop["scores"]["ds"])
    future = np.triu(np.ones(ds.shape, bool), 1)
    largest = float(np.abs(ds).max()) or 1.0
    axes.set_facecolor(FUTURE)
    image = axes.imshow(np.ma.array(ds, mask=future), cmap="RdBu_r", norm=Normalize(-largest, largest))
    if len(tokens) <= NAMED:
        axes.set_yticks(range(len(tokens)), tokens, parse_math=False)
        axes.set_xticks(range(len(tokens)), tokens, parse_math=False)
    axes.set_ylabel("query")
    axes.set_xlabel("key")
    axes.set_title(
        f"dS of head {stop['scores']['head']} at stop {stop['stop']}, {stop['node']}\n(grey: the future, exactly 0)",
        color=INK, fontsize=10,
    )  # fmt: skip
    figure.colorbar(image, cax=axes.inset_axes((1.04, 0, 0.04, 1)), label="gradient of the score")
