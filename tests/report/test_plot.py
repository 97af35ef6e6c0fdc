"""Pictures show what was trained and what was compared."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Annotation, Text

from fastbp.report.curves import training_panels, training_title
from fastbp.report.plot import memory_against_cost, memory_against_time, training_curves


def record(updates: int, every: int) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for update in range(updates + 1):
        if update:
            lines.append({
                "update": update, "loss": 4 / (1 + update) + 1, "learning_rate": 1e-3, "norm": 1.5, "seconds": 0.02,
                "tokens": 768, "update_ratio": {"all": 2e-3, "mlp": 1e-3},
            })  # fmt: skip
        if update % every == 0:
            lines.append({"update": update, "train_loss": 3 / (1 + update) + 1, "valid_loss": 3 / (1 + update) + 1.2})
    return lines


def picture(lines: list[dict[str, Any]], path: Path) -> np.ndarray:
    training_curves(training_panels(lines), training_title(lines), path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    return imread(path)[:, :, :3]


def near(image: np.ndarray, colour: str) -> np.ndarray:
    """Where the picture has a colour, "#rrggbb"."""
    wanted = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.abs(image - wanted).max(axis=-1) < 0.02


@pytest.mark.parametrize(
    "lines",
    [record(40, 10), record(1, 1), record(0, 1), [{"update": 1, "loss": 2.0}], [], record(20_000, 5_000)],
    ids=["a run", "one update", "no update", "no evaluation", "nothing", "a long run"],
)
def test_any_record_gives_a_picture(lines: list[dict[str, Any]], tmp_path: Path) -> None:
    image = picture(lines, tmp_path / "curves.png")
    assert image.shape[0] > 400
    assert image.shape[1] > 700
    assert image.std() > 0.02


def test_nothing_is_cut_off_at_the_edges(tmp_path: Path) -> None:
    image = picture(record(40, 10), tmp_path / "curves.png")
    for edge in (image[:4], image[-4:], image[:, :4], image[:, -4:]):
        assert (edge == 1).all()


def test_both_losses_are_drawn(tmp_path: Path) -> None:
    image = picture(record(40, 10), tmp_path / "curves.png")
    height, width, _ = image.shape
    image = image[: height // 2, : width // 2]
    training, validation = near(image, "#4477aa"), near(image, "#cc5533")
    assert training.sum() > 200
    assert validation.sum() > 200
    # The loss falls, and validation lies above training: rows count from the top.
    columns = validation.any(axis=0).nonzero()[0]
    first, last = columns[0], columns[len(columns) // 2]
    assert validation[:, first].nonzero()[0].min() < validation[:, last].nonzero()[0].min()


def test_panels_share_what_they_count(tmp_path: Path, figures: list[Figure]) -> None:
    picture(record(2, 1), tmp_path / "curves.png")
    assert figures[0].get_suptitle() == "Validation loss 2.200 after 2 updates"
    loss, rate, norm, speed, ratio = figures[0].axes
    for axes in figures[0].axes:
        assert all(tick == round(tick) for tick in axes.get_xticks())
    assert [text.get_text() for text in loss.get_legend().get_texts()] == ["one batch", "training", "validation"]
    assert rate.get_legend() is None
    assert [axes.get_yscale() for axes in figures[0].axes] == ["linear", "linear", "log", "linear", "log"]
    assert [axes.get_title() for axes in (loss, speed)] == ["Loss (nats a token)", "Tokens a second"]
    assert loss.get_position().width > 1.8 * norm.get_position().width
    lines = {line.get_label(): list(line.get_ydata()) for line in ratio.get_lines()}
    assert lines["all"] == [2e-3, 2e-3]


def test_a_logarithmic_panel_leaves_out_what_it_cannot_show(tmp_path: Path, figures: list[Figure]) -> None:
    lines = record(5, 1)
    lines[1]["norm"] = 0.0
    picture(lines, tmp_path / "curves.png")
    assert list(figures[0].axes[2].get_lines()[0].get_xdata()) == [2, 3, 4, 5]


CONTENDERS = {
    "fastbp save_all": (305, 674), "fastbp selective(layernorm)": (270, 676), "fastbp full": (80, 780),
    "fastbp sqrt": (140, 800), "torch eager": (303, 1097), "torch chunked": (303, 1105), "torch compile@1": (308, 1101),
    "jax scan-dots": (248, 1106),
}  # fmt: skip
"""MiB and milliseconds."""


def rows(contenders: dict[str, tuple[float, float]]) -> list[dict[str, Any]]:
    return [
        {"contender": name, "measured_peak_bytes": mib * 2**20, "median_seconds": ms / 1e3}
        for name, (mib, ms) in contenders.items()
    ]


def test_contenders_are_named_where_they_cover_nothing(tmp_path: Path, figures: list[Figure]) -> None:
    silent = {"contender": "torch silent", "measured_peak_bytes": None, "median_seconds": 1.0}
    memory_against_time([*rows(CONTENDERS), silent], "medium, batch 8", tmp_path / "policies.png")
    assert (tmp_path / "policies.png").read_bytes().startswith(b"\x89PNG")
    axes = figures[0].axes[0]
    assert (axes.get_xscale(), axes.get_title()) == ("log", "medium, batch 8")
    names = [child for child in axes.get_children() if isinstance(child, Annotation)]
    assert [each.get_text() for each in names] == [name.split(" ", 1)[1] for name in CONTENDERS]
    assert [tuple(each.xy) for each in names] == [pytest.approx(point) for point in CONTENDERS.values()]
    boxes = [Text.get_window_extent(each) for each in names]
    assert not any(box.overlaps(other) for i, box in enumerate(boxes) for other in boxes[:i])
    line = next(line for line in axes.get_lines() if line.get_linestyle() == "-")
    assert list(line.get_xdata()) == [80, 270, 305]


@pytest.mark.parametrize("contenders", [{}, {"jax unrolled": (3, 5)}], ids=["none", "one peer"])
def test_few_contenders_give_a_picture_too(tmp_path: Path, contenders: dict[str, tuple[float, float]]) -> None:
    memory_against_time(rows(contenders), "tiny", tmp_path / "policies.png")
    assert imread(tmp_path / "policies.png").std() > 0.02


COMPARED = {
    "optimal(2MiB)": (2.0, 30, 0.4), "optimal(4MiB)": (4.0, 22, 0.1), "optimal(30MiB)": (27.0, 20, 0.0),
    "full": (9.8, 25, 0.17), "save_all": (26.8, 20.1, 0.0), "selective(mlp)": (16.7, 22, 0.08),
}  # fmt: skip
"""Policy: MiB, milliseconds, share of extra FLOPs."""


def compared(policies: dict[str, tuple[float, float, float]]) -> list[dict[str, Any]]:
    return [
        {
            "policy": name,
            "peak_bytes_measured": mib * 2**20,
            "seconds": {"median": ms / 1e3},
            "extra_flops_share": share,
        }
        for name, (mib, ms, share) in policies.items()
    ]


def test_policies_and_the_planner_s_line(tmp_path: Path, figures: list[Figure]) -> None:
    rows = [*compared(COMPARED), {"policy": "optimal(1)", "failed": "too small"}]
    memory_against_cost(rows, "small, batch 12", tmp_path / "policies.png")
    assert (tmp_path / "policies.png").read_bytes().startswith(b"\x89PNG")
    assert figures[0].get_suptitle() == "small, batch 12"
    figures[0].draw_without_rendering()  # names move with the resolution, which was another for the file
    left, right = figures[0].axes
    assert len(left.get_legend().get_texts()) == 3
    for axes, costs in ((left, [30, 22, 20]), (right, [40, 10, 0])):
        assert axes.get_xscale() == "log"
        lines = {line.get_label(): line for line in axes.get_lines()}
        line, knee = lines["planner, by budget"], lines["knee of the planner's line"]
        assert list(line.get_xdata()) == [2, 4, 27]
        assert list(line.get_ydata()) == pytest.approx(costs)
        assert (list(knee.get_xdata()), list(knee.get_ydata())) == ([4], [pytest.approx(costs[1])])
        names = [child for child in axes.get_children() if isinstance(child, Annotation)]
        assert sorted(each.get_text() for each in names) == sorted(COMPARED)
        boxes = [Text.get_window_extent(each) for each in names]
        assert not any(box.overlaps(other) for i, box in enumerate(boxes) for other in boxes[:i])
        corners = axes.transData.transform(line.get_xydata())
        path = np.concatenate([np.linspace(a, b, 500) for a, b in pairwise(corners)])
        assert not any(box.contains(*place) for box in boxes for place in path), "a name lies on the line"


def test_budgets_along_the_line_are_named_at_its_ends_and_knee(tmp_path: Path, figures: list[Figure]) -> None:
    more = {f"optimal({i}MiB)": (i, 20 + 10 / i, 0.5 / i) for i in (1, 2, 3, 4, 8, 16)}
    memory_against_cost(compared(more), "tiny", tmp_path / "policies.png")
    named = [child.get_text() for child in figures[0].axes[0].get_children() if isinstance(child, Annotation)]
    assert named[0] == "optimal(1MiB)"
    assert named[-1] == "optimal(16MiB)"
    assert len(named) == 3


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_policies_give_a_picture_too(tmp_path: Path, count: int) -> None:
    memory_against_cost(compared(dict(list(COMPARED.items())[:count])), "tiny", tmp_path / "policies.png")
    assert imread(tmp_path / "policies.png").std() > 0.02
