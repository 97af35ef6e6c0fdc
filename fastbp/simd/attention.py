"""The vector code of tiled attention: products of strips, and what happens to scores lane by lane.

Scores are held transposed, Sᵀ (keys, queries): a vector holds one key's scores of several queries, so a query's softmax
stays in its lane. A strip is some keys against 1, 2 or 3 vectors of queries, its rows `BLOCK_VECTORS` vectors apart.
Each loop over its rows, or over a product's depth, is one intrinsic, as in fastbp/simd/microkernel.py. Addresses and
strides are bytes. An element of a product is one chain of fused multiply-adds. The twin of fastbp/_attention.h.

The products take seconds to compile, so they are compiled once for each dtype and called as a C function by name:
`register_strips` must have run before a kernel that uses them is compiled or loaded from the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from fastbp.simd.abi import I64, cast, distinct, fma
from fastbp.simd.emit import broadcast
from fastbp.simd.linking import linked, register
from fastbp.simd.target import AVX512, TARGET, vector_length

BLOCK_VECTORS = 3
"""Vectors of queries in a block, at most."""
TILE_ROWS = (8, 4, 2, 1) if TARGET is AVX512 else (4, 4, 2, 1)
"""8 × 3 sums in 32 registers, or 4 × 3 in 16; the rest of a strip in smaller tiles."""
EXP2 = (1.80935443e-4, 1.33103877e-3, 9.6073607e-3, 5.55058941e-2, 2.40227595e-1, 6.93147123e-1, 1.0)
"""2^x on −½ … 1: minimax, degree 6, highest first; exact at 0, below 1 unit in the last place."""


def _scalar(itemsize: int) -> Any:
    return ir.FloatType() if itemsize == 4 else ir.DoubleType()


def _vector(itemsize: int) -> Any:
    return ir.VectorType(_scalar(itemsize), vector_length(itemsize))


def _splat(vector: Any, value: float) -> Any:
    return ir.Constant(vector, [value] * vector.count)


class _Code:
    """An LLVM builder that loads and stores vectors at addresses in bytes."""

    def __init__(self, builder: Any, itemsize: int) -> None:
        self.builder, self.itemsize, self.vector = builder, itemsize, _vector(itemsize)
        self.bytes = self.vector.count * itemsize
        self._fma = fma(builder, self.vector)

    def _pointer(self, address: Any, offset: int, kind: Any) -> Any:
        return self.builder.inttoptr(self.builder.add(address, ir.Constant(I64, offset)), kind.as_pointer())

    def load(self, address: Any, index: int = 0) -> Any:
        value = self.builder.load(self._pointer(address, index * self.bytes, self.vector))
        value.align = self.itemsize
        return value

    def store(self, value: Any, address: Any, index: int = 0) -> None:
        self.builder.store(value, self._pointer(address, index * self.bytes, self.vector)).align = self.itemsize

    def broadcast(self, address: Any) -> Any:
        """A vector of copies of the number at an address."""
        number = self.builder.load(self._pointer(address, 0, self.vector.element))
        return broadcast(self.builder, number, self.vector.count)

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        return self.builder.call(self._fma, [a, b, c])

    def larger(self, a: Any, b: Any) -> Any:
        """a > b ? a : b, so b where either is NaN."""
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def loop(
        self, count: Any, moving: Sequence[tuple[Any, Any]], carried: Sequence[Any],
        body: Callable[[list[Any], list[Any]], list[Any]],
    ) -> list[Any]:  # fmt: skip
        """Runs `body` `count` ≥ 1 times on addresses, each moved on by its stride, and on values that it carries on."""
        builder, before = self.builder, self.builder.block
        loop, done = builder.append_basic_block("rows"), builder.append_basic_block("done")
        builder.branch(loop)
        builder.position_at_end(loop)
        k = builder.phi(I64)
        addresses = [builder.phi(I64) for _ in moving]
        values = [builder.phi(value.type) for value in carried]
        new = body(addresses, values)
        end = builder.block
        following = builder.add(k, ir.Constant(I64, 1))
        moved = [builder.add(at, stride) for at, (_, stride) in zip(addresses, moving, strict=True)]
        starts = [ir.Constant(I64, 0), *(start for start, _ in moving), *carried]
        for phi, start, value in zip((k, *addresses, *values), starts, (following, *moved, *new), strict=True):
            phi.add_incoming(start, before)
            phi.add_incoming(value, end)
        builder.cbranch(builder.icmp_signed("<", following, count), loop, done)
        builder.position_at_end(done)
        return new

    def exp2(self, x: Any) -> Any:
        """2^x for x of at most about 0; 0 below the smallest normal number, NaN for NaN."""
        if self.itemsize == 8:
            kind = ir.FunctionType(self.vector, [self.vector])
            name = f"llvm.exp2.v{self.vector.count}f64"
            return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), [x])
        builder, vector = self.builder, self.vector
        words = ir.VectorType(ir.IntType(32), vector.count)
        low, magic = _splat(vector, -126.0), _splat(vector, 12582912.0 + 127.0)
        inside = self.larger(low, x)
        shifted = builder.fadd(inside, magic)  # in its low bits stands n + 127, the exponent bits of 2^n
        f = builder.fsub(inside, builder.fsub(shifted, magic))
        p = _splat(vector, EXP2[0])
        for coefficient in EXP2[1:]:
            p = self.multiply_add(p, f, _splat(vector, coefficient))
        power = builder.shl(builder.bitcast(shifted, words), ir.Constant(words, [23] * vector.count))
        y = builder.fmul(p, builder.bitcast(power, vector))
        return builder.select(builder.fcmp_ordered("<=", inside, low), _splat(vector, 0.0), y)


@cache
def _tile(rows: int, vectors: int, itemsize: int) -> Any:
    """An intrinsic (depth, a, a_row, a_col, b, b_row, c, c_row, add): C = A·B, or C += A·B, for one tile."""

    @intrinsic
    def tile(typing, depth, a, a_row, a_col, b, b_row, c, c_row, add):
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            depth, a, a_row, a_col, b, b_row, c, c_row, add = values
            code = _Code(builder, itemsize)
            zero = ir.Constant(code.vector, None)
            c_rows = [builder.add(c, builder.mul(c_row, ir.Constant(I64, i))) for i in range(rows)]
            start, load = builder.block, builder.append_basic_block("load")
            ready = builder.append_basic_block("ready")
            builder.cbranch(builder.icmp_signed("!=", add, ir.Constant(I64, 0)), load, ready)
            builder.position_at_end(load)
            loaded = [code.load(row, j) for row in c_rows for j in range(vectors)]
            builder.branch(ready)
            builder.position_at_end(ready)
            first = []
            for value in loaded:
                phi = builder.phi(code.vector)
                phi.add_incoming(zero, start)
                phi.add_incoming(value, load)
                first.append(phi)
            a_rows = [builder.mul(a_row, ir.Constant(I64, i)) for i in range(rows)]

            def step(addresses: list[Any], sums: list[Any]) -> list[Any]:
                at_a, at_b = addresses
                line = [code.load(at_b, j) for j in range(vectors)]
                new = []
                for i in range(rows):
                    x = code.broadcast(builder.add(at_a, a_rows[i]))
                    new += [code.multiply_add(x, line[j], sums[i * vectors + j]) for j in range(vectors)]
                return new

            sums = code.loop(depth, [(a, a_col), (b, b_row)], first, step)
            for i, row in enumerate(c_rows):
                for j in range(vectors):
                    code.store(sums[i * vectors + j], row, j)
            return context.get_dummy_value()

        return types.void(*([types.int64] * 9)), codegen

    return tile


def _rows_product(vectors: int, size: int) -> Any:
    """All tiles of a strip of 1, 2 or 3 vectors."""
    height, *_ = TILE_ROWS
    tile0, tile1, tile2, tile3 = (_tile(rows, vectors, size) for rows in TILE_ROWS)

    @numba.njit(nogil=True)
    @distinct(TARGET.name, vectors, size)
    def product(rows, depth, a, a_row, a_col, b, b_row, c, c_row, add):
        m = 0
        while rows - m >= height:
            tile0(depth, a + m * a_row, a_row, a_col, b, b_row, c + m * c_row, c_row, add)
            m += height
        if height > 4 and rows - m >= 4:
            tile1(depth, a + m * a_row, a_row, a_col, b, b_row, c + m * c_row, c_row, add)
            m += 4
        if rows - m >= 2:
            tile2(depth, a + m * a_row, a_row, a_col, b, b_row, c + m * c_row, c_row, add)
            m += 2
        if rows > m:
            tile3(depth, a + m * a_row, a_row, a_col, b, b_row, c + m * c_row, c_row, add)

    return product


@cache
def _product_for(size: int) -> Any:
    """The product for elements of `size` bytes: C of any number of vectors, in parts as even as they come."""
    width = vector_length(size) * size
    product1, product2, product3 = (_rows_product(vectors, size) for vectors in (1, 2, 3))

    @numba.njit(nogil=True)
    @distinct(TARGET.name, size)
    def product(vectors, rows, depth, a, a_row, a_col, b, b_row, c, c_row, add):
        parts = (vectors + 2) // 3
        for p in range(parts):
            v = vectors * p // parts
            count = vectors * (p + 1) // parts - v
            at_b, at_c = b + v * width, c + v * width
            if count == 1:
                product1(rows, depth, a, a_row, a_col, at_b, b_row, at_c, c_row, add)
            elif count == 2:
                product2(rows, depth, a, a_row, a_col, at_b, b_row, at_c, c_row, add)
            else:
                product3(rows, depth, a, a_row, a_col, at_b, b_row, at_c, c_row, add)

    return product


def strip_entry(args, vectors, rows, depth, a, a_row, a_col, b, b_row, c, c_row, add):
    _choose(args, vectors, rows, depth, a, a_row, a_col, b, b_row, c, c_row, add)


def _choose(args, vectors, rows, depth, a, a_row, a_col, b, b_row, c, c_row, add):
    raise TypeError("compiled code only")


@overload(_choose, jit_options={"nogil": True})
def _chosen(args, vectors, rows, depth, a, a_row, a_col, b, b_row, c, c_row, add):
    product = _product_for(4 if args.dtype == types.float32 else 8)

    def call(args, vectors, rows, depth, a, a_row, a_col, b, b_row, c, c_row, add):
        product(vectors, rows, depth, a, a_row, a_col, b, b_row, c, c_row, add)

    return call


def register_strips(dtype: str, cache: bool = True) -> None:
    """Compiles the product of strips for a dtype, or loads it from the cache. Kernels are linked to it by name."""
    register(strip_entry, dtype, cache)


@linked(strip_entry)
def strip_product(args, vectors, rows, depth, a, a_row, a_col, b, b_row, c, c_row, add):
    """C (rows, vectors) = A (rows, depth) · B (depth, vectors), or C += A·B where `add` is not 0.

    For use inside kernels; `args` tells the dtype. A has any strides; B and C are read and written in whole vectors.
    """


# ---- lane by lane ----------------------------------------------------------------------------------------------------


def _lane_loop(emit: Callable[..., None]) -> Any:
    """A function (args, vectors, rows, a, b, c, d, x, y) for kernels: the loop that `emit` writes, for 1, 2 or 3
    vectors, on four addresses and two numbers, which arrive as vectors."""

    @cache
    def form(vectors: int, size: int) -> Any:
        @intrinsic
        def loop(typing, rows, a, b, c, d, x, y):
            def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                code = _Code(builder, size)
                rows, *addresses = values[:5]
                numbers = [broadcast(builder, value, code.vector.count) for value in values[5:]]
                emit(code, vectors, rows, ir.Constant(I64, BLOCK_VECTORS * code.bytes), addresses, numbers)
                return context.get_dummy_value()

            real = types.float32 if size == 4 else types.float64
            return types.void(*([types.int64] * 5), real, real), codegen

        return loop

    def run(args, vectors, rows, a, b, c, d, x, y):
        raise TypeError("compiled code only")

    # Without fast-math of its own it would inherit its caller's, and what exp2 adds and takes away would be dropped.
    @overload(run, jit_options={"nogil": True, "fastmath": {"contract"}})
    def choose(args, vectors, rows, a, b, c, d, x, y):
        loop1, loop2, loop3 = (form(vectors, 4 if args.dtype == types.float32 else 8) for vectors in (1, 2, 3))

        @distinct(TARGET.name, emit.__name__)
        def call(args, vectors, rows, a, b, c, d, x, y):
            if vectors == 1:
                loop1(rows, a, b, c, d, x, y)
            elif vectors == 2:
                loop2(rows, a, b, c, d, x, y)
            else:
                loop3(rows, a, b, c, d, x, y)

        return call

    return run


def _emit_peak(code: _Code, vectors: int, rows: Any, row: Any, at: Any, numbers: Any) -> None:
    s, peak, *_ = at
    start = [code.load(peak, j) for j in range(vectors)]
    end = code.loop(
        rows, [(s, row)], start, lambda a, highest: [code.larger(code.load(a[0], j), h) for j, h in enumerate(highest)]
    )
    for j, value in enumerate(end):
        code.store(value, peak, j)


def _emit_weigh(code: _Code, vectors: int, rows: Any, row: Any, at: Any, numbers: Any) -> None:
    s, peak, total, _ = at
    power, _ = numbers
    builder = code.builder
    highest = [code.load(peak, j) for j in range(vectors)]

    def step(addresses: list[Any], sums: list[Any]) -> list[Any]:
        new = []
        for j, value in enumerate(sums):
            apart = builder.fsub(code.load(addresses[0], j), highest[j])
            weight = code.exp2(builder.fmul(apart, power))
            code.store(weight, addresses[0], j)
            new.append(builder.fadd(value, weight))
        return new

    for j, value in enumerate(code.loop(rows, [(s, row)], [code.load(total, j) for j in range(vectors)], step)):
        code.store(value, total, j)


def _emit_slope(code: _Code, vectors: int, rows: Any, row: Any, at: Any, numbers: Any) -> None:
    s, ds, lse, delta = at
    power, scale = numbers
    builder = code.builder
    sums = [builder.fneg(code.load(lse, j)) for j in range(vectors)]
    along = [code.load(delta, j) for j in range(vectors)]

    def step(addresses: list[Any], carried: list[Any]) -> list[Any]:
        at_s, at_ds = addresses
        for j in range(vectors):
            p = code.exp2(code.multiply_add(code.load(at_s, j), power, sums[j]))
            code.store(p, at_s, j)
            change = builder.fsub(code.load(at_ds, j), along[j])
            code.store(builder.fmul(builder.fmul(p, scale), change), at_ds, j)
        return []

    code.loop(rows, [(s, row), (ds, row)], [], step)


def _emit_multiply(code: _Code, vectors: int, rows: Any, row: Any, at: Any, numbers: Any) -> None:
    x, factor, *_ = at
    factors = [code.load(factor, j) for j in range(vectors)]

    def step(addresses: list[Any], carried: list[Any]) -> list[Any]:
        for j in range(vectors):
            code.store(code.builder.fmul(code.load(addresses[0], j), factors[j]), addresses[0], j)
        return []

    code.loop(rows, [(x, row)], [], step)


_peak, _weigh, _slope, _multiply = map(_lane_loop, (_emit_peak, _emit_weigh, _emit_slope, _emit_multiply))


@numba.njit(nogil=True)
def take_peak(args, vectors, rows, s, peak):
    """peak becomes the largest of itself and of the rows of S."""
    _peak(args, vectors, rows, s, peak, 0, 0, cast(args, 0), cast(args, 0))


@numba.njit(nogil=True)
def weigh(args, vectors, rows, s, peak, total, power):
    """S becomes 2^(power · (S − peak)), and total grows by it. The difference comes first: one rounding of power · S
    less the peak's product can leave the largest score above 0."""
    _weigh(args, vectors, rows, s, peak, total, 0, power, cast(args, 0))


@numba.njit(nogil=True)
def slope(args, vectors, rows, s, ds, lse, delta, power, scale):
    """S becomes P = 2^(power·S − lse) and dP becomes dS = scale · P ∘ (dP − δ)."""
    _slope(args, vectors, rows, s, ds, lse, delta, power, scale)


@numba.njit(nogil=True)
def multiply(args, vectors, rows, x, factor):
    """Every row of X times the row `factor`."""
    _multiply(args, vectors, rows, x, factor, 0, 0, cast(args, 0), cast(args, 0))


@intrinsic
def lanes(typing: Any, args: Any) -> Any:
    """Elements of a vector."""
    length = vector_length(args.dtype.bitwidth // 8)

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return ir.Constant(I64, length)

    return types.int64(args), codegen
