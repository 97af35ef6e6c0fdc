"""The vector unit that code is generated for: its width and the register tile that fits it."""

from __future__ import annotations

from dataclasses import dataclass

import llvmlite.binding as llvm


@dataclass(frozen=True)
class Target:
    """One kind of vector unit. `tile_rows` × `tile_vectors` accumulators stay in registers."""

    name: str
    vector_bytes: int
    tile_rows: tuple[int, ...]
    """Rows of the micro-kernels that are generated, largest first; the rest of a height is made of smaller ones."""
    tile_vectors: int
    """Vectors in a panel of the packed operand."""


AVX512 = Target("avx512", 64, (8, 4, 2, 1), 3)
AVX2 = Target("avx2", 32, (6, 4, 2, 1), 2)
GENERIC = Target("128-bit", 16, (6, 4, 2, 1), 2)


def host_target() -> Target:
    """The target of the CPU that runs this process, from the features that LLVM finds (CPUID and XGETBV)."""
    features = llvm.get_host_cpu_features()
    if features.get("avx512f") and features.get("avx512vl"):
        return AVX512
    if features.get("avx2") and features.get("fma"):
        return AVX2
    return GENERIC


TARGET = host_target()

DEPTH = 384
"""Terms of a product that are packed at a time: a panel of 384 × 48 float32 is 72 KiB and stays in L2."""
ROWS = 128
"""Rows of A that one block of packed panels meets before the next rows do: 192 KiB in L2."""
PANELS = 12
"""Panels of a block; with 576 columns of float32 it takes 864 KiB at full depth."""


def vector_length(itemsize: int) -> int:
    """Elements in a vector register."""
    return TARGET.vector_bytes // itemsize


def panel_elements(depth: int, columns: int, rows: int, by_columns: bool = False) -> int:
    """Elements of scratch that one worker needs for a product of A (`rows` × `depth`) and B (`depth` × `columns`).

    A block of B's panels, or one where a single block of rows meets them; a tile for the columns that do not fill a
    vector; and where A lies `by_columns`, a copy of a block of its rows. The bound holds for every target and both
    dtypes, so that a plan's bytes do not depend on the machine.
    """
    panel, tallest, line = 48, 8, 16
    widest = panel if rows <= ROWS else panel * PANELS
    deepest = min(depth, DEPTH)
    packed = deepest * min(-(-columns // line) * line, widest) + tallest * panel
    copied = (min(rows, ROWS) + tallest) * deepest + (ROWS // 4) * line if by_columns else 0
    return packed + copied
