"""Functions that take seconds to compile: compiled once for each dtype, and called by kernels as C functions by name.

The first argument of such a function is a kernel's `args`, which tells the dtype; the others are integers. It must
have been registered before a kernel that uses it is compiled or loaded from the cache: the code names it, not its
address, so that it stays valid from process to process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

import llvmlite.binding as llvm
from numba import cfunc, types
from numba.extending import overload

_registered: dict[str, Any] = {}


def _symbol(entry: Callable[..., None], dtype: str) -> str:
    return f"fastbp_{entry.__name__}_{dtype}"


def _signature(entry: Callable[..., None], dtype: str) -> Any:
    integers = len(signature(entry).parameters) - 1
    return types.void(types.CPointer(getattr(types, dtype)), *([types.int64] * integers))


def register(entry: Callable[..., None], dtype: str, cache: bool = True) -> None:
    """Compiles `entry` for a dtype, or loads it from the cache, and makes it known to the linker by name."""
    symbol = _symbol(entry, dtype)
    if symbol not in _registered:
        _registered[symbol] = cfunc(_signature(entry, dtype), cache=cache)(entry)
        llvm.add_symbol(symbol, _registered[symbol].address)


def linked(entry: Callable[..., None]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorates the name by which kernels call `entry`. What it decorates says what that does; its body never runs."""

    def decorate(name: Callable[..., None]) -> Callable[..., None]:
        @wraps(name)
        def refuse(*_: Any) -> None:
            raise TypeError(f"{name.__name__} is called from compiled kernels only")

        @overload(refuse, jit_options={"nogil": True})
        def choose(args: Any, *operands: Any) -> Any:
            dtype = args.dtype.name
            external = types.ExternalFunction(_symbol(entry, dtype), _signature(entry, dtype))

            def call(args: Any, *operands: Any) -> None:
                external(args, *operands)

            return call

        return refuse

    return decorate
