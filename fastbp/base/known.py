"""A table that fills itself, for what is asked often and the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Known(dict[Key, Value]):
    """Values by key, each worked out once. A hit costs no Python call."""

    def __init__(self, work_out: Callable[[Key], Value]) -> None:
        super().__init__()
        self._work_out = work_out

    def __missing__(self, key: Key) -> Value:
        self[key] = value = self._work_out(key)
        return value
