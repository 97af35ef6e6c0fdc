"""The Cython backend: kernels compiled ahead of time, one module for each instruction set and dtype.

A module for an instruction set is imported only where the CPU has it and the operating system saves its registers, so a
build that was made on one machine runs on every other of its architecture.
"""

from __future__ import annotations

from dataclasses import astuple
from functools import cache
from importlib import import_module
from typing import Any

from fastbp.run.blocking import Blocking, remembered

NEEDS = {
    "avx512": ("avx2", "fma", "avx512f", "avx512vl", "avx512dq", "avx512bw"),
    "avx2": ("avx2", "fma"),
    "baseline": (),
}
"""The CPU features that each instruction set's modules were compiled for, best first."""


@cache
def instruction_sets() -> tuple[str, ...]:
    """The instruction sets that this CPU can run, best first."""
    features = module("baseline", "float32").cpu_features()
    return tuple(name for name, needs in NEEDS.items() if all(features[feature] for feature in needs))


def instruction_set() -> str:
    """The instruction set whose kernels run here: "avx512", "avx2" or "baseline"."""
    return instruction_sets()[0]


@cache
def module(instruction_set: str, dtype: str) -> Any:
    """The extension module of an instruction set and dtype. The caller knows that the CPU can run it."""
    width = "" if instruction_set == "baseline" else f"_{instruction_set}"
    real = "_float64" if dtype == "float64" else ""
    found = import_module(f"fastbp._kernels{width}{real}")
    set_blocking(found, remembered("cython", dtype))
    return found


def set_blocking(kernels: Any, blocking: Blocking) -> None:
    """Blocks of products in every later run of a module's kernels."""
    kernels.set_blocking(*astuple(blocking))


def address(op_name: str, direction: str, dtype: str) -> int:
    """The address of a kernel, `direction` "forward" or "backward". Raises KeyError where there is no such kernel."""
    return kernel_address(f"{op_name}_{direction}", dtype)


def kernel_address(name: str, dtype: str) -> int:
    """The same by the kernel's own name."""
    return int(module(instruction_set(), dtype).address(name))


def fused_address(kernel: str, dtype: str) -> int:
    """The address of a kernel that does two calls at once, 0 where there is none of that name."""
    return int(module(instruction_set(), dtype).fused_address(kernel))
