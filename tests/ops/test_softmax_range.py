"""Scores of any finite size give finite weights."""

from __future__ import annotations

import numpy as np
import pytest

from fastbp.ops.registry import OPS
from fastbp.run.apply import bind_op
from fastbp.run.runner import Runner


@pytest.mark.parametrize("backend", ["numba", "cython"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_huge_scores_give_weights_that_are_finite(backend: str, dtype: str) -> None:
    # One rounding of scale·s − m can leave the largest score far above 0: the exponential would overflow.
    s = (1e14 * np.random.default_rng(0).standard_normal((40, 40))).astype(dtype)
    p = np.full_like(s, np.nan)
    program = bind_op(
        OPS["softmax"],
        "forward",
        {"N": 40, "T": 40},
        {"s": s, "p": p},
        attributes={"scale": 0.1767767},
        backend=backend,
    )
    Runner(1).run(program)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-6)
