"""Token and position embedding.

    forward   x[n] = tokens_table[token[n]] + positions[n mod T]
    backward  d tokens_table[v] += Σ_{n: token[n]=v} dx[n]        d positions[t] += Σ_{n mod T = t} dx[n]

Backward needs the token ids alone. The trap: an id that occurs twice must add twice, which a plain indexed assignment
does not do. Workers share the columns, so that every row's sum runs in the order of the tokens. With sinusoidal
positions the table is a constant, without a gradient.
Source: Vaswani et al. 2017, §3.4 and §3.5.
"""

from __future__ import annotations

import numpy as np

from fastbp.ops.op import Op
from fastbp.simd.abi import dim, int_span, itemsize, span
from fastbp.simd.gemm import share


def forward(d, tokens, table, positions, x):
    np.add(table[tokens].reshape(-1, d.T, d.C), positions, out=x.reshape(-1, d.T, d.C))


def backward(d, dx, tokens, dtable, dpositions):
    np.add.at(dtable, tokens, dx)
    if dpositions is not None:
        for sequence in dx.reshape(-1, d.T, d.C):
            dpositions += sequence


def numba_forward(args, worker, workers):
    N, T, C = dim(args, 1), dim(args, 2), dim(args, 3)
    tokens, table, positions, x = dim(args, 5), dim(args, 6), dim(args, 7), dim(args, 8)
    start, stop = share(N, worker, workers, 1)
    for n in range(start, stop):
        row = span(args, x, n * C, C)
        token = span(args, table, int_span(args, tokens, n, 1)[0] * C, C)
        position = span(args, positions, n % T * C, C)
        for c in range(C):
            row[c] = token[c] + position[c]


def numba_backward(args, worker, workers):
    N, T, C = dim(args, 1), dim(args, 2), dim(args, 3)
    dx, tokens, dtable, dpositions = dim(args, 5), dim(args, 6), dim(args, 7), dim(args, 8)
    start, stop = share(C, worker, workers, 64 // itemsize(args))
    width = stop - start
    for n in range(N):
        row = span(args, dx, n * C + start, width)
        token = span(args, dtable, int_span(args, tokens, n, 1)[0] * C + start, width)
        for c in range(width):
            token[c] += row[c]
        if dpositions:
            position = span(args, dpositions, n % T * C + start, width)
            for c in range(width):
                position[c] += row[c]


OP = Op(
    name="embedding",
    dims=("N", "T", "C", "V"),
    inputs={"tokens": "N"},
    integers=("tokens",),
    params={"table": "V C", "positions": "T C"},
    outputs={"x": "N C"},
    backward_reads=("tokens",),
    forward=forward,
    backward=backward,
    numba_forward=numba_forward,
    numba_backward=numba_backward,
    pointwise=lambda d: (d.N * d.C, 2 * d.N * d.C),
    traffic=lambda d: (3 * d.N * d.C, 5 * d.N * d.C),  # of the table and its gradient, the tokens' rows alone
)
