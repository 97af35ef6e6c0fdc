"""What is special about attention: nothing from the future, from another head or from another sequence."""

from __future__ import annotations

import numpy as np
import pytest
from samples import BACKENDS, DTYPES, Sample
from trial import distance, outcome

from fastbp.base.dims import Dims

pytestmark = [pytest.mark.parametrize("backend", BACKENDS), pytest.mark.parametrize("dtype", DTYPES)]
B, T, C, H = 2, 70, 22, 2
SAMPLE = Sample("attention", Dims({"B": B, "T": T, "C": C, "H": H}))
QKV, DO = SAMPLE.values["value", "qkv"], SAMPLE.values["gradient", "o"]


def test_weights_are_shares_of_the_past(backend: str, dtype: str, tolerance: dict[str, float]) -> None:
    p = outcome(SAMPLE, "forward", backend, dtype)["p"]
    future = np.triu(np.ones((T, T), bool), 1)
    assert (p[..., future] == 0).all()
    assert (p[..., ~future] > 0).all()
    assert distance(p.sum(axis=-1), np.ones((B, H, T))) <= tolerance[dtype]


def test_the_first_token_attends_to_itself(backend: str, dtype: str) -> None:
    made = outcome(SAMPLE, "forward", backend, dtype)
    assert np.array_equal(made["o"][:, 0], QKV[:, 0, 2 * C :].astype(dtype))


@pytest.mark.parametrize("t", [1, 63, 64, 69])
def test_a_token_changes_nothing_before_it(backend: str, dtype: str, t: int) -> None:
    changed = QKV.copy()
    changed[:, t:] += 1
    before, after = (outcome(SAMPLE, "forward", backend, dtype, qkv=qkv) for qkv in (QKV, changed))
    assert np.array_equal(before["o"][:, :t], after["o"][:, :t])
    assert np.array_equal(before["p"][:, :, :t], after["p"][:, :, :t])
    assert not np.array_equal(before["o"][:, t], after["o"][:, t])


@pytest.mark.parametrize("t", [0, 63, 64])
def test_gradients_reach_no_later_token(backend: str, dtype: str, t: int) -> None:
    do = np.zeros_like(DO)
    do[:, t] = DO[:, t]
    dqkv = outcome(SAMPLE, "backward", backend, dtype, do=do)["dqkv"]
    assert (dqkv[:, t + 1 :] == 0).all()
    assert (dqkv[:, : t + 1, 2 * C :] != 0).all()


def test_heads_and_sequences_do_not_mix(backend: str, dtype: str) -> None:
    do, D = np.zeros_like(DO), C // H
    do[1, :, :D] = DO[1, :, :D]
    dqkv = outcome(SAMPLE, "backward", backend, dtype, do=do)["dqkv"].reshape(B, T, 3, H, D)
    assert (dqkv[0] == 0).all()
    assert (dqkv[1, :, :, 1] == 0).all()
    assert (dqkv[1, :, 2, 0] != 0).all()


def test_weights_are_the_softmax_of_scaled_scores(backend: str, dtype: str, tolerance: dict[str, float]) -> None:
    q, k, _ = QKV.reshape(B, T, 3, H, -1).transpose(2, 0, 3, 1, 4)
    softmax = Sample("softmax", Dims({"N": B * H * T, "T": T}), {"scale": (C // H) ** -0.5})
    expected = outcome(softmax, "forward", "numpy", s=(q @ k.swapaxes(-1, -2)).reshape(-1, T))["p"]
    made = outcome(SAMPLE, "forward", backend, dtype)
    assert distance(made["p"].reshape(-1, T), expected) <= tolerance[dtype]
