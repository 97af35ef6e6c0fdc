"""What is special about the embedding: ids that repeat, positions that repeat, positions without a gradient."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from samples import BACKENDS, DTYPES, Sample
from trial import distance, outcome

from fastbp.base.dims import Dims

pytestmark = [pytest.mark.parametrize("backend", BACKENDS), pytest.mark.parametrize("dtype", DTYPES)]
SAMPLE = Sample("embedding", Dims({"N": 6, "T": 3, "C": 17, "V": 5}))


def test_an_id_that_occurs_twice_adds_twice(backend: str, dtype: str, tolerance: dict[str, float]) -> None:
    dx = np.arange(6 * 17).reshape(6, 17)
    made = outcome(SAMPLE, "backward", backend, dtype, tokens=[2, 4, 2, 2, 0, 4], dx=dx, dtable=1, dpositions=0)
    expected = 1 + np.stack([dx[4], 0 * dx[0], dx[0] + dx[2] + dx[3], 0 * dx[0], dx[1] + dx[5]])
    assert np.array_equal(made["dtable"], expected)
    assert np.array_equal(made["dpositions"], dx[:3] + dx[3:])


def test_every_sequence_starts_at_position_zero(backend: str, dtype: str) -> None:
    made = outcome(SAMPLE, "forward", backend, dtype, table=0)
    assert distance(made["x"][:3], SAMPLE.values["value", "positions"]) < 1e-7
    assert np.array_equal(made["x"][:3], made["x"][3:])


def test_constant_positions_change_nothing_else(backend: str, dtype: str) -> None:
    made = outcome(SAMPLE, "backward", backend, dtype)
    constant = replace(SAMPLE, constant=("positions",))
    values = {"tokens": SAMPLE.values["value", "tokens"], "dx": SAMPLE.values["gradient", "x"]}
    values["dtable"] = SAMPLE.values["gradient", "table"]
    alone = outcome(constant, "backward", backend, dtype, **values)
    assert alone.keys() == {"dtable"} < made.keys()
    assert np.array_equal(alone["dtable"], made["dtable"])
