"""What is special about tiled attention: the same as attention, with one number saved a head and token."""

from __future__ import annotations

import numpy as np
import pytest
from samples import BACKENDS, DTYPES, Sample
from trial import distance, outcome

from fastbp.base.dims import Dims

pytestmark = [pytest.mark.parametrize("backend", BACKENDS), pytest.mark.parametrize("dtype", DTYPES)]
B, T, C, H = 2, 70, 22, 2
SIZES = Dims({"B": B, "T": T, "C": C, "H": H})
SAMPLE, WHOLE = Sample("tiled_attention", SIZES), Sample("attention", SIZES)
QKV, DO = SAMPLE.values["value", "qkv"], SAMPLE.values["gradient", "o"]


def test_it_is_attention(backend: str, dtype: str, tolerance: dict[str, float]) -> None:
    tiled, whole = (outcome(sample, "forward", backend, dtype, qkv=QKV) for sample in (SAMPLE, WHOLE))
    assert distance(tiled["o"], whole["o"]) <= tolerance[dtype]


def test_what_is_saved_is_the_logarithm_of_the_sum(backend: str, dtype: str, tolerance: dict[str, float]) -> None:
    q, k, _ = QKV.reshape(B, T, 3, H, -1).transpose(2, 0, 3, 1, 4)
    scores = np.where(np.tri(T, dtype=bool), q @ k.swapaxes(-1, -2) / np.sqrt(C / H), -np.inf)
    expected = np.log(np.exp(scores).sum(axis=-1))
    assert distance(outcome(SAMPLE, "forward", backend, dtype)["lse"], expected) <= tolerance[dtype]


@pytest.mark.parametrize("t", [1, 63, 64, 69])
def test_a_token_changes_nothing_before_it(backend: str, dtype: str, t: int) -> None:
    changed = QKV.copy()
    changed[:, t:] += 1
    before, after = (outcome(SAMPLE, "forward", backend, dtype, qkv=qkv) for qkv in (QKV, changed))
    assert np.array_equal(before["o"][:, :t], after["o"][:, :t])
    assert np.array_equal(before["lse"][..., :t], after["lse"][..., :t])
    assert not np.array_equal(before["o"][:, t], after["o"][:, t])


@pytest.mark.parametrize("t", [0, 63, 64])
def test_gradients_reach_no_later_token(backend: str, dtype: str, t: int) -> None:
    do = np.zeros_like(DO)
    do[:, t] = DO[:, t]
    dqkv = outcome(SAMPLE, "backward", backend, dtype, do=do)["dqkv"]
    assert (dqkv[:, t + 1 :] == 0).all()
    assert (dqkv[:, : t + 1, 2 * C :] != 0).all()
