"""One op on its own: its kernel of any backend on arrays that the caller gives, for checking and measuring ops."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fastbp.base.dims import Dims, shape_of
from fastbp.memory.arena import aligned_bytes
from fastbp.ops.op import Op
from fastbp.run.backend import choose_backend
from fastbp.run.bind import Call, call_instructions
from fastbp.run.program import Program


def bind_op(
    op: Op,
    direction: str,
    sizes: Mapping[str, int],
    arrays: Mapping[str, np.ndarray],
    *,
    attributes: Mapping[str, float] | None = None,
    backend: str = "numba",
    workers: int = 1,
) -> Program:
    """The program of one kernel call. `arrays` maps a port to its array, "d:port" to its gradient; scratch is made.

    Raises ValueError where an array is missing or of another size, dtype or order than the op declares.
    """
    chosen = choose_backend(backend)
    dims = op.extended(Dims({**sizes, "W": workers if chosen.compiled else 0}))
    dtype = next(str(array.dtype) for array in arrays.values() if array.dtype.kind == "f")
    backward = direction == "backward"
    shapes = op.scratch if backward else op.forward_scratch
    given: list[np.ndarray | None] = []
    arguments = op.arguments(direction)
    for role, port in arguments:
        if role == "scratch":
            shape = shape_of(shapes[port], dims)
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            given.append(aligned_bytes(size).view(dtype).reshape(shape))
        else:
            given.append(arrays.get(port if role == "value" else f"d:{port}"))
    call = Call(op, direction, dims, attributes or {}, tuple(given))
    # A compiled instruction holds addresses alone: named here, the arrays (scratch too) live as long as the program.
    held = tuple((port, array) for (_, port), array in zip(arguments, given, strict=True) if array is not None)
    return Program(tuple(call_instructions(0, op.name, call, held, chosen, dtype)))
