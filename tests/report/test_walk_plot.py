"""The picture of a walk: norms in logarithmic colour, dS below its diagonal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.image import imread

from fastbp.report.walk import walk
from fastbp.report.walk_plot import walk_plot


def test_rows_by_stop_and_position(tmp_path: Path, figures: list[Figure]) -> None:
    result = walk().to_json(head=1)
    walk_plot(result, tmp_path / "walk.png")
    assert (tmp_path / "walk.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    norms, scores, last = (axes for axes in figures[0].axes if axes.images)
    assert "at stop 23" in last.get_title()
    image = norms.images[0]
    assert isinstance(image.norm, LogNorm)
    np.testing.assert_array_equal(image.get_array(), [stop["rows"] for stop in result["stops"]])
    assert [text.get_text() for text in norms.get_xticklabels()] == ["a", "l", "i", "c", "e", "␣", "w", "a"]
    assert norms.get_yticklabels()[26].get_text() == "27  blocks.0.x: embedding"
    assert "head 1 at stop 11" in scores.get_title()
    drawn = scores.images[0].get_array()
    np.testing.assert_array_equal(np.ma.getmaskarray(drawn), np.triu(np.ones((8, 8), bool), 1))
    np.testing.assert_array_equal(np.tril(drawn.data), result["stops"][10]["scores"]["ds"])


def test_nothing_is_cut_off_and_no_names_overlap(tmp_path: Path, figures: list[Figure]) -> None:
    walk_plot(walk().to_json(), tmp_path / "walk.png")
    image = imread(tmp_path / "walk.png")[:, :, :3]
    for edge in (image[:4], image[-4:], image[:, :4], image[:, -4:]):
        assert (edge == 1).all()
    figures[0].draw_without_rendering()
    for axes in figures[0].axes:
        for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
            boxes = [label.get_window_extent() for label in labels if label.get_visible() and label.get_text()]
            assert not any(box.overlaps(other) for i, box in enumerate(boxes) for other in boxes[:i])


def test_tokens_are_no_formulas_and_may_be_in_any_script(tmp_path: Path, figures: list[Figure]) -> None:
    result = walk("$a_b$").to_json() | {"tokens": ["$a$", "漢", "\\frac", "^"]}
    walk_plot(result, tmp_path / "walk.png")
    assert not figures[0].axes[0].get_xticklabels()[0].get_parse_math()
    assert "$a$漢" in figures[0].get_suptitle()


@pytest.mark.parametrize("text", ["ab", "x" * 129])
@pytest.mark.parametrize("block", [None, 0])
def test_windows_of_any_length_give_a_picture(tmp_path: Path, text: str, block: int | None) -> None:
    walk_plot(walk(text).to_json(block), tmp_path / "walk.png")
    assert imread(tmp_path / "walk.png").std() > 0.02
