"""The Cython kernels of every instruction set that this CPU can run, called as the C functions that they are."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

from fastbp.base.dims import Dims
from fastbp.ops.gelu import OP as GELU
from fastbp.ops.linear import OP as LINEAR
from fastbp.ops.op import Op
from fastbp.ops.registry import OPS
from fastbp.ops.softmax import OP as SOFTMAX
from fastbp.run import cython_backend

KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
VECTOR_BYTES = {"avx512": 64, "avx2": 32, "baseline": 16}
GUARD = 123.0
SHAPES = [(1, 1, 1), (3, 5, 2), (7, 16, 16), (13, 17, 33), (9, 385, 49), (97, 31, 111), (8, 48, 7), (401, 50, 3)]


@dataclass(frozen=True)
class Build:
    """One extension module. `call` runs a kernel on arrays by port ("d:port": its gradient) and returns its scratch."""

    instruction_set: str
    dtype: str

    def call(
        self, op: Op, direction: str, dims: Dims, arrays: dict[str, np.ndarray | None], *,
        attribute: float | None = None, workers: int = 1, scratch: float = np.nan,
    ) -> list[np.ndarray]:  # fmt: skip
        dims = op.extended(Dims({**dims, "W": workers}))
        kernel = KERNEL(cython_backend.module(self.instruction_set, self.dtype).address(f"{op.name}_{direction}"))
        held, addresses = [], []
        for role, port in op.forward_arguments() if direction == "forward" else op.backward_arguments():
            if role == "scratch":
                held.append(np.full(int(np.prod(op.shape(f"scratch:{port}", dims))) + 64, scratch, self.dtype))
                held[-1][-64:] = GUARD
                addresses.append(held[-1].ctypes.data)
            else:
                array = arrays[port if role == "value" else f"d:{port}"]
                addresses.append(0 if array is None else array.ctypes.data)
        attributes = [] if attribute is None else [int(np.float64(attribute).view(np.int64))]
        for phase in range(op.phases(direction)):
            row = np.array([phase, *(dims[letter] for letter in op.dims), *attributes, *addresses], np.int64)
            for worker in range(workers):
                kernel(row.ctypes.data, worker, workers)
        return held

    def random(self, *shape: int) -> np.ndarray:
        return np.random.default_rng(sum(shape)).standard_normal(shape).astype(self.dtype)

    def nan(self, *shape: int) -> np.ndarray:
        return np.full(shape, np.nan, self.dtype)

    @property
    def tolerance(self) -> float:
        return 2e-6 if self.dtype == "float32" else 4e-15


@pytest.fixture(
    params=[(name, dtype) for name in cython_backend.instruction_sets() for dtype in ("float32", "float64")],
    ids="-".join,
)
def build(request: pytest.FixtureRequest) -> Build:
    return Build(*request.param)


def linear_forward(build: Build, shape: tuple[int, int, int], *, bias: bool = True, **options: float) -> np.ndarray:
    n, i, o = shape
    y = build.nan(n, o)
    arrays = {"x": build.random(n, i), "weight": build.random(i, o), "bias": build.random(o) if bias else None, "y": y}
    build.call(LINEAR, "forward", Dims({"N": n, "I": i, "O": o}), arrays, **options)
    return y


def linear_backward(build: Build, shape: tuple[int, int, int], **options: float) -> dict[str, np.ndarray]:
    n, i, o = shape
    arrays = {"d:y": build.random(n, o), "x": build.random(n, i), "weight": build.random(i, o)}
    arrays |= {"d:x": build.nan(n, i), "d:weight": build.random(i, o) + 1, "d:bias": build.random(o) + 2}
    build.call(LINEAR, "backward", Dims({"N": n, "I": i, "O": o}), arrays, **options)
    return arrays


def assert_close(build: Build, got: np.ndarray, expected: np.ndarray, terms: int) -> None:
    """Within the rounding of a chain of `terms` products of normal numbers, its error growing with their root."""
    np.testing.assert_allclose(got, expected, rtol=0, atol=build.tolerance * (1 + terms) ** 0.5 * 4)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
def test_linear_forward_is_numpys_product(build: Build, shape: tuple[int, int, int], bias: bool) -> None:
    n, i, o = shape
    expected = build.random(n, i).astype(np.float64) @ build.random(i, o)
    if bias:
        expected += build.random(o)
    assert_close(build, linear_forward(build, shape, bias=bias), expected, i)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_linear_backward_is_numpys_products(build: Build, shape: tuple[int, int, int]) -> None:
    n, i, o = shape
    got = linear_backward(build, shape)
    x, weight, dy = (array.astype(np.float64) for array in (build.random(n, i), build.random(i, o), build.random(n, o)))
    assert_close(build, got["d:x"], dy @ weight.T, o)
    assert_close(build, got["d:weight"], weight + 1 + x.T @ dy, n)
    assert_close(build, got["d:bias"], build.random(o) + 2.0 + dy.sum(axis=0), n)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("workers", [2, 3])
def test_workers_give_the_same_bits(build: Build, shape: tuple[int, int, int], workers: int) -> None:
    assert linear_forward(build, shape).tobytes() == linear_forward(build, shape, workers=workers).tobytes()
    alone, together = linear_backward(build, shape), linear_backward(build, shape, workers=workers)
    for port, array in alone.items():
        assert array.tobytes() == together[port].tobytes(), port


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scratch_may_hold_anything(build: Build, shape: tuple[int, int, int]) -> None:
    assert linear_forward(build, shape).tobytes() == linear_forward(build, shape, scratch=7.0).tobytes()
    poisoned, clean = linear_backward(build, shape), linear_backward(build, shape, scratch=0.0)
    assert all(array.tobytes() == clean[port].tobytes() for port, array in poisoned.items())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("workers", [1, 3])
def test_nothing_is_written_behind_the_scratch(build: Build, shape: tuple[int, int, int], workers: int) -> None:
    n, i, o = shape
    arrays = {"x": build.random(n, i), "weight": build.random(i, o), "bias": None, "y": build.nan(n, o)}
    arrays |= {"d:y": build.random(n, o), "d:x": build.nan(n, i), "d:weight": build.random(i, o), "d:bias": None}
    for direction in ("forward", "backward"):
        (panel,) = build.call(LINEAR, direction, Dims({"N": n, "I": i, "O": o}), arrays, workers=workers)
        assert (panel[-64:] == GUARD).all()
        assert not np.isnan(panel[:-64]).all(), "the panel was not used, so this test proves nothing"


@pytest.mark.parametrize("shape", [(97, 31, 111), (13, 385, 49)], ids=str)
def test_rows_in_slices_give_the_same_bits(build: Build, shape: tuple[int, int, int]) -> None:
    n, i, o = shape
    x, weight, dy = build.random(n, i), build.random(i, o), build.random(n, o)
    whole = linear_backward(build, shape)
    sliced = {"weight": weight, "d:weight": build.random(i, o) + 1, "d:bias": build.random(o) + 2}
    for start in range(0, n, 5):
        rows = slice(start, min(start + 5, n))
        part = {"x": x[rows], "d:y": dy[rows], "d:x": build.nan(rows.stop - start, i)}
        build.call(LINEAR, "backward", Dims({"N": rows.stop - start, "I": i, "O": o}), {**sliced, **part})
        assert part["d:x"].tobytes() == whole["d:x"][rows].tobytes()
    assert sliced["d:weight"].tobytes() == whole["d:weight"].tobytes()
    assert sliced["d:bias"].tobytes() == whole["d:bias"].tobytes()


SPECIAL = [0.0, -0.0, 1e4, -1e4, np.inf, -np.inf, np.nan, 1e-30, -3.0, 0.7, 5.5, -88.0, 20.0, -20.0, 1.0, -1.0, 2.5]


@pytest.mark.parametrize("tanh", [1.0, 0.0], ids=["tanh", "erf"])
@pytest.mark.parametrize("shift", range(3))
def test_gelu_of_special_values_is_the_definitions(build: Build, tanh: float, shift: int) -> None:
    """A NaN where the definition has one and nowhere else, whatever lane a value falls into."""
    x = np.roll(np.array([SPECIAL], build.dtype), shift, axis=1)
    y, dy, dx = build.nan(*x.shape), np.ones_like(x), build.nan(*x.shape)
    expected, dims = np.empty_like(x), Dims({"N": 1, "F": x.shape[1]})
    build.call(GELU, "forward", dims, {"x": x, "y": y}, attribute=tanh)
    with np.errstate(all="ignore"):
        GELU.forward(SimpleNamespace(tanh=tanh), x, expected)
    np.testing.assert_allclose(y, expected, rtol=build.tolerance, atol=build.tolerance)
    build.call(GELU, "backward", dims, {"d:y": dy, "x": x, "d:x": dx}, attribute=tanh)
    with np.errstate(all="ignore"):
        GELU.backward(SimpleNamespace(tanh=tanh), dy, x, expected)
    np.testing.assert_allclose(dx, expected, rtol=build.tolerance, atol=build.tolerance)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([0.0, 0.0], [0.5, 0.5]),
        ([1e4, -1e4], [1.0, 0.0]),
        ([-1e4, -1e4], [0.5, 0.5]),
        ([0.0, -np.inf], [1.0, 0.0]),
        ([0.0, -80.0], [1.0, np.exp(-80.0)]),
        ([0.0, np.nan], [np.nan, np.nan]),
        ([np.inf, 0.0], [np.nan, np.nan]),
    ],
    ids=str,
)
def test_exp_of_special_values(build: Build, scores: list[float], expected: list[float]) -> None:
    """Seen through the softmax of two scores, in the second of two rows."""
    s, p = np.array([[0.0, 0.0], scores], build.dtype), build.nan(2, 2)
    build.call(SOFTMAX, "forward", Dims({"N": 2, "T": 2}), {"s": s, "p": p}, attribute=1.0)
    assert p[0].tolist() == [1.0, 0.0]
    np.testing.assert_allclose(p[1], np.array(expected), rtol=1e-5, atol=0)


def test_a_weight_is_as_exact_as_its_score(build: Build) -> None:
    """Row 2n+1 holds (0, s): its weights are 1/(1 + e^s) and e^s/(1 + e^s); for s < −20 the second is e^s, rounded.

    The exponent and its factor log2 e are rounded once each, as the score was before: each is up to |s| units of e^s.
    """
    s = np.zeros((2 * 4000, 2), build.dtype)
    s[1::2, 1] = np.linspace(-87.0, -20.0, 4000)
    p, exact = build.nan(*s.shape), np.exp(s[1::2, 1].astype(np.float64))
    build.call(SOFTMAX, "forward", Dims({"N": len(s), "T": 2}), {"s": s, "p": p}, attribute=1.0)
    error = np.abs(p[1::2, 1] - exact / (1 + exact)) / np.spacing(exact.astype(build.dtype))
    assert (error <= 2 + 2 * np.abs(s[1::2, 1])).all()


def test_every_op_has_its_kernels(build: Build) -> None:
    module = cython_backend.module(build.instruction_set, build.dtype)
    for op in OPS.values():
        assert module.address(f"{op.name}_forward")
        if op.numba_backward:
            assert module.address(f"{op.name}_backward")


def test_a_module_is_what_its_name_says(build: Build) -> None:
    built = cython_backend.module(build.instruction_set, build.dtype).build()
    assert built["vector_bytes"] == VECTOR_BYTES[build.instruction_set]
    assert built["real_bytes"] == np.dtype(build.dtype).itemsize


def test_an_address_is_that_of_the_best_instruction_set() -> None:
    best = cython_backend.instruction_set()
    for dtype in ("float32", "float64"):
        expected = cython_backend.module(best, dtype).address("gelu_forward")
        assert cython_backend.address("gelu", "forward", dtype) == expected


@pytest.mark.parametrize(("op", "direction"), [("residual", "backward"), ("rotary", "forward")])
def test_a_kernel_that_is_not_there_is_a_key_error(op: str, direction: str) -> None:
    with pytest.raises(KeyError, match=f"{op}_{direction}"):
        cython_backend.address(op, direction, "float32")


@pytest.mark.parametrize(
    ("lacking", "expected"),
    [
        ((), ("avx512", "avx2", "baseline")),
        (("avx512bw",), ("avx2", "baseline")),
        (("fma",), ("baseline",)),
        (("avx2",), ("baseline",)),
    ],
    ids=str,
)
def test_an_instruction_set_needs_all_its_features(
    monkeypatch: pytest.MonkeyPatch, lacking: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    features = {name: name not in lacking for name in cython_backend.NEEDS["avx512"]}
    fake = SimpleNamespace(cpu_features=lambda: features)
    monkeypatch.setattr(cython_backend, "module", lambda instruction_set, dtype: fake)
    assert cython_backend.instruction_sets.__wrapped__() == expected


def test_features_are_those_that_the_kernel_of_the_system_reports() -> None:
    try:
        with open("/proc/cpuinfo") as file:
            flags = next((line.split(":")[1].split() for line in file if line.startswith("flags")), None)
    except OSError:
        flags = None
    if flags is None:
        pytest.skip("no /proc/cpuinfo with flags here")
    features = cython_backend.module("baseline", "float32").cpu_features()
    assert features == {name: name in flags for name in features}
