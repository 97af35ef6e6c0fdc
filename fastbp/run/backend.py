"""Which kernels run: numpy defines, cython needs no warm-up, numba is compiled for this CPU."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from fastbp.base.errors import InputError, nearest
from fastbp.base.late import Late
from fastbp.run.blocking import Blocking
from fastbp.run.cython_backend import address as cython_address
from fastbp.run.cython_backend import fused_address as cython_fused_address
from fastbp.run.cython_backend import instruction_set, module
from fastbp.run.cython_backend import set_blocking as set_cython_blocking

BACKENDS = ("auto", "numba", "cython", "numpy")

numba_address = Late("fastbp.run.numba_backend", "address")
numba_prepare = Late("fastbp.run.numba_backend", "prepare")
set_numba_blocking = Late("fastbp.run.numba_backend", "set_blocking")


@dataclass(frozen=True)
class Backend:
    """A chosen backend. `compiled` kernels have addresses; NumPy's are Python functions."""

    name: str
    why: str

    @property
    def compiled(self) -> bool:
        return self.name != "numpy"

    def prepare(
        self, op_names: Collection[str], dtype: str, progress: Callable[[str], None] | None = None
    ) -> None:  # fmt: skip
        """Before the addresses of several ops' kernels are asked for: compiles them side by side where it must."""
        if self.name == "numba":
            numba_prepare(op_names, dtype, progress)

    def address(self, op_name: str, direction: str, dtype: str, progress: Callable[[str], None] | None = None) -> int:
        """The address of a compiled kernel."""
        if self.name == "numba":
            return int(numba_address(op_name, direction, dtype, progress))
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

    Cython: `fastbp bench` finds it level with Numba at products and level or ahead at the rest, it needs no warm-up,
    and its modules use the widest vectors that the CPU has. Numba where they do not load.
    """
    try:
        return (
            "cython",
            f"as fast as numba or faster at every op, and built for {instruction_set()} as this CPU wants it",
        )
    except ImportError as error:
        return "numba", f"the cython modules do not load: {error}"


def choose_backend(name: str) -> Backend:
    """The backend by name. Raises InputError for an unknown one."""
    if name not in BACKENDS:
        raise InputError(f"backend '{name}' is unknown{nearest(name, BACKENDS)}: choose {', '.join(BACKENDS)}")
    if name == "auto":
        return Backend(*auto_choice())
    return Backend(name, "asked for")
