"""The Numba kernels of `unpack`; fastbp/ops/unpack.py tells the maths."""

from __future__ import annotations

import numpy as np

from fastbp.simd.abi import dim, half_span, span
from fastbp.simd.gemm import share


def numba_forward(args, worker, workers):
    start, stop = share(dim(args, 1) * dim(args, 2), worker, workers, 32)
    x = half_span(args, dim(args, 3), start, stop - start)
    y = span(args, dim(args, 4), start, stop - start)
    for i in range(stop - start):
        y[i] = np.uint32(np.uint32(x[i]) << np.uint32(16)).view(np.float32)
