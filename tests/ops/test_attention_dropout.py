"""What is special about attention with dropout: p is saved as the softmax left it; M is that of absolute rows."""

from __future__ import annotations

import numpy as np
import pytest
from samples import BACKENDS, DTYPES, Sample
from trial import distance, outcome

from fastbp.base.dims import Dims
from fastbp.ops.attention_dropout import weight_factors

B, T, C, H = 2, 70, 22, 2
SIZES = {"B": B, "T": T, "C": C, "H": H}
SAMPLE = Sample("attention_dropout", Dims({**SIZES, "S": 5}), {"rate": 0.3, "place": 4.0})
PLAIN = Sample("attention", Dims(SIZES))
each_backend = pytest.mark.parametrize("backend", BACKENDS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


@each_backend
@each_dtype
def test_p_is_what_it_is_without_dropout(backend: str, dtype: str) -> None:
    qkv = SAMPLE.values["value", "qkv"]
    dropped, plain = (outcome(sample, "forward", backend, dtype, qkv=qkv) for sample in (SAMPLE, PLAIN))
    assert np.array_equal(dropped["p"], plain["p"])
    assert not np.array_equal(dropped["o"], plain["o"])


@each_backend
def test_the_mask_is_that_of_absolute_rows(backend: str) -> None:
    """V of ones makes an output row the sum of its weights times M."""
    qkv = np.array(SAMPLE.values["value", "qkv"])
    qkv[..., 2 * C :] = 1
    made = outcome(SAMPLE, "forward", backend, qkv=qkv)
    state = SAMPLE.values["value", "state"]
    known = SAMPLE.dims(0)
    every = weight_factors(_All(**{**known, "B": 5 + B, "S": 0}), state, np.dtype("float64"))
    expected = (made["p"] * every[5:]).sum(axis=-1).transpose(0, 2, 1)
    assert distance(made["o"].reshape(B, T, H, -1)[..., 0], expected) <= 1e-14


class _All:
    """Dimensions and attributes, as a kernel gets them."""

    rate, place = 0.3, 4.0

    def __init__(self, **sizes: int) -> None:
        self.__dict__.update(sizes)
