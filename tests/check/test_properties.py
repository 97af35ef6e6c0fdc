from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fastbp.check.against_torch import torch_twin
from fastbp.check.properties import (
    LINEAR_LIMIT,
    PROJECTION_LIMIT,
    RESIDUAL_LIMIT,
    future_scores,
    layernorm_projection,
    residual_copies,
    seed_linear,
)
from fastbp.check.seed_window import gradients_of, seed_decoder
from fastbp.ops.registry import OPS

BACKENDS = pytest.mark.parametrize("backend", ["numpy", "numba", "cython"])

SOFTMAX, ATTENTION, LAYERNORM, RESIDUAL, LINEAR = (
    OPS[name] for name in ("softmax", "attention", "layernorm", "residual", "linear")
)

Plant = Callable[..., None]


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Replaces parts of an op's declaration, for the NumPy backend."""

    def change(op: str, **changes: Any) -> None:
        monkeypatch.setitem(OPS, op, replace(OPS[op], **changes))

    return change


@BACKENDS
def test_future_scores_are_exactly_0_and_others_are_not(backend: str) -> None:
    found = future_scores(seed_decoder(backend), 0)
    assert found.max_abs == 0
    assert found.past_max_abs > 1e-3


def test_a_softmax_that_leaks_the_least_is_found(plant: Plant) -> None:
    def leaks(d: Any, dp: Any, p: Any, ds: Any) -> None:
        SOFTMAX.backward(d, dp, p, ds)  # type: ignore[misc]
        ds[3, -1] += 1e-300

    plant("softmax", backward=leaks)
    assert future_scores(seed_decoder("numpy"), 0).max_abs == 1e-300


def test_a_softmax_without_a_mask_is_found(plant: Plant) -> None:
    def unmasked(d: Any, s: Any, p: Any) -> None:
        np.exp(s * d.scale, out=p)
        p /= p.sum(axis=1, keepdims=True)

    plant("softmax", forward=unmasked)
    assert future_scores(seed_decoder("numpy"), 0).max_abs > 1e-3


def test_a_softmax_kernel_that_writes_nothing_leaves_nan(plant: Plant) -> None:
    plant("softmax", backward=lambda *arguments: None)
    assert np.isnan(future_scores(seed_decoder("numpy"), 0).max_abs)


def test_a_softmax_whose_gradient_is_0_everywhere_shows(plant: Plant) -> None:
    def nothing(d: Any, dp: Any, p: Any, ds: Any) -> None:
        ds[:] = 0

    plant("softmax", backward=nothing)
    assert future_scores(seed_decoder("numpy"), 0).past_max_abs == 0


def test_an_attention_kernel_that_leaks_is_found(plant: Plant) -> None:
    def leaks(d: Any, do: Any, qkv: Any, p: Any, dqkv: Any) -> None:
        ATTENTION.backward(d, do, qkv, p + 1e-20, dqkv)  # type: ignore[misc]

    plant("attention", backward=leaks)
    assert future_scores(seed_decoder("numpy"), 0).max_abs > 0


@BACKENDS
@pytest.mark.parametrize("seed", [0, 1])
def test_layernorm_dx_is_orthogonal(backend: str, seed: int) -> None:
    found = layernorm_projection(seed_decoder(backend), seed)
    assert found.ones <= PROJECTION_LIMIT
    assert found.x_hat <= PROJECTION_LIMIT


@pytest.mark.parametrize(("keep_mean", "keep_x_hat"), [(False, False), (True, False), (False, True)])
def test_a_layernorm_without_a_projection_is_found(keep_mean: bool, keep_x_hat: bool, plant: Plant) -> None:
    def partial(d: Any, dy: Any, x: Any, weight: Any, mean: Any, rstd: Any, dx: Any, dweight: Any, dbias: Any) -> None:
        x_hat, g = (x - mean[:, None]) * rstd[:, None], dy * weight
        dx[:] = g
        if keep_mean:
            dx -= g.mean(axis=1, keepdims=True)
        if keep_x_hat:
            dx -= x_hat * (g * x_hat).mean(axis=1, keepdims=True)
        dx *= rstd[:, None]

    plant("layernorm", backward=partial)
    found = layernorm_projection(seed_decoder("numpy"), 0)
    assert (found.ones <= PROJECTION_LIMIT) == keep_mean
    assert (found.x_hat <= PROJECTION_LIMIT) == keep_x_hat


