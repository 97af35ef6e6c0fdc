"""The loss curve is a picture that shows what was trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from fastbp.report.plot import loss_curve


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


def test_updates_are_whole_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    figures: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *arguments: Any, **options: Any) -> None:
        figures.append(figure)
        save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    loss_curve(record(2, 1), tmp_path / "loss.png")
    axes = figures[0].axes[0]
    assert all(tick == round(tick) for tick in axes.get_xticks())
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["one batch", "training", "validation"]
    assert axes.get_title() == "Validation loss 2.200 after 2 updates"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("update", "cross-entropy (nats a token)")
