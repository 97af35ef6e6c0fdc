"""What a run came to, for people; its JSON is tested with the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastbp.report.training import training_lines

RESULT: dict[str, Any] = {
    "updates": 2000, "train_loss": 1.23456, "valid_loss": 1.5, "tokens_per_second": 123456.7,
    "seconds_per_update": {"median": 0.00622, "min": 0.006, "max": 0.01}, "flops_per_update": 3_110_000_000,
    "peak_bytes_predicted": 30477312, "peak_bytes_measured": 30477312, "rss_peak_bytes": 200 << 20,
    "policy": "selective(layernorm, gelu, core_attn, mlp)", "backend": "numba", "workers": 2,
    "snapshot": "runs/1/snapshot-00002000",
}  # fmt: skip


def test_the_lines() -> None:
    lines = training_lines(RESULT, Path("runs/1/curves.png"), shared=False)
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    for part in (
        "training loss    1.2346", "validation loss  1.5000\n", "123,457 tokens/s, 6.22 ms an update, 500 GFLOP/s",
        "29.1 MiB: 30477312 bytes of activations predicted, 30477312", "2 of ", "200.0 MiB resident",
        "curves           runs/1/curves.png",
    ):  # fmt: skip
        assert part in text


def test_a_picture_that_was_not_drawn_is_not_named() -> None:
    assert "curves" not in "\n".join(training_lines(RESULT, None, shared=False))


def test_a_shared_text_is_said_to_be() -> None:
    assert "on the training text" in "\n".join(training_lines(RESULT, Path("x"), shared=True))


def test_a_run_that_was_over_has_no_speed() -> None:
    nothing = {"tokens_per_second": None, "seconds_per_update": None, "peak_bytes_measured": None}
    text = "\n".join(training_lines(RESULT | nothing, Path("x"), shared=False))
    assert "None" not in text
    assert "tokens/s" not in text
