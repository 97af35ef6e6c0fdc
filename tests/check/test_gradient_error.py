"""The error of a lossy plan's gradients, against a hand count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fastbp.check.gradient_error import gradient_error
from fastbp.graph.config import DecoderConfig
from fastbp.run.decoder import Decoder

SEED = DecoderConfig.preset("seed")


def ready(*packed: str) -> Decoder:
    """All is kept, some tensors of every block as bfloat16."""
    plan = Decoder(SEED, 2, workers=1).plan
    names = frozenset(f"blocks.{i}.{name}" for i in range(SEED.blocks) for name in packed)
    decoder = Decoder(SEED, 2, plan=replace(plan, packed=names), workers=1)
    decoder.initialise(3)
    random = np.random.default_rng(3)
    for ids in (decoder.tokens, decoder.targets):
        ids[:] = random.integers(0, SEED.vocab, ids.shape)
    return decoder


def test_an_exact_plan_has_none() -> None:
    error = gradient_error(ready())
    assert (error.relative, error.worst_relative) == (0, 0)


def test_it_is_the_norm_of_the_difference_over_the_norm() -> None:
    lossy, exact = ready("u", "x"), ready()
    error = gradient_error(lossy)
    assert not lossy.gradients.flat.any()
    for each in (lossy, exact):
        each.forward_backward()
    apart = lossy.gradients.flat.astype(np.float64) - exact.gradients.flat
    assert error.relative == pytest.approx(np.linalg.norm(apart) / np.linalg.norm(exact.gradients.flat), rel=1e-6)
    shares = {
        name: float(np.linalg.norm(lossy.gradients[name] - values) / np.linalg.norm(values))
        for name, values in exact.gradients.items()
    }
    assert error.worst == max(shares, key=shares.__getitem__)
    assert error.worst_relative == pytest.approx(shares[error.worst], rel=1e-4)
    assert 0 < error.relative < error.worst_relative < 0.02


def test_more_that_is_packed_is_further_away() -> None:
    some, all_of_it = gradient_error(ready("u")), gradient_error(ready("x", "ln1", "qkv", "o", "mid", "ln2", "u", "g"))
    assert 0 < some.relative < all_of_it.relative < 0.02
