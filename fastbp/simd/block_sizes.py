"""What a block of a product holds, read from memory at every product: so it can be tuned without compiling anew.

Compiled code names the place, not its address, so that it stays valid from process to process.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fastbp.simd.abi import I64
from fastbp.simd.scratch import DEPTH, PANELS, ROWS

_sizes = {dtype: np.array([DEPTH, ROWS, PANELS], np.int64) for dtype in ("float32", "float64")}


def _symbol(dtype: str) -> str:
    return f"fastbp_block_sizes_{dtype}"


def register_block_sizes(dtype: str) -> None:
    """Makes the sizes' place known to the linker; before code that reads them is compiled or loaded."""
    llvm.add_symbol(_symbol(dtype), _sizes[dtype].ctypes.data)


def set_block_sizes(dtype: str, depth: int, rows: int, panels: int) -> None:
    """Terms, rows of A and panels of a block in every later product. Raises ValueError for more than the scratch is
    made for.
    """
    wanted = np.array([depth, rows, panels], np.int64)
    if not ((wanted > 0) & (wanted <= (DEPTH, ROWS, PANELS))).all():
        raise ValueError(f"blocks of {(depth, rows, panels)}: at most {(DEPTH, ROWS, PANELS)}")
    _sizes[dtype][:] = wanted


def _size(index: int) -> Any:
    """An intrinsic (args): one of the sizes for the dtype of args."""

    @intrinsic
    def size(typing: Any, args: Any) -> Any:
        name = _symbol(args.dtype.name)

        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            try:
                place = builder.module.get_global(name)
            except KeyError:
                place = ir.GlobalVariable(builder.module, ir.ArrayType(I64, 3), name)
                place.linkage = "external"
            return builder.load(builder.gep(place, [ir.Constant(I64, 0), ir.Constant(I64, index)]))

        return types.int64(args), codegen

    return size


block_depth, block_rows, block_panels = map(_size, range(3))
