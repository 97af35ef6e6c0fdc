"""dS: lower triangular, autograd's, and what the program's own dQ and dK are made of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fastbp.check.seed_window import seed_decoder, spread_vectors
from fastbp.graph.config import DecoderConfig
from fastbp.report.scores import Scores, scores_of
from fastbp.run.decoder import Decoder
from fastbp.run.recorded import record
from tests.report.test_stops import torch_gradients


def all_scores(decoder: Decoder) -> list[Scores]:
    found = record(decoder)
    nodes = [node for node in decoder.graph.nodes if "attention" in node.op_name]
    return [scores_of(node, found, decoder.dropout_state) for node in nodes]


def drawn(attention: str, dropout: float, dtype: str) -> Decoder:
    config = DecoderConfig.preset("seed", attention=attention, dropout=dropout, context=20)
    decoder = Decoder(config, 1, dtype=dtype, workers=1)
    random = np.random.default_rng(2)
    for name, values in decoder.parameters.items():
        values[...] = 0.4 * random.standard_normal(values.shape) + name.endswith(("ln1.weight", "ln2.weight"))
    for ids in (decoder.tokens, decoder.targets):
        ids[:] = random.integers(0, config.vocab, ids.shape)
    decoder.choose_masks(3, 0)
    return decoder


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("attention", ["materialised", "tiled"])
@pytest.mark.parametrize(("dtype", "limit"), [("float64", 1e-13), ("float32", 1e-5)])
def test_dq_and_dk_of_the_program_are_made_of_it(attention: str, dropout: float, dtype: str, limit: float) -> None:
    found = all_scores(drawn(attention, dropout, dtype))
    assert len(found) == 2
    for scores in found:
        assert scores.gradient.shape == scores.weights.shape == (2, 20, 20)
        assert scores.disagreement < limit


@pytest.mark.parametrize("attention", ["materialised", "tiled"])
def test_the_future_gets_exactly_nothing(attention: str) -> None:
    future = np.triu(np.ones((20, 20), bool), 1)
    for scores in all_scores(drawn(attention, 0.0, "float64")):
        assert (scores.gradient[:, future] == 0).all()
        past = scores.gradient[:, ~future].reshape(2, -1)
        assert (past != 0).sum() >= 2 * (20 * 21 // 2 - 1)  # the first query has one key, and nothing to choose
        np.testing.assert_allclose(scores.gradient.sum(axis=-1), 0, atol=1e-15)
        np.testing.assert_allclose(scores.weights.sum(axis=-1), 1)


def test_it_is_autograd_s() -> None:
    decoder = seed_decoder()
    spread_vectors(decoder, 0)
    expected = torch_gradients(decoder)
    for block, scores in enumerate(all_scores(decoder)):
        ds = expected[f"blocks.{block}.s"]
        np.testing.assert_allclose(scores.gradient, ds, rtol=0, atol=1e-12 * np.abs(ds).max())


def test_another_dq_would_be_noticed() -> None:
    decoder = drawn("materialised", 0.0, "float64")
    found, node = record(decoder), decoder.graph.by_name["blocks.1.o"]
    for sample in (0, 17):  # in dQ, in dK
        other = replace(found, arrays={**found.arrays, "d:blocks.1.qkv": found.arrays["d:blocks.1.qkv"].copy()})
        other.arrays["d:blocks.1.qkv"][5, sample] *= 1.001
        assert scores_of(node, other, decoder.dropout_state).disagreement > 1e-6


def test_a_window_of_one_token_has_nothing_to_choose() -> None:
    for scores in all_scores(seed_decoder(text="ab")):
        assert scores.gradient.tolist() == [[[0.0]], [[0.0]]]
        assert scores.disagreement == 0
