"""What an op is: one frozen declaration from which everything else about it is derived.

Shapes are written with dimension letters. A kernel, in any backend, gets its arguments in the order

    forward   phase, dims, attributes, inputs, params, outputs, saved, forward scratch
    backward  phase, dims, attributes, d outputs, backward_reads, d inputs, d params, scratch, outputs

and keeps the kernel law: it fills the arrays that it is given; it overwrites outputs, saved tensors and d inputs;
it accumulates into d params; it touches nothing else. `outputs` come last in a backward call only where the op
declares `backward_yields_outputs`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fastbp.base.dims import Dims, letters, shape_of, size_of
from fastbp.base.late import Late

Shapes = Mapping[str, str]
NumpyKernel = Callable[..., None]

FIRST = "S"
"""The dimension, of an op that asks for it, that tells where a slice begins along `independent_along`."""


def _no_products(d: Dims) -> tuple[int, int]:
    return 0, 0


def _nothing(d: Dims) -> dict[str, int]:
    return {}


@dataclass(frozen=True, eq=False)
class Op:
    """The declaration of an op. Fields that are shapes map a port's name to its written shape.

    `products(d)` and `pointwise(d)` give the FLOPs of (forward, backward): matrix products at 2·M·N·K, and the rest.
    `derive(d)` adds dimensions that follow from others (panel sizes). `W` stands for the number of workers.
    """

    name: str
    dims: tuple[str, ...]
    inputs: Shapes
    outputs: Shapes
    backward_reads: tuple[str, ...]
    forward: NumpyKernel
    backward: NumpyKernel | None
    numba_forward: Callable[..., None]
    numba_backward: Callable[..., None] | None
    pointwise: Callable[[Dims], tuple[int, int]]
    products: Callable[[Dims], tuple[int, int]] = _no_products
    params: Shapes = field(default_factory=dict)
    saved: Shapes = field(default_factory=dict)
    forward_scratch: Shapes = field(default_factory=dict)
    scratch: Shapes = field(default_factory=dict)
    attributes: tuple[str, ...] = ()
    derive: Callable[[Dims], dict[str, int]] = _nothing
    traffic: Callable[[Dims], tuple[int, int]] | None = None
    """Elements that (forward, backward) read and write at least, where that is not every array once."""
    integers: tuple[str, ...] = ()
    """Ports that hold int32 (token ids); they have no gradient."""
    doubles: tuple[str, ...] = ()
    """Ports that hold float64 whatever the kernel's dtype."""
    halves: tuple[str, ...] = ()
    """Ports that hold bfloat16, as its bits in uint16."""
    optional: tuple[str, ...] = ()
    """Params that a node may lack; their address is then 0, their array None."""
    forward_phases: int = 1
    backward_phases: int = 1
    """Kernels are called once a phase, with a barrier between."""
    independent_along: str = "N"
    """The dimension along which the op may run in slices."""
    passes_gradient: tuple[str, ...] = ()
    """Inputs whose gradient is the output's, unchanged: they share its buffer and no kernel runs."""
    forward_in_place: Mapping[str, str] = field(default_factory=dict)
    """Outputs that may be written over an input."""
    backward_in_place: Mapping[str, str] = field(default_factory=dict)
    """d inputs that may be written over a d output: {input: output}."""
    backward_yields_outputs: bool = False
    """Backward computes the outputs on its way, so that a training schedule needs no forward."""

    def __post_init__(self) -> None:
        known = {*self.inputs, *self.params, *self.outputs, *self.saved}
        missing = [port for port in self.backward_reads if port not in known]
        if missing:
            raise ValueError(f"op {self.name}: backward reads {missing}, which it does not declare")

    @cached_property
    def differentiable(self) -> tuple[str, ...]:
        """Inputs that have a gradient."""
        return tuple(port for port in self.inputs if port not in self.integers)

    def ports(self) -> dict[str, str]:
        """Every named tensor of the op with its written shape."""
        return {**self.inputs, **self.params, **self.outputs, **self.saved}

    def extended(self, dims: Mapping[str, int]) -> Dims:
        """`dims` with the derived dimensions added."""
        base = Dims(dims)
        return Dims({**base, **self.derive(base)})

    def cut(self, dims: Dims, start: int, stop: int) -> Dims:
        """`dims` for the slice [start, stop) along the independent dimension."""
        begin = {FIRST: dims[FIRST] + start} if FIRST in self.dims else {}
        return self.extended(dims.but(**{self.independent_along: stop - start}, **begin))

    def shape(self, port: str, dims: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of a port, or of a scratch buffer ("scratch:panel")."""
        if port.startswith("scratch:"):
            name = port.removeprefix("scratch:")
            written = {**self.forward_scratch, **self.scratch}[name]
        else:
            written = self.ports()[port]
        return shape_of(written, dims)

    def dtype_of(self, port: str, dtype: str) -> str:
        """What a port or scratch buffer holds in a kernel of `dtype`."""
        special = {"int32": self.integers, "float64": self.doubles, "uint16": self.halves}
        return next((kind for kind, ports in special.items() if port in ports), dtype)

    def sliced(self, port: str) -> bool:
        """Whether a port is cut when the op runs in slices: its first dimension is the independent one."""
        written = {**self.ports()}.get(port, "")
        return letters(written)[:1] == (self.independent_along,)

    def forward_arguments(self) -> tuple[tuple[str, str], ...]:
        """(role, port) of a forward call's arrays, in order; a role is "value" or "scratch"."""
        values = [*self.inputs, *self.params, *self.outputs, *self.saved]
        return (*(("value", p) for p in values), *(("scratch", s) for s in self.forward_scratch))

    def backward_arguments(self) -> tuple[tuple[str, str], ...]:
        """(role, port) of a backward call's arrays, in order; a role is "gradient", "value" or "scratch"."""
        return (
            *(("gradient", p) for p in self.outputs),
            *(("value", p) for p in self.backward_reads),
            *(("gradient", p) for p in self.differentiable),
            *(("gradient", p) for p in self.params),
            *(("scratch", s) for s in self.scratch),
            *(("value", p) for p in (self.outputs if self.backward_yields_outputs else ())),
        )

    def elements_moved(self, direction: str, dims: Mapping[str, int]) -> int:
        """Elements that a call reads and writes at least: every array once, twice where it accumulates."""
        if self.traffic is not None:
            return self.traffic(Dims(dims))[direction == "backward"]
        if direction == "forward":
            return sum(size_of(written, dims) for written in self.ports().values())
        written = self.ports()
        accumulated = [("gradient", port) for port in self.params]
        arrays = [argument for argument in self.backward_arguments() if argument[0] != "scratch"]
        return sum(size_of(written[port], dims) for _, port in [*arrays, *accumulated])

    def arguments(self, direction: str) -> tuple[tuple[str, str], ...]:
        """(role, port) of a call's arrays, in order."""
        return self.backward_arguments() if direction == "backward" else self.forward_arguments()

    def writes(self, direction: str, role: str, port: str) -> bool:
        """Whether a call writes the array of a role and port; scratch aside."""
        if direction == "forward":
            return role == "value" and port in {**self.outputs, **self.saved}
        yielded = role == "value" and port in self.outputs and self.backward_yields_outputs
        return yielded or (role == "gradient" and port not in self.outputs)

    def numpy_kernel(self, direction: str) -> NumpyKernel | None:
        return self.forward if direction == "forward" else self.backward

    def numba_kernel(self, direction: str) -> Callable[..., Any] | None:
        """The kernel's Python function; this imports Numba where it is kept for late."""
        kernel = self.numba_forward if direction == "forward" else self.numba_backward
        return kernel.function if isinstance(kernel, Late) else kernel

    def phases(self, direction: str) -> int:
        return self.forward_phases if direction == "forward" else self.backward_phases
