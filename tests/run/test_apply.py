"""One op on its own, in every backend, with what it refuses."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from fastbp.base.errors import InputError
from fastbp.ops.registry import OPS
from fastbp.run.apply import bind_op
from fastbp.run.runner import Runner

N, C = 5, 16
BACKENDS = ("numpy", "numba", "cython")
Arrays = dict[str, np.ndarray]


def layernorm_arrays(dtype: str) -> Arrays:
    random = np.random.default_rng(0)
    arrays = {"x": (N, C), "weight": (C,), "bias": (C,), "y": (N, C), "mean": (N,), "rstd": (N,)}
    gradients = {"d:y": (N, C), "d:x": (N, C), "d:weight": (C,), "d:bias": (C,)}
    values = {name: random.standard_normal(shape).astype(dtype) for name, shape in (arrays | gradients).items()}
    values["d:weight"][:], values["d:bias"][:] = 0, 0
    return values


def run(op: str, direction: str, sizes: dict[str, int], arrays: Arrays, **options: object) -> None:
    workers = int(str(options.get("workers", 1)))
    Runner(workers).run(bind_op(OPS[op], direction, sizes, arrays, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_forward_and_backward(backend: str, dtype: str, tolerance: dict[str, float]) -> None:
    arrays = layernorm_arrays(dtype)
    for direction in ("forward", "backward"):
        run("layernorm", direction, {"N": N, "C": C}, arrays, attributes={"eps": 1e-5}, backend=backend)
    x, weight = arrays["x"].astype(np.float64), arrays["weight"].astype(np.float64)
    x_hat = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(arrays["y"], x_hat * weight + arrays["bias"], atol=4 * tolerance[dtype])
    dy = arrays["d:y"].astype(np.float64)
    np.testing.assert_allclose(arrays["d:weight"], (dy * x_hat).sum(0), atol=4 * tolerance[dtype])
    np.testing.assert_allclose(arrays["d:x"].sum(1), 0, atol=40 * tolerance[dtype])


@pytest.mark.parametrize("backend", BACKENDS)
def test_scratch_is_made_and_lives_as_long_as_the_program(backend: str) -> None:
    B, T, H = 2, 8, 2
    random = np.random.default_rng(1)
    qkv = random.standard_normal((B, T, 3 * C)).astype("float32")
    outputs = {"o": np.empty((B, T, C), "float32"), "p": np.empty((B, H, T, T), "float32")}
    sizes = {"B": B, "T": T, "C": C, "H": H}
    program = bind_op(OPS["attention"], "forward", sizes, {"qkv": qkv, **outputs}, backend=backend)
    gc.collect()
    garbage = [np.full(1 << 16, np.nan, "float32") for _ in range(20)]  # takes freed memory, if any was
    Runner(1).run(program)
    assert len(garbage) == 20
    np.testing.assert_allclose(outputs["p"].sum(-1), 1, atol=1e-6)
    assert not outputs["p"][..., np.triu_indices(T, 1)[0], np.triu_indices(T, 1)[1]].any()


@pytest.mark.parametrize("backend", ["numba", "cython"])
def test_workers_do_not_change_the_bits(backend: str) -> None:
    found = []
    for workers in (1, 2):
        arrays = layernorm_arrays("float32")
        for direction in ("forward", "backward"):
            run("layernorm", direction, {"N": N, "C": C}, arrays, attributes={"eps": 1e-5}, backend=backend,
                workers=workers)  # fmt: skip
        found.append({name: array.tobytes() for name, array in arrays.items()})
    assert found[0] == found[1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_array_that_does_not_fit_is_refused(backend: str) -> None:
    def refused(message: str, **changed: object) -> None:
        arrays = {**layernorm_arrays("float32"), **changed}
        given = {name: array for name, array in arrays.items() if array is not None}
        with pytest.raises(ValueError, match=message):
            run("layernorm", "forward", {"N": N, "C": C}, given, attributes={"eps": 1e-5}, backend=backend)  # type: ignore[arg-type]

    refused("layernorm forward, weight is missing", weight=None)
    refused("layernorm forward, y: float32", y=np.empty((N, C + 1), "float32"))
    refused("layernorm forward, bias: float64", bias=np.empty(C))
    refused("layernorm forward, x: float32 .* contiguous", x=np.empty((C, N), "float32").T)


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'numpy'"):
        bind_op(OPS["layernorm"], "forward", {"N": N, "C": C}, layernorm_arrays("float32"), backend="numpi")
