"""Define an op of your own, squared ReLU: its maths once, a NumPy definition, a Numba kernel, and a check of its
gradient.

python examples/define_an_op.py
"""

import numpy as np

from fastbp.ops.op import Op
from fastbp.ops.registry import register
from fastbp.run.apply import bind_op
from fastbp.run.runner import Runner
from fastbp.simd.abi import dim, span
from fastbp.simd.gemm import share


def forward(d, x, y):
    y[:] = np.maximum(x, 0) ** 2


def backward(d, dy, x, dx):
    dx[:] = dy * 2 * np.maximum(x, 0)


def numba_forward(args, worker, workers):
    start, stop = share(dim(args, 1), worker, workers, 16)
    x, y = span(args, dim(args, 2), start, stop - start), span(args, dim(args, 3), start, stop - start)
    for i in range(stop - start):
        y[i] = max(x[i], 0) ** 2


def numba_backward(args, worker, workers):
    start, stop = share(dim(args, 1), worker, workers, 16)
    size = stop - start
    dy, x, dx = (
        span(args, dim(args, 2), start, size),
        span(args, dim(args, 3), start, size),
        span(args, dim(args, 4), start, size),
    )
    for i in range(stop - start):
        dx[i] = dy[i] * 2 * max(x[i], 0)


OP = register(Op(
    name="squared_relu", dims=("N",), inputs={"x": "N"}, outputs={"y": "N"}, backward_reads=("x",),
    forward=forward, backward=backward, numba_forward=numba_forward, numba_backward=numba_backward,
    pointwise=lambda d: (2 * d.N, 3 * d.N),
))  # fmt: skip

x = np.random.default_rng(0).standard_normal(1000)
arrays = {"x": x, "y": np.empty_like(x), "d:y": np.ones_like(x), "d:x": np.empty_like(x)}
runner, step = Runner(workers=1), 1e-6
for backend in ("numpy", "numba"):
    for direction in ("forward", "backward"):
        runner.run(bind_op(OP, direction, {"N": x.size}, arrays, backend=backend))
    difference = (np.maximum(x + step, 0) ** 2 - np.maximum(x - step, 0) ** 2) / (2 * step)
    print(f"{backend}: largest error against central differences {abs(arrays['d:x'] - difference).max():.1e}")
