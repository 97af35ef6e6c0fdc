"""The Numba kernels of `pack`; fastbp/ops/pack.py tells the maths and its traps."""

from __future__ import annotations

import numpy as np

from fastbp.simd.abi import dim, half_span, span
from fastbp.simd.gemm import share


def numba_forward(args, worker, workers):
    start, stop = share(dim(args, 1) * dim(args, 2), worker, workers, 32)
    x = span(args, dim(args, 3), start, stop - start)
    y = half_span(args, dim(args, 4), start, stop - start)
    for i in range(stop - start):
        bits = np.float32(x[i]).view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
        nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        y[i] = np.uint16(bits >> np.uint32(16) | np.uint32(0x40) if nan else rounded)
