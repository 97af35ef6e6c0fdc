"""The matrix products that a schedule's ops are made of, each runnable on its own.

An op's backward does two of them in one call; here every one is a program by itself, with the strides, the orientation
and the start that the op gives it, through the same `shared_gemm`. Attention's products, a head's band at a time inside
its kernels, are not among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from fastbp.base.dims import Dims
from fastbp.base.late import Late
from fastbp.memory.arena import aligned_bytes
from fastbp.policy.named import short_name
from fastbp.run.backend import Backend
from fastbp.run.cython_backend import kernel_address as cython_address
from fastbp.run.instruction import Instruction
from fastbp.run.program import Program
from fastbp.schedule.actions import Backward, RunsNode
from fastbp.schedule.effects import sliced_dims
from fastbp.schedule.schedule import Schedule
from fastbp.simd.scratch import panel_elements

numba_product_address = Late("fastbp.run.numba_backend", "product_address")


@dataclass(frozen=True)
class Product:
    """C (M, N) = A (M, K) · B (K, N), started from zero or, where it accumulates, from C. Strides are (row, column).

    `where` names the nodes that it comes from, `uses` counts its calls in an update.
    """

    kind: str
    M: int
    N: int
    K: int
    a: tuple[int, int]
    b: tuple[int, int]
    c_row: int
    accumulates: bool = False
    where: tuple[str, ...] = ()
    uses: int = 1

    @property
    def flops(self) -> int:
        return 2 * self.M * self.N * self.K


def _linear(d: Dims) -> dict[str, list[Product]]:
    return {
        "forward": [Product("forward", d.N, d.O, d.I, (d.I, 1), (d.O, 1), d.O)],
        "backward": [
            Product("dX", d.N, d.I, d.O, (d.O, 1), (1, d.O), d.I),
            Product("dW", d.I, d.O, d.N, (1, d.I), (d.O, 1), d.O, accumulates=True),
        ],
    }


def _qkv(d: Dims) -> dict[str, list[Product]]:
    C, wide = d.C, 3 * d.C
    dx = Product("dX", d.N, C, C, (wide, 1), (1, C), C)
    return {
        "forward": 3 * [Product("forward", d.N, C, C, (C, 1), (C, 1), wide)],
        "backward": [dx, *2 * [replace(dx, accumulates=True)]]
        + 3 * [Product("dW", C, C, d.N, (1, C), (wide, 1), C, accumulates=True)],
    }


def _head(d: Dims) -> dict[str, list[Product]]:
    """Logits are held transposed, (V, N)."""
    logits = Product("forward", d.V, d.N, d.C, (d.C, 1), (1, d.C), d.N)
    return {
        "forward": [logits],
        "backward": [
            logits,
            Product("dX", d.N, d.C, d.V, (1, d.N), (d.C, 1), d.C),
            Product("dW", d.V, d.C, d.N, (d.N, 1), (d.C, 1), d.C, accumulates=True),
        ],
    }


PRODUCTS: Mapping[str, Callable[[Dims], dict[str, list[Product]]]] = {
    "linear": _linear,
    "qkv": _qkv,
    "linear_cross_entropy": _head,
}
"""The products of each op, by direction."""

KINDS = ("forward", "dX", "dW")


def products_of(schedule: Schedule) -> tuple[Product, ...]:
    """Every distinct (kind, M, N, K) of an update, forward first, as its first user lays it out."""
    found: dict[tuple[str, int, int, int], Product] = {}
    for each in _calls(schedule):
        key = (each.kind, each.M, each.N, each.K)
        known = found.get(key)
        if known is None:
            found[key] = each
        else:
            found[key] = replace(known, uses=known.uses + 1, where=tuple(dict.fromkeys(known.where + each.where)))
    return tuple(sorted(found.values(), key=lambda each: KINDS.index(each.kind)))


def _calls(schedule: Schedule) -> Iterator[Product]:
    """The products in the order of the schedule."""
    for action in schedule.actions:
        if isinstance(action, RunsNode):
            node = schedule.graph.by_name[action.node]
            if node.op_name in PRODUCTS:
                direction = "backward" if isinstance(action, Backward) else "forward"
                for each in PRODUCTS[node.op_name](sliced_dims(node, action.rows))[direction]:
                    yield replace(each, where=(short_name(node.name),))


class ProductBench:
    """Programs of products. Their operands share three blocks of memory, as large as the largest needs."""

    def __init__(self, products: Iterable[Product], backend: Backend, dtype: str, workers: int) -> None:
        products = tuple(products)
        self._backend, self._dtype = backend, dtype
        random = np.random.default_rng(0)
        self._panels = _block(workers * max(map(_panel_size, products)), dtype)
        self.a, self.b, self.c = (_block(max(map(size, products)), dtype) for size in (_a_size, _b_size, _c_size))
        for block in (self.a, self.b):
            block[:] = random.random(block.size, np.float32) - 0.5
        self.c[:] = 0

    def program(self, product: Product, repeats: int = 1) -> Program:
        """`repeats` calls of a product."""
        if self._backend.compiled:
            instruction = Instruction(0, "", "product", product.kind, (), self._address(), self._row(product))
        else:
            instruction = Instruction(0, "", "product", product.kind, (), call=self._numpy(product))
        return Program((instruction,) * repeats)

    def _address(self) -> int:
        if self._backend.name == "numba":
            return int(numba_product_address(self._dtype))
        return cython_address("product", self._dtype)

    def _row(self, p: Product) -> tuple[int, ...]:
        a, b, c, panels = (int(block.ctypes.data) for block in (self.a, self.b, self.c, self._panels))
        init = (c, p.c_row) if p.accumulates else (0, 0)
        return (0, p.M, p.N, p.K, _panel_size(p), a, *p.a, b, *p.b, c, p.c_row, *init, panels)

    def operands(self, p: Product) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A, B and C as the product sees them."""
        return _view(self.a, p.M, p.K, p.a), _view(self.b, p.K, p.N, p.b), _view(self.c, p.M, p.N, (p.c_row, 1))

    def _numpy(self, product: Product) -> Callable[[], None]:
        a, b, c = self.operands(product)

        def call() -> None:
            c[:] = c + a @ b if product.accumulates else a @ b

        return call


def _block(elements: int, dtype: str) -> np.ndarray:
    return aligned_bytes(elements * np.dtype(dtype).itemsize).view(dtype)


def _extent(rows: int, columns: int, strides: tuple[int, int]) -> int:
    """Elements from the first to the last of a strided matrix."""
    return (rows - 1) * strides[0] + (columns - 1) * strides[1] + 1


def _panel_size(p: Product) -> int:
    """Elements of a worker's scratch."""
    return panel_elements(p.K, p.N, p.M, by_columns=p.a[1] != 1)


def _a_size(p: Product) -> int:
    return _extent(p.M, p.K, p.a)


def _b_size(p: Product) -> int:
    return _extent(p.K, p.N, p.b)


def _c_size(p: Product) -> int:
    return _extent(p.M, p.N, (p.c_row, 1))


def _view(block: np.ndarray, rows: int, columns: int, strides: tuple[int, int]) -> np.ndarray:
    """A matrix (rows, columns) in a block, its strides in elements."""
    return np.lib.stride_tricks.as_strided(block, (rows, columns), [block.itemsize * s for s in strides])
