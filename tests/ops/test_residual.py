"""What is special about the residual: it also adds gradients, over its first input."""

from __future__ import annotations

import numpy as np
import pytest
from samples import BACKENDS, DTYPES, Sample
from trial import Trial

from fastbp.base.dims import Dims

SAMPLE = Sample("residual", Dims({"N": 1, "C": 77}))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("workers", [1, 3])
def test_the_sum_may_lie_over_either_input(backend: str, dtype: str, workers: int) -> None:
    """Over f it is the stream's sum, over x a gradient that a part is added to."""
    expected = sum(SAMPLE.values["value", port].astype(dtype) for port in ("x", "f"))
    for over in ("x", "f"):
        trial = Trial(SAMPLE, "forward", backend, dtype, workers=workers)
        trial.arrays["value", "y"] = trial.arrays["value", over]
        trial.run()
        assert np.array_equal(trial.arrays["value", over], expected), over
        other = "f" if over == "x" else "x"
        assert np.array_equal(trial.arrays["value", other], SAMPLE.values["value", other].astype(dtype))


def test_both_gradients_are_the_outputs() -> None:
    assert SAMPLE.op.passes_gradient == tuple(SAMPLE.op.inputs) == ("x", "f")
    assert SAMPLE.op.backward is SAMPLE.op.numba_backward is None
