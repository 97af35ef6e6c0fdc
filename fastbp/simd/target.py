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


def vector_length(itemsize: int) -> int:
    """Elements in a vector register."""
    return TARGET.vector_bytes // itemsize
