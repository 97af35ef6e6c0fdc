"""An action as a word."""

from __future__ import annotations

import pytest

from fastbp.schedule.actions import Action, Backward, Forward, Free, Pack, Recompute, Reduce, Unpack, written


@pytest.mark.parametrize(
    ("action", "word"),
    [
        (Forward("blocks.0.qkv"), "F blocks.0.qkv"),
        (Recompute("blocks.0.qkv"), "R blocks.0.qkv"),
        (Backward("losses", (0, 96)), "B losses[0:96]"),
        (Forward("losses", (96, 192)), "F losses[96:192]"),
        (Backward("blocks.0.g", None, (("d:blocks.0.u", "d:blocks.0.g"),)), "B blocks.0.g"),
        (Reduce("d:final.x", "d:blocks.0.x+blocks.0.ln1"), "+ d:final.x"),
        (Pack("blocks.0.u", (0, 64), (("blocks.0.u", (0, 128)),)), "P blocks.0.u[0:64]"),
        (Unpack("blocks.0.u"), "U blocks.0.u"),
        (Free("blocks.0.p"), "- blocks.0.p"),
    ],
)
def test_words(action: Action, word: str) -> None:
    assert written(action) == word


def test_a_recompute_is_not_the_forward_that_it_repeats() -> None:
    assert Recompute("a") != Forward("a")
    assert isinstance(Recompute("a"), Forward)
