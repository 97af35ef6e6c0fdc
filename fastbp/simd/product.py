"""One matrix product as a kernel of its own, for measuring the products that the ops' kernels are made of.

C (M, N) = init + A (M, K) · B (K, N)        strides count elements; init and its stride as in `simd/gemm.py`
"""

from __future__ import annotations

from fastbp.simd.abi import dim, itemsize
from fastbp.simd.gemm import shared_gemm


def numba_product(args, worker, workers):
    """args: phase, M, N, K, P, address, row and column stride of A, the same of B, address and row stride of C, the
    same of init, address of the workers' panels of P elements each.
    """
    M, N, K, P = dim(args, 1), dim(args, 2), dim(args, 3), dim(args, 4)
    a, a_row, a_col = dim(args, 5), dim(args, 6), dim(args, 7)
    b, b_row, b_col = dim(args, 8), dim(args, 9), dim(args, 10)
    c, c_row, init, init_row = dim(args, 11), dim(args, 12), dim(args, 13), dim(args, 14)
    panel = dim(args, 15) + worker * P * itemsize(args)
    shared_gemm(args, worker, workers, M, N, K, a, a_row, a_col, b, b_row, b_col, c, c_row, init, init_row, panel, 0)
