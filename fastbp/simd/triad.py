"""What a memory can stream: a = b + 3·c over arrays that no cache holds. Source: McCalpin's STREAM, 1995."""

from __future__ import annotations

from fastbp.simd.abi import cast, dim, inline, itemsize, span
from fastbp.simd.gemm import share


@inline
def _triad(args, a, b, c):
    factor = cast(args, 3)
    for i in range(a.size):
        a[i] = b[i] + factor * c[i]


def numba_triad(args, worker, workers):
    """args: elements of an array, addresses of a, b and c."""
    start, stop = share(dim(args, 0), worker, workers, 64 // itemsize(args))
    size = stop - start
    _triad(
        args, span(args, dim(args, 1), start, size), span(args, dim(args, 2), start, size),
        span(args, dim(args, 3), start, size),
    )  # fmt: skip


def bytes_moved(size: int, itemsize: int) -> int:
    """Two arrays read and one written; what the hardware reads before it writes is not counted."""
    return 3 * size * itemsize
