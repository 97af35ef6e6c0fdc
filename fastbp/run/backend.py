"""Which kernels run: numpy defines, cython needs no warm-up, numba is compiled for this CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fastbp.base.errors import InputError, nearest
from fastbp.run.cython_backend import address as cython_address
from fastbp.run.numba_backend import address as numba_address

BACKENDS = ("auto", "numba", "cython", "numpy")

WHY_AUTO = "numba: compiled for this CPU's vector unit, the fastest at every op measured by benchmarks/bench_ops.py"


@dataclass(frozen=True)
class Backend:
    """A chosen backend. `compiled` kernels have addresses; NumPy's are Python functions."""

    name: str
    why: str

    @property
    def compiled(self) -> bool:
        return self.name != "numpy"

    def address(self, op_name: str, direction: str, dtype: str, progress: Callable[[str], None] | None = None) -> int:
        """The address of a compiled kernel."""
        if self.name == "numba":
            return numba_address(op_name, direction, dtype, progress)
        return cython_address(op_name, direction, dtype)


def choose_backend(name: str) -> Backend:
    """The backend by name. Raises InputError for an unknown one."""
    if name not in BACKENDS:
        raise InputError(f"backend '{name}' is unknown{nearest(name, BACKENDS)}: choose {', '.join(BACKENDS)}")
    if name == "auto":
        return Backend("numba", WHY_AUTO)
    return Backend(name, "asked for")
