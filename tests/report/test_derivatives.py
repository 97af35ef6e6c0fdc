"""Every op of a decoder has its derivative in words and as a formula."""

from __future__ import annotations

from itertools import product

from fastbp.graph.config import ATTENTIONS, GELUS, POSITIONS, DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.ops.registry import OPS
from fastbp.report.columns import WIDTH
from fastbp.report.derivatives import DERIVATIVES, SUM
from fastbp.report.walk_lines import INDENT

NO_NODE = {"adamw", "pack", "unpack", "softmax"}
"""Ops that no decoder's graph has: the optimiser, a schedule's conversions, and what attention is made of."""


def op_names() -> set[str]:
    """The ops of every kind of decoder."""
    kinds = product(POSITIONS, ATTENTIONS, GELUS, (True, False), (0.0, 0.1))
    configs = [
        DecoderConfig(2, 8, 2, 16, 4, 10, positions, attention_bias=bias, gelu=gelu, attention=attention, dropout=rate)
        for positions, attention, gelu, bias, rate in kinds
    ]
    return {node.op_name for config in configs for node in decoder_graph(config, 1).nodes}


def test_every_op_that_a_decoder_can_have_is_there_and_no_other() -> None:
    assert set(DERIVATIVES) == op_names() == set(OPS) - NO_NODE


def test_formulas_are_lines_of_a_terminal_and_words_are_sentences() -> None:
    for name, derivative in {**DERIVATIVES, "sum": SUM}.items():
        assert all(0 < len(line) <= WIDTH - INDENT for line in derivative.formula), name
        assert derivative.words.endswith("."), name
        assert "  " not in derivative.words, name


def test_every_gradient_that_an_op_makes_is_in_its_formula() -> None:
    """Inputs and weights are written with letters of their own: "dx", "dW"; their number is what the op declares."""
    for name, derivative in DERIVATIVES.items():
        text = " ".join(derivative.formula)
        assert ("+=" in text) == bool(OPS[name].params), name
        assert "d" in text.partition("=")[2], name
