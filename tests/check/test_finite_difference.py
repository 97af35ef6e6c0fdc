from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fastbp.check.finite_difference import ERROR_LIMIT, WEIGHTS, chosen, derivative, finite_difference
from fastbp.check.seed_window import gradients_of, seed_decoder, spread_vectors
from fastbp.ops.registry import OPS
from fastbp.run.decoder import Decoder

BACKENDS = pytest.mark.parametrize("backend", ["numpy", "numba", "cython"])


def prepared(backend: str = "numpy", seed: int = 0) -> Decoder:
    decoder = seed_decoder(backend, seed)
    spread_vectors(decoder, seed)
    return decoder


@BACKENDS
@pytest.mark.parametrize("seed", [0, 1])
def test_552_weights_far_within_the_limit(backend: str, seed: int) -> None:
    decoder = prepared(backend, seed)
    found = finite_difference(decoder, gradients_of(decoder), seed)
    assert found.weights == WEIGHTS
    assert found.max_error <= ERROR_LIMIT / 20


def test_which_weights_follows_from_seed_and_name() -> None:
    assert chosen(0, "wte", 1024) == chosen(0, "wte", 1024)
    assert chosen(0, "wte", 1024) != chosen(1, "wte", 1024)
    assert chosen(0, "wte", 1024) != chosen(0, "wpe", 1024)
    assert len(set(chosen(0, "wte", 1024))) == 24
    assert chosen(0, "final.ln.bias", 16) == list(range(16))


def test_every_tensor_is_tried_in_24_weights_or_in_all() -> None:
    sizes = [values.size for values in seed_decoder("numpy").parameters.values()]
    assert sum(min(24, size) for size in sizes) == WEIGHTS == 552


def test_derivative_weighs_the_rows() -> None:
    rows = np.array([[0.25, 0.75]])
    found = derivative(lambda v: np.array([[math.sin(v), v**3]]), rows, 0.7)
    assert found == pytest.approx(0.25 * math.cos(0.7) + 0.75 * 3 * 0.49, abs=1e-12)


def test_derivative_of_a_quartic_has_no_error_of_third_or_fourth_order() -> None:
    """The two-point rule is off by h² L‴/6 = 2e-6 here."""
    found = derivative(lambda v: np.array([[v**4 + 2 * v**3]]), np.ones((1, 1)), 0.0)
    assert abs(found) < 1e-15


def test_derivative_divides_by_what_the_value_moved() -> None:
    """1e12 ± 2⁻¹⁰ rounds to steps of 1.2e-4: dividing by the step asked for would be off by a part in 17."""
    offset = 1e12 + 0.00005
    found = derivative(lambda v: np.array([[v - offset]]), np.ones((1, 1)), offset)
    assert found == pytest.approx(1, abs=1e-12)


def test_an_array_that_is_reused_does_not_spoil_the_difference() -> None:
    losses = np.zeros((1, 1))

    def reused(v: float) -> np.ndarray:
        losses[:] = 3 * v
        return losses

    assert derivative(reused, np.ones((1, 1)), 0.5) == pytest.approx(3, abs=1e-12)


@BACKENDS
def test_weights_come_back_to_the_bit(backend: str) -> None:
    decoder = prepared(backend)
    before = decoder.parameters.flat.copy()
    finite_difference(decoder, gradients_of(decoder), 0)
    assert decoder.parameters.flat.tobytes() == before.tobytes()


def test_a_weight_comes_back_when_the_run_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = prepared()
    before, gradients = decoder.parameters.flat.copy(), gradients_of(decoder)

    def stop() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(decoder, "evaluate", stop)
    with pytest.raises(KeyboardInterrupt):
        finite_difference(decoder, gradients, 0)
    assert decoder.parameters.flat.tobytes() == before.tobytes()


@pytest.mark.parametrize("amount", [2e-10, np.nan])
def test_one_wrong_element_is_found_and_named(amount: float) -> None:
    decoder = prepared()
    gradients = gradients_of(decoder)
    index = chosen(0, "blocks.1.mlp.w1", 512)[5]
    gradients["blocks.1.mlp.w1"].flat[index] += amount
    found = finite_difference(decoder, gradients, 0)
    assert not found.max_error <= ERROR_LIMIT
    assert found.worst == f"blocks.1.mlp.w1[{index}]"


@pytest.mark.parametrize("name", ["blocks.0.attn.wq", "blocks.1.attn.wo"])
def test_a_square_gradient_that_lies_transposed_is_found(name: str) -> None:
    decoder = prepared()
    gradients = gradients_of(decoder)
    gradients[name] = gradients[name].T.copy()
    assert finite_difference(decoder, gradients, 0).max_error > ERROR_LIMIT


def without_weight(d: Any, dy: Any, x: Any, weight: Any, *rest: Any) -> None:
    """LayerNorm's backward with g = dy instead of dy ∘ weight."""
    OPS_LAYERNORM.backward(d, dy, x, np.ones_like(weight), *rest)  # type: ignore[misc]


OPS_LAYERNORM = OPS["layernorm"]


def test_a_layernorm_that_forgets_its_weight_shows_only_off_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, "layernorm", replace(OPS_LAYERNORM, backward=without_weight))
    plain = seed_decoder("numpy")
    assert finite_difference(plain, gradients_of(plain), 0).max_error <= ERROR_LIMIT
    spread = prepared()
    assert finite_difference(spread, gradients_of(spread), 0).max_error > 1000 * ERROR_LIMIT
