"""How much memory Python's objects take: a plan, its schedule and its program are many small ones."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np

CODE = (type, ModuleType, FunctionType, BuiltinFunctionType)


def reachable_bytes(roots: Iterable[Any], besides: Iterable[np.ndarray]) -> int:
    """Bytes of all objects that are reached from `roots`, data of arrays among them; code is left out, and so are the
    arrays `besides` with whatever they are views of.
    """
    seen = {id(_owner(array)) for array in besides}
    total, found = 0, list(roots)
    while found:
        each = found.pop()
        if id(each) not in seen and not isinstance(each, CODE):
            seen.add(id(each))
            total += sys.getsizeof(each)
            found += gc.get_referents(each)
            if isinstance(each, np.ndarray) and each.base is not None:
                found.append(each.base)
    return total


def _owner(array: np.ndarray) -> np.ndarray:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
