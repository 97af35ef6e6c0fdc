"""One call of an op's kernel, in any backend, on arrays that lie between guard bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from samples import Key, Sample

from fastbp.base.dims import shape_of
from fastbp.run import cython_backend, numba_backend
from fastbp.run.bind import Call
from fastbp.run.program import Instructions

GUARD_BYTES = 256
GUARD = 0xFF
"""A guard is NaN in float32 and float64, so that a kernel that counts what lies outside gives itself away."""


class Fence:
    """Arrays that start at a multiple of 64 bytes, with guard bytes before and right behind."""

    def __init__(self) -> None:
        self._fields: list[tuple[np.ndarray, int, int]] = []

    def full(self, shape: tuple[int, ...], dtype: str, value: float) -> np.ndarray:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        field = np.full(size + 2 * GUARD_BYTES + 64, GUARD, np.uint8)
        start = GUARD_BYTES + -(field.ctypes.data + GUARD_BYTES) % 64
        self._fields.append((field, start, start + size))
        array = field[start : start + size].view(dtype).reshape(shape)
        array[...] = value
        return array

    def intact(self) -> bool:
        return all((f[:start] == GUARD).all() and (f[stop:] == GUARD).all() for f, start, stop in self._fields)


class Trial:
    """The arrays of a sample's forward or backward call: what it reads is filled with the sample's values (or others),
    what it overwrites with NaN, gradients of params with the values that they start from."""

    def __init__(
        self, sample: Sample, direction: str, backend: str, dtype: str, *,
        workers: int = 1, in_place: bool = False, values: Mapping[Key, Any] | None = None,
    ) -> None:  # fmt: skip
        self.sample, self.op, self.direction, self.backend, self.dtype = sample, sample.op, direction, backend, dtype
        self.workers, self.values = workers, sample.values if values is None else values
        self.dims = sample.dims(0 if backend == "numpy" else workers)
        self.fence = Fence()
        self.scratch_value = np.nan
        backward = direction == "backward"
        self.arguments = self.op.backward_arguments() if backward else self.op.forward_arguments()
        self.arrays: dict[Key, np.ndarray | None] = {
            key: self._array(*key) for key in self.arguments if key[0] != "scratch"
        }
        for target, source in (self._shared() if in_place else {}).items():
            self.arrays[target] = self.arrays[source]

    def _array(self, role: str, port: str) -> np.ndarray | None:
        if self.sample.lacks(role, port):
            return None
        kind = "int32" if port in self.op.integers else "float64" if port in self.op.doubles else self.dtype
        array = self.fence.full(self.op.shape(port, self.dims), kind, 0)
        array[...] = np.nan if (role, port) in self.overwritten else self.values[role, port]
        return array

    def _shared(self) -> dict[Key, Key]:
        if self.direction == "forward":
            return {("value", out): ("value", source) for out, source in self.op.forward_in_place.items()}
        return {("gradient", source): ("gradient", out) for source, out in self.op.backward_in_place.items()}

    @property
    def overwritten(self) -> tuple[Key, ...]:
        """What the kernel fills, by the kernel law."""
        if self.direction == "forward":
            return tuple(("value", port) for port in (*self.op.outputs, *self.op.saved))
        outputs = self.op.outputs if self.op.backward_yields_outputs else ()
        return (*(("gradient", port) for port in self.op.differentiable), *(("value", port) for port in outputs))

    @property
    def written(self) -> tuple[Key, ...]:
        """What the kernel fills or adds to."""
        added = [("gradient", port) for port in self.op.params] if self.direction == "backward" else []
        return tuple(key for key in (*self.overwritten, *added) if self.arrays[key] is not None)

    def results(self) -> dict[Key, np.ndarray]:
        return {key: self.arrays[key] for key in self.written}

    def call(self, rows: tuple[int, int] | None = None) -> Call:
        """The call for all rows, or for a slice of the dimension that the op is independent along."""
        dims, arrays = self.dims, []
        if rows:
            dims = self.op.cut(dims, *rows)
        for role, port in self.arguments:
            if role == "scratch":
                shapes = self.op.scratch if self.direction == "backward" else self.op.forward_scratch
                arrays.append(self.fence.full(shape_of(shapes[port], dims), self.dtype, self.scratch_value))
            else:
                array = self.arrays[role, port]
                cut = rows and array is not None and self.op.sliced(port)
                arrays.append(array[rows[0] : rows[1]] if cut else array)
        return Call(self.op, self.direction, dims, self.sample.attributes, tuple(arrays))

    def run(self, rows: tuple[int, int] | None = None) -> Trial:
        call = self.call(rows)
        call.check(self.dtype)
        if self.backend == "numpy":
            call.numpy()()
        else:
            table = np.array([call.row(phase) for phase in range(self.op.phases(self.direction))], np.int64)
            kernel = np.full(len(table), address(self.backend, self.op.name, self.direction, self.dtype), np.int64)
            Instructions(kernel, table).run_alone(0, len(table), self.workers)
        return self


def outcome(sample: Sample, direction: str, backend: str, dtype: str = "float64", **changed: Any) -> dict[str, Any]:
    """What a call fills or adds to, by port, with "d" before a gradient's; `changed` replaces some of the sample's
    values under the same names."""
    keys = {name: ("value", name) if name in sample.op.ports() else ("gradient", name[1:]) for name in changed}
    values = sample.values | {keys[name]: value for name, value in changed.items()}
    results = Trial(sample, direction, backend, dtype, values=values).run().results()
    return {"d" * (role == "gradient") + port: array for (role, port), array in results.items()}


def address(backend: str, op_name: str, direction: str, dtype: str) -> int:
    """The address of a compiled kernel."""
    if backend == "numba":
        return numba_backend.address(op_name, direction, dtype)
    kernels = cython_backend.module(backend.removeprefix("cython-"), dtype)
    return int(kernels.address(f"{op_name}_{direction}"))


def same_bits(one: Mapping[Key, np.ndarray], other: Mapping[Key, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(one[key].tobytes() == other[key].tobytes() for key in one)


def distance(got: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference as a share of the largest element, or of 1 if that is larger; NaN where there is one."""
    largest = max(1.0, float(np.abs(expected).max(initial=0)))
    return float(np.abs(got.astype(np.float64) - expected).max(initial=0)) / largest
