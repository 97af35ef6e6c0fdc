"""Every op in several shapes, with values to run it on: what the contract's tests are generated from.

Shapes are odd on purpose: one row, widths that fill no vector, one token, three sequences, more tokens than attention's
band of 64 rows, products deeper than the 384 terms that are packed at a time.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from fastbp.base.dims import Dims
from fastbp.ops.op import Op
from fastbp.ops.registry import OPS
from fastbp.run.bind import Call
from fastbp.run.cython_backend import instruction_sets

BACKENDS = ("numpy", "numba", *(f"cython-{name}" for name in instruction_sets()))
"""Cython's kernels are tested for every instruction set that this CPU has, not for the best alone."""
DTYPES = ("float32", "float64")
Key = tuple[str, str]
"""(role, port), as the op's argument lists have them."""


@dataclass(frozen=True)
class Sample:
    """One op in one shape. It lacks the params `without`; those in `constant` it has, but without a gradient."""

    name: str
    sizes: Dims
    attributes: dict[str, float] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    constant: tuple[str, ...] = ()

    @property
    def op(self) -> Op:
        return OPS[self.name]

    def __str__(self) -> str:
        sizes = "".join(f"{letter}{size}" for letter, size in self.sizes.items())
        attributes = "".join(f"-{name}{value:g}" for name, value in self.attributes.items())
        return f"{self.name}-{sizes}{attributes}" + "".join(f"-no_{port}" for port in self.without + self.constant)

    def dims(self, workers: int) -> Dims:
        """All dimensions for W workers; NumPy has W = 0, since it needs no scratch."""
        return self.op.extended({**self.sizes, "W": workers})

    def lacks(self, role: str, port: str) -> bool:
        return port in self.without or (role == "gradient" and port in self.constant)

    @cached_property
    def values(self) -> dict[Key, np.ndarray]:
        """Inputs, params, d outputs and what the params' gradients start from, drawn in float64; outputs and saved
        tensors as the NumPy definition computes them in float64."""
        random = np.random.default_rng(zlib.crc32(str(self).encode()))
        op, dims, found = self.op, self.dims(0), {}
        for port in (*op.inputs, *op.params):
            if port in op.integers:
                below = dims.get("V", 2**31)
                found["value", port] = random.integers(0, below, op.shape(port, dims), dtype=np.int32)
            elif port not in self.without:
                found["value", port] = random.normal(size=op.shape(port, dims))
        for port in (*op.outputs, *op.params):
            if not self.lacks("gradient", port):
                found["gradient", port] = random.normal(size=op.shape(port, dims))
        return found | {("value", port): array for port, array in forward(self, found).items()}


