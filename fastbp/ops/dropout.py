"""Dropout whose mask is never stored: both passes work it out from a counter.

    forward   y = x ∘ M        M = 1/(1 − p) where word(n, c) ≥ p·2³², else 0; p is the attribute `rate`
    backward  dx = dy ∘ M

word(n, c) is word c mod 4 of Philox4x32-7 (fastbp/base/philox.py) at the counter (⌊c/4⌋, n, place, 0) under the key in
`state`. n is the row in the whole batch, of which a slice has the rows from S on; `place` tells the decoder's dropouts
apart; the key is another one for every pass. So M is a function of these alone, whatever the plan, the slice, the
worker and the backend. Saved: nothing, and backward reads nothing but the key.
M is multiplied with, so a NaN stays one where it is dropped. d f of a residual addition is the stream's own gradient:
dx never goes over dy.
Source: Srivastava et al. 2014, inverted; that a counter does without the mask: Dao et al. 2022, appendix B.
"""

from __future__ import annotations

import numpy as np

from fastbp.base.late import Late
from fastbp.base.philox import LOW, WORDS, philox
from fastbp.ops.op import Op


def threshold(rate):
    """The smallest word that keeps its element. A rate that rounds to 1 still keeps one in 2³²."""
    return min(int(rate * 2**32 + 0.5), LOW)


def factors(d, state, first_row, shape, dtype):
    """M for `shape` = (rows, columns), its first row being `first_row`."""
    rows, columns = first_row + np.arange(shape[0])[:, None], np.arange(-(-shape[1] // WORDS))
    words = np.stack(philox((columns, rows, int(d.place), 0), state.view(np.uint32)), axis=-1)
    kept = words.reshape(shape[0], -1)[:, : shape[1]] >= threshold(d.rate)
    return np.where(kept, dtype.type(1 / (1 - d.rate)), dtype.type(0))


def forward(d, x, state, y):
    np.multiply(x, factors(d, state, d.S, x.shape, x.dtype), out=y)


def backward(d, dy, state, dx):
    forward(d, dy, state, dx)


OP = Op(
    name="dropout",
    dims=("N", "C", "S"),
    attributes=("rate", "place"),
    inputs={"x": "N C", "state": "2"},
    integers=("state",),
    outputs={"y": "N C"},
    backward_reads=("state",),
    forward=forward,
    backward=backward,
    numba_forward=Late("fastbp.kernels.dropout", "numba_kernel"),
    numba_backward=Late("fastbp.kernels.dropout", "numba_kernel"),
    forward_in_place={"y": "x"},
    pointwise=lambda d: (d.N * d.C, d.N * d.C),
)
