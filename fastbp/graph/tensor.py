"""A tensor of the graph: a name and a shape, no memory yet."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

KINDS = ("parameter", "constant", "host", "activation")
"""parameter: trained. constant: computed once. host: the caller reads or writes it (tokens, losses). activation: the
rest.
"""


@dataclass(frozen=True)
class Tensor:
    """Symbolic: `dtype` is "real" (the dtype of the run) or "int32"."""

    name: str
    shape: tuple[int, ...]
    kind: str
    dtype: str = "real"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"tensor {self.name}: kind {self.kind} is not one of {KINDS}")

    @cached_property
    def size(self) -> int:
        return prod(self.shape)

    def nbytes(self, itemsize: int) -> int:
        """Bytes with reals of `itemsize` bytes."""
        return self.size * (itemsize if self.dtype == "real" else 4)