def forward(sample: Sample, values: dict[Key, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs and saved tensors of the NumPy definition in float64, for any values of its inputs and params."""
    op, dims = sample.op, sample.dims(0)
    made = {port: np.full(op.shape(port, dims), np.nan) for port in (*op.outputs, *op.saved)}
    scratch = {name: np.full(op.shape(f"scratch:{name}", dims), np.nan) for name in op.forward_scratch}
    arrays = tuple(
        scratch[port] if role == "scratch" else made[port] if port in made else values.get((role, port))
        for role, port in op.forward_arguments()
    )
    Call(op, "forward", dims, sample.attributes, arrays).numpy()()
    return made


def _embedding() -> list[Sample]:
    return [
        Sample("embedding", Dims({"N": 1, "T": 1, "C": 17, "V": 65})),
        Sample("embedding", Dims({"N": 15, "T": 5, "C": 17, "V": 65})),
        Sample("embedding", Dims({"N": 210, "T": 70, "C": 96, "V": 7})),
        Sample("embedding", Dims({"N": 15, "T": 5, "C": 33, "V": 3}), constant=("positions",)),
    ]


def _rows() -> list[Sample]:
    """Ops that see rows only."""
    eps = {"eps": 1e-5}
    biases, shapes = ("bq", "bk", "bv"), ((1, 17), (15, 65), (70, 64))
    return [
        Sample("layernorm", Dims({"N": 1, "C": 17}), eps),
        Sample("layernorm", Dims({"N": 15, "C": 65}), {"eps": 0.1}),
        Sample("layernorm", Dims({"N": 70, "C": 128}), eps),
        Sample("linear", Dims({"N": 1, "I": 17, "O": 65})),
        Sample("linear", Dims({"N": 15, "I": 65, "O": 1}), without=("bias",)),
        Sample("linear", Dims({"N": 3, "I": 400, "O": 50})),
        Sample("linear", Dims({"N": 401, "I": 17, "O": 128}), without=("bias",)),
        Sample("qkv", Dims({"N": 1, "C": 17})),
        Sample("qkv", Dims({"N": 15, "C": 33}), without=biases),
        Sample("qkv", Dims({"N": 70, "C": 96}), without=("bk",)),
        *(Sample("gelu", Dims({"N": n, "F": f}), {"tanh": t}) for t in (1.0, 0.0) for n, f in shapes),
        *(Sample("residual", Dims({"N": n, "C": c})) for n, c in shapes),
        Sample("dropout", Dims({"N": 1, "C": 17, "S": 0}), {"rate": 0.5, "place": 0.0}),
        Sample("dropout", Dims({"N": 15, "C": 65, "S": 3}), {"rate": 0.1, "place": 7.0}),
        Sample("dropout", Dims({"N": 70, "C": 64, "S": 0}), {"rate": 0.9, "place": 2.0}),
        Sample("linear_cross_entropy", Dims({"N": 1, "C": 17, "V": 65})),
        Sample("linear_cross_entropy", Dims({"N": 15, "C": 33, "V": 1})),
        Sample("linear_cross_entropy", Dims({"N": 70, "C": 64, "V": 400})),
        Sample("linear_cross_entropy", Dims({"N": 401, "C": 17, "V": 7})),
    ]  # fmt: skip


def _sequences() -> list[Sample]:
    return [
        Sample("attention", Dims({"B": 1, "T": 1, "C": 17, "H": 1})),
        Sample("attention", Dims({"B": 3, "T": 5, "C": 34, "H": 2})),
        Sample("attention", Dims({"B": 3, "T": 70, "C": 51, "H": 3})),
        Sample("attention", Dims({"B": 2, "T": 64, "C": 64, "H": 1})),
        Sample("attention", Dims({"B": 1, "T": 130, "C": 32, "H": 2})),
        *(
            Sample("tiled_attention", Dims(dict(zip("BTCH", sizes, strict=True))))
            for sizes in ((1, 1, 17, 1), (3, 5, 34, 2), (3, 70, 51, 3), (2, 64, 64, 1), (1, 130, 32, 2))
        ),
        *(
            Sample(name, Dims(dict(zip("BTCHS", sizes, strict=True))), {"rate": rate, "place": place})
            for name in ("attention_dropout", "tiled_attention_dropout")
            for sizes, rate, place in (
                ((1, 1, 17, 1, 0), 0.5, 0.0),
                ((3, 5, 34, 2, 4), 0.2, 3.0),
                ((3, 70, 51, 3, 0), 0.1, 6.0),
                ((1, 130, 32, 2, 1), 0.7, 3.0),
            )
        ),
        Sample("softmax", Dims({"N": 1, "T": 1}), {"scale": 0.3}),
        Sample("softmax", Dims({"N": 15, "T": 5}), {"scale": 1.5}),
        Sample("softmax", Dims({"N": 210, "T": 70}), {"scale": 0.3}),
    ]


SAMPLES = (*_embedding(), *_rows(), *_sequences())
ADAMW = Sample("adamw", Dims({"Z": 5000, "K": 4100}))
"""Apart, because it changes its inputs and has no backward: tests/ops/test_adamw.py runs it."""
CONVERSIONS = ("pack", "unpack")
"""Apart, because they hold bits, of float32 alone: tests/ops/test_pack.py and test_unpack.py run them."""
