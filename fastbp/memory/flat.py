"""Parameters, and whatever has their shapes, as one flat buffer with a view for each tensor.

Tensors of two or more dimensions come first, so that the elements with weight decay are a prefix. Every tensor
begins on a cache line; the gaps between are zero and stay zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from fastbp.memory.arena import aligned_bytes

LINE_ELEMENTS = 16


@dataclass(frozen=True)
class FlatShapes:
    """Where each tensor lies in the flat buffer; the same for parameters, gradients and moments."""

    shapes: Mapping[str, tuple[int, ...]]

    @cached_property
    def _ordered(self) -> list[str]:
        return sorted(self.shapes, key=lambda name: len(self.shapes[name]) < 2)

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Elements from the start to each tensor."""
        offsets, end = {}, 0
        for name in self._ordered:
            offsets[name] = end
            end += _padded(prod(self.shapes[name]))
        return offsets

    @cached_property
    def size(self) -> int:
        """Elements of the whole buffer."""
        return sum(_padded(prod(shape)) for shape in self.shapes.values())

    @cached_property
    def decayed(self) -> int:
        """Elements of the prefix that weight decay applies to."""
        return sum(_padded(prod(shape)) for shape in self.shapes.values() if len(shape) >= 2)

    @property
    def parameters(self) -> int:
        """Trained numbers, without the gaps."""
        return sum(prod(shape) for shape in self.shapes.values())


def _padded(size: int) -> int:
    return -(-size // LINE_ELEMENTS) * LINE_ELEMENTS


class Flat(Mapping[str, np.ndarray]):
    """One buffer of `shapes.size` reals, zero at first; `flat[name]` is a tensor's view."""

    def __init__(self, shapes: FlatShapes, dtype: str) -> None:
        self.shapes = shapes
        self.flat = aligned_bytes(shapes.size * np.dtype(dtype).itemsize).view(dtype)
        self.flat[:] = 0
        self._views = {
            name: self.flat[shapes.offsets[name] : shapes.offsets[name] + prod(shape)].reshape(shape)
            for name, shape in shapes.shapes.items()
        }

    def __getitem__(self, name: str) -> np.ndarray:
        return self._views[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)
