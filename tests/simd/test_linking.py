"""Cached and fresh code are linked by name: forms of one generator must not be taken for each other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fastbp.simd.abi import distinct

PROGRAM = """
import sys
import numpy as np
from fastbp.ops.registry import OPS
from fastbp.run.apply import bind_op
from fastbp.run.runner import Runner

random = np.random.default_rng(0)
N, I, O = 70, 33, 49
for dtype in sys.argv[1:]:
    x, weight, bias = (random.standard_normal(shape).astype(dtype) for shape in ((N, I), (I, O), (O,)))
    y = np.empty((N, O), dtype)
    arrays = {"x": x, "weight": weight, "bias": bias, "y": y}
    Runner(1).run(bind_op(OPS["linear"], "forward", {"N": N, "I": I, "O": O}, arrays, backend="numba"))
    np.testing.assert_allclose(y, x @ weight + bias, rtol=1e-4, atol=1e-4)
"""


@pytest.mark.slow
@pytest.mark.parametrize("first", [("float64",), ("float32", "float64")])
def test_both_dtypes_live_in_one_process_whatever_came_from_the_cache(first: tuple[str, ...], tmp_path: Path) -> None:
    for dtypes in (first, ("float64", "float32"), ("float32", "float64")):
        environment = {**os.environ, "FASTBP_CACHE_DIR": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", PROGRAM, *dtypes], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_each_form_has_a_name_of_its_own() -> None:
    def make(vectors: int) -> object:
        @distinct("wide", vectors)
        def product() -> int:
            return vectors

        return product

    names = {make(vectors).__qualname__ for vectors in (1, 2, 3)}  # type: ignore[attr-defined]
    assert len(names) == 3