def test_a_layernorm_whose_dx_is_0_is_no_projection(plant: Plant) -> None:
    plant("layernorm", backward=lambda d, dy, x, weight, mean, rstd, dx, *rest: dx.fill(0))
    assert np.isnan(layernorm_projection(seed_decoder("numpy"), 0).ones)


@BACKENDS
def test_both_copies_of_every_residual_are_the_buffer_of_dy(backend: str) -> None:
    found = residual_copies(seed_decoder(backend), 0)
    assert (found.nodes, found.shared) == (4, 4)
    assert found.max_error <= RESIDUAL_LIMIT / 20


def test_a_residual_that_doubles_one_input_is_found(plant: Plant) -> None:
    def doubles(d: Any, x: Any, f: Any, y: Any) -> None:
        np.add(x, 2 * f, out=y)

    plant("residual", forward=doubles)
    assert residual_copies(seed_decoder("numpy"), 0).max_error > 1e-4


def test_a_wrong_gradient_in_the_stream_is_found(plant: Plant) -> None:
    def late(*arguments: Any) -> None:
        LAYERNORM.backward(*arguments)  # type: ignore[misc]
        arguments[6][...] += 1e-9

    plant("layernorm", backward=late)
    assert residual_copies(seed_decoder("numpy"), 0).max_error > RESIDUAL_LIMIT


def test_a_residual_with_copies_of_its_own_shares_nothing(plant: Plant) -> None:
    def copies(d: Any, dy: Any, dx: Any, df: Any) -> None:
        dx[:], df[:] = dy, dy

    plant("residual", backward=copies, passes_gradient=())
    assert residual_copies(seed_decoder("numpy"), 0).shared == 0


@BACKENDS
def test_the_residual_check_leaves_gradients_and_losses_as_they_were(backend: str) -> None:
    decoder = seed_decoder(backend)
    before = gradients_of(decoder)
    residual_copies(decoder, 0)
    for name, values in gradients_of(decoder).items():
        assert values.tobytes() == before[name].tobytes(), name


@BACKENDS
@pytest.mark.parametrize("seed", [0, 1])
def test_the_linear_op_agrees_with_torch(backend: str, seed: int) -> None:
    pytest.importorskip("torch")
    found = seed_linear(seed_decoder(backend), seed, torch_twin())
    assert found.against == "torch.nn.Linear"
    assert found.dx_max_error <= LINEAR_LIMIT
    assert found.dw_max_error <= LINEAR_LIMIT


@BACKENDS
def test_the_linear_op_agrees_with_exact_fractions(backend: str) -> None:
    found = seed_linear(seed_decoder(backend), 0, None)
    assert found.against == "exact fractions"
    assert found.dx_max_error <= LINEAR_LIMIT
    assert found.dw_max_error <= LINEAR_LIMIT


@pytest.mark.parametrize(("what", "factor"), [("dx", 1 + 1e-12), ("dw", 1 + 1e-12), ("dw", np.nan)])
def test_a_wrong_linear_gradient_is_found(what: str, factor: float, plant: Plant) -> None:
    def wrong(d: Any, dy: Any, x: Any, weight: Any, dx: Any, dweight: Any, dbias: Any) -> None:
        LINEAR.backward(d, dy, x, weight, dx, dweight, dbias)  # type: ignore[misc]
        scaled = dx if what == "dx" else dweight
        scaled *= factor

    plant("linear", backward=wrong)
    found = seed_linear(seed_decoder("numpy"), 0, None)
    assert (found.dx_max_error <= LINEAR_LIMIT) == (what != "dx")
    assert (found.dw_max_error <= LINEAR_LIMIT) == (what != "dw")
