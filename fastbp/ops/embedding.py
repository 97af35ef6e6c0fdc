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

from fastbp.base.late import Late
from fastbp.ops.op import Op


def forward(d, tokens, table, positions, x):
    np.add(table[tokens].reshape(-1, d.T, d.C), positions, out=x.reshape(-1, d.T, d.C))


def backward(d, dx, tokens, dtable, dpositions):
    np.add.at(dtable, tokens, dx)
    if dpositions is not None:
        for sequence in dx.reshape(-1, d.T, d.C):
            dpositions += sequence


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
    numba_forward=Late("fastbp.kernels.embedding", "numba_forward"),
    numba_backward=Late("fastbp.kernels.embedding", "numba_backward"),
    pointwise=lambda d: (d.N * d.C, 2 * d.N * d.C),
    traffic=lambda d: (3 * d.N * d.C, 5 * d.N * d.C),  # of the table and its gradient, the tokens' rows alone
)
