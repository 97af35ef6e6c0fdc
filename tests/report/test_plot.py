"""The loss curve is a picture that shows what was trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Annotation, Text

from fastbp.report.plot import loss_curve, memory_against_time


def record(updates: int, every: int) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for update in range(updates + 1):
        if update:
            lines.append({"update": update, "loss": 4 / (1 + update) + 1})
        if update % every == 0:
            lines.append({"update": update, "train_loss": 3 / (1 + update) + 1, "valid_loss": 3 / (1 + update) + 1.2})
    return lines


def picture(lines: list[dict[str, Any]], path: Path) -> np.ndarray:
    loss_curve(lines, path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    return imread(path)[:, :, :3]


def near(image: np.ndarray, colour: str) -> np.ndarray:
    """Where the picture has a colour, "#rrggbb"."""
    wanted = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.abs(image - wanted).max(axis=-1) < 0.02


@pytest.mark.parametrize(
    "lines",
    [record(40, 10), record(1, 1), record(0, 1), [{"update": 1, "loss": 2.0}], [], record(100_000, 25_000)],
    ids=["a run", "one update", "no update", "no evaluation", "nothing", "a long run"],
)
def test_any_record_gives_a_picture(lines: list[dict[str, Any]], tmp_path: Path) -> None:
    image = picture(lines, tmp_path / "loss.png")
    assert image.shape[0] > 400
    assert image.shape[1] > 700
    assert image.std() > 0.02


def test_nothing_is_cut_off_at_the_edges(tmp_path: Path) -> None:
    image = picture(record(40, 10), tmp_path / "loss.png")
    for edge in (image[:4], image[-4:], image[:, :4], image[:, -4:]):
        assert (edge == 1).all()


def test_both_losses_are_drawn(tmp_path: Path) -> None:
    image = picture(record(40, 10), tmp_path / "loss.png")
    training, validation = near(image, "#4477aa"), near(image, "#cc5533")
    assert training.sum() > 500
    assert validation.sum() > 500
    # The loss falls, and validation lies above training: rows count from the top.
    columns = validation.any(axis=0).nonzero()[0]
    first, last = columns[0], columns[len(columns) // 2]
    assert validation[:, first].nonzero()[0].min() < validation[:, last].nonzero()[0].min()


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that a test saves."""
    found: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *arguments: Any, **options: Any) -> None:
        found.append(figure)
        save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return found


def test_updates_are_whole_numbers(tmp_path: Path, figures: list[Figure]) -> None:
    loss_curve(record(2, 1), tmp_path / "loss.png")
    axes = figures[0].axes[0]
    assert all(tick == round(tick) for tick in axes.get_xticks())
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["one batch", "training", "validation"]
    assert axes.get_title() == "Validation loss 2.200 after 2 updates"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("update", "cross-entropy (nats a token)")


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
