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


def vector_length(itemsize: int) -> int:
    """Elements in a vector register."""
    return TARGET.vector_bytes // itemsize


def panel_elements(depth: int, columns: int) -> int:
    """Elements of scratch that one worker needs to multiply by an operand of `depth` × `columns`.

    A panel of the operand, then one tile for the columns that do not fill a vector. The bound holds for every target
    and both dtypes, so that a plan's bytes do not depend on the machine.
    """
    widest = 48
    return min(depth, DEPTH) * min(-(-columns // 16) * 16, widest) + 8 * widest
