"""Denormals are zero while a program runs, whoever runs it, and what they were afterwards."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable

import numpy as np
import pytest

from fastbp.graph.config import DecoderConfig
from fastbp.ops.registry import OPS
from fastbp.run.apply import bind_op
from fastbp.run.decoder import Decoder
from fastbp.run.program import Program
from fastbp.run.runner import Runner

COMPILED = ("numba", "cython")
TINIEST = {"float32": 2.0**-126, "float64": 2.0**-1022}
"""The smallest normal numbers; half of one is denormal, and exact."""
KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)

flushes = pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64", "aarch64", "arm64"), reason="no mode is known for this CPU"
)


def by_team(workers: int) -> Callable[[Program], object]:
    return lambda program: Runner(workers).run(program)


def watched(program: Program) -> object:
    return Runner(2).run_watched(program, lambda each: True)


HOW = {"1 worker": by_team(1), "2 workers": by_team(2), "watched": watched}


def addition(dtype: str, backend: str, x: float, f: float) -> tuple[Program, np.ndarray]:
    """y = x + f in 64 elements, with the smallest normal number as the unit, and y."""
    arrays = {name: np.full((1, 64), value * TINIEST[dtype], dtype) for name, value in (("x", x), ("f", f), ("y", 9))}
    sizes = {"N": 1, "C": 64}
    return bind_op(OPS["residual"], "forward", sizes, arrays, backend=backend), arrays["y"]


@flushes
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("backend", COMPILED)
@pytest.mark.parametrize("dtype", TINIEST)
def test_a_denormal_result_is_zero_for_every_worker(dtype: str, backend: str, how: str) -> None:
    program, y = addition(dtype, backend, 1.5, -1)
    HOW[how](program)
    assert not y.any()


@flushes
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("backend", COMPILED)
@pytest.mark.parametrize("dtype", TINIEST)
def test_a_denormal_operand_counts_as_zero(dtype: str, backend: str, how: str) -> None:
    program, y = addition(dtype, backend, 1, 0.5)
    HOW[how](program)
    assert (y == TINIEST[dtype]).all()


@pytest.mark.parametrize("dtype", TINIEST)
def test_numpy_programs_keep_denormals(dtype: str) -> None:
    program, y = addition(dtype, "numpy", 1.5, -1)
    Runner(1).run(program)
    assert (y == TINIEST[dtype] / 2).all()


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("dtype", TINIEST)
def test_the_callers_denormals_are_back_after_a_run(dtype: str, how: str) -> None:
    HOW[how](addition(dtype, "cython", 1.5, -1)[0])
    tiny = np.full(64, TINIEST[dtype], dtype)
    half = tiny * tiny.dtype.type(0.5)
    assert half.all()
    assert (half + half == tiny).all()


@pytest.mark.parametrize("backend", COMPILED)
@pytest.mark.parametrize("dtype", TINIEST)
def test_ordinary_numbers_keep_their_bits(dtype: str, backend: str) -> None:
    # The same kernels once more, called from here one by one with denormals as Python has them.
    decoder = Decoder(DecoderConfig.preset("seed"), 2, policy="full", backend=backend, workers=1, dtype=dtype)
    decoder.initialise(1)
    for ids in (decoder.tokens, decoder.targets):
        ids[:] = np.random.default_rng(1).integers(0, 64, ids.shape)
    decoder.forward_backward()
    expected = decoder.losses.tobytes(), decoder.gradients.flat.tobytes()
    decoder.zero_gradients()
    for instruction in decoder.gradients_program.instructions:
        KERNEL(instruction.address)(np.array(instruction.row, np.int64).ctypes.data, 0, 1)
    assert (decoder.losses.tobytes(), decoder.gradients.flat.tobytes()) == expected
    assert decoder.gradients.flat.any()
