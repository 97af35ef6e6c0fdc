"""Which kernels run: numpy defines, cython needs no warm-up, numba is compiled for this CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fastbp.base.errors import InputError, nearest
from fastbp.run.blocking import Blocking
from fastbp.run.cython_backend import address as cython_address
from fastbp.run.cython_backend import fused_address as cython_fused_address
from fastbp.run.cython_backend import instruction_set, module
from fastbp.run.cython_backend import set_blocking as set_cython_blocking
from fastbp.run.numba_backend import address as numba_address
from fastbp.run.numba_backend import set_blocking as set_numba_blocking
from fastbp.simd.target import TARGET

BACKENDS = ("auto", "numba", "cython", "numpy")

VECTOR_BYTES = {"avx512": 64, "avx2": 32, "baseline": 16}
"""Width of the registers that the Cython modules of an instruction set use."""


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

    def set_blocking(self, blocking: Blocking, dtype: str) -> None:
        """Blocks of products in every later run of this process. They move no bit. NumPy has its own."""
        if self.name == "cython":
            set_cython_blocking(module(instruction_set(), dtype), blocking)
        elif self.name == "numba":
            set_numba_blocking(blocking, dtype)

    def fused_address(self, kernel: str, dtype: str) -> int:
        """The address of a kernel that does two calls at once, 0 where this backend has none."""
        return cython_fused_address(kernel, dtype) if self.name == "cython" else 0


def auto_choice() -> tuple[str, str]:
    """The backend that `auto` takes for every op, and why.

    Cython, since `fastbp bench` finds it level with Numba at products and ahead at the rest, and it needs no
    warm-up; Numba where the modules at hand do not use the whole width of this CPU's vectors.
    """
    try:
        built = instruction_set()
    except ImportError as error:
        return "numba", f"the cython modules do not load: {error}"
    if VECTOR_BYTES[built] >= TARGET.vector_bytes:
        return "cython", f"as fast as numba or faster at every op, and built for {built} as this CPU wants it"
    return "numba", f"cython is built for {built} here, this CPU's vectors are wider ({TARGET.name})"


def choose_backend(name: str) -> Backend:
    """The backend by name. Raises InputError for an unknown one."""
    if name not in BACKENDS:
        raise InputError(f"backend '{name}' is unknown{nearest(name, BACKENDS)}: choose {', '.join(BACKENDS)}")
    if name == "auto":
        return Backend(*auto_choice())
    return Backend(name, "asked for")
