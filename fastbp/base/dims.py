"""Dimensions: capital letters bound to sizes, and shapes written with them ("N C", "B T 3C")."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from math import prod

_TERM = re.compile(r"(\d*)([A-Z]?)")


class Dims(Mapping[str, int]):
    """An immutable binding of dimension letters to sizes; `dims.N` is `dims["N"]`."""

    _sizes: dict[str, int]
    _hash: int

    def __init__(self, sizes: Mapping[str, int]) -> None:
        object.__setattr__(self, "_sizes", {name: int(size) for name, size in sizes.items()})
        object.__setattr__(self, "_hash", hash(tuple(self._sizes.items())))

    def __getitem__(self, name: str) -> int:
        return self._sizes[name]

    def __getattr__(self, name: str) -> int:
        try:
            return self._sizes[name]
        except KeyError:
            raise AttributeError(f"no dimension {name}; there are {' '.join(self)}") from None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"dimensions are immutable ({name})")

    def __reduce__(self) -> tuple[type[Dims], tuple[dict[str, int]]]:
        return Dims, (dict(self._sizes),)

    def __iter__(self) -> Iterator[str]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    def __eq__(self, other: object) -> bool:
        return self._sizes == other._sizes if isinstance(other, Dims) else Mapping.__eq__(self, other)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return "Dims(" + ", ".join(f"{name}={size}" for name, size in self.items()) + ")"

    def but(self, **sizes: int) -> Dims:
        """The same dimensions, some of them with another size."""
        return Dims({**self._sizes, **sizes})


def letters(shape: str) -> tuple[str, ...]:
    """The dimension letters of a written shape, in order: "B T 3C" gives ("B", "T", "C")."""
    return tuple(letter for _, letter in _terms(shape) if letter)


def shape_of(shape: str, dims: Mapping[str, int]) -> tuple[int, ...]:
    """A written shape as integers: "N 3C" with N=2, C=4 gives (2, 12); "" is a scalar, ()."""
    return tuple([factor * (dims[letter] if letter else 1) for factor, letter in _terms(shape)])


def size_of(shape: str, dims: Mapping[str, int]) -> int:
    """The number of elements of a written shape."""
    return prod(shape_of(shape, dims))


@cache
def _terms(shape: str) -> tuple[tuple[int, str], ...]:
    return tuple(map(_term, shape.split()))


def _term(term: str) -> tuple[int, str]:
    match = _TERM.fullmatch(term)
    if not match or not term:
        raise ValueError(f"'{term}' is not a dimension: write a capital letter, a number or both")
    return int(match[1] or 1), match[2]
