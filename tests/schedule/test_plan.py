"""A plan is a value, and the head's rows are as many as the logits' limit allows."""

from __future__ import annotations

import pytest

from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.graph.graph import Graph
from fastbp.schedule.plan import LOGITS_BYTES, Plan, head_rows


def graph(rows: int, vocab: int, dtype: str = "float32") -> Graph:
    return decoder_graph(DecoderConfig(1, 4, 1, 4, rows, vocab), 1, dtype=dtype)


def test_a_small_head_runs_all_rows_at_once() -> None:
    assert head_rows(graph(8, 100)) == 8


@pytest.mark.parametrize(
    ("limit", "rows"),
    [
        (40_000, 100),  # all 100 rows of 100 float32 fit exactly
        (39_999, 64),  # one byte less: two slices, as even as whole vectors can be, and not 99 and 1
        (13_600, 34),  # 34 fit: three slices of 34, 34, 32, since 48 do not
        (13_599, 32),  # 33 fit, which takes four slices: 32, 32, 32, 4, and 25 each would be as many vectors
        (400, 1),
        (399, 1),  # a row that does not fit runs all the same
    ],
)
def test_slices_fit_the_limit_and_are_even(limit: int, rows: int) -> None:
    assert head_rows(graph(100, 100), limit) == rows


def test_float64_takes_twice_the_bytes() -> None:
    assert head_rows(graph(100, 100, "float64"), 40_000) == 50


def test_gpt2_is_cut_by_the_default_limit() -> None:
    rows = head_rows(decoder_graph(DecoderConfig.preset("gpt2"), 1))
    assert 1 < rows < 1024
    assert rows * 50257 * 4 <= LOGITS_BYTES < (rows + 1024 // 7) * 50257 * 4


def test_keeping_more_leaves_the_rest_alone() -> None:
    plan = Plan("full", frozenset({"a"}), 7)
    assert plan.keeping(frozenset({"b"})) == Plan("full", frozenset({"a", "b"}), 7)
    assert plan.keep == {"a"}
