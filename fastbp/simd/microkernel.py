"""The heart of every product: a tile of C kept in registers while the whole depth streams past.

    C[0:rows, 0:vectors·VL] = init + Σ_k A[·, k] · panel[k, ·]

The loop is emitted as LLVM IR by one intrinsic: accumulators are phi nodes of vector type, so LLVM keeps every one in a
register; an element of A is broadcast, the packed panel is loaded as vectors. All strides are bytes, so that the
forward product (A by rows) and the weight gradient (A by columns) share the code. Each element of C is one chain of
fused multiply-adds in the order of k, started from `init`: its bits do not depend on the tile, the slice or the worker.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fastbp.simd.abi import I64, fma
from fastbp.simd.target import vector_length

I32 = ir.IntType(32)


def _scalar(itemsize: int) -> Any:
    return ir.FloatType() if itemsize == 4 else ir.DoubleType()


def _load(builder: Any, base: Any, offset: Any, kind: Any, align: int) -> Any:
    """A value of type `kind` at `base` + `offset` bytes; vectors need no alignment unless `align` says so."""
    pointer = builder.inttoptr(builder.add(base, offset), kind.as_pointer())
    value = builder.load(pointer)
    value.align = align
    return value


def _store(builder: Any, value: Any, base: Any, offset: Any, align: int) -> None:
    pointer = builder.inttoptr(builder.add(base, offset), value.type.as_pointer())
    builder.store(value, pointer).align = align


def broadcast(builder: Any, value: Any, length: int) -> Any:
    """A vector of `length` copies of a scalar."""
    kind = ir.VectorType(value.type, length)
    undefined = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(I32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(I32, length), [0] * length))


def _initial(builder: Any, tile: tuple[int, int], init: Any, init_row: Any, vector: Any, itemsize: int) -> list[Any]:
    """The accumulators' first values: what lies at `init`, or zero where it is 0."""
    rows, vectors = tile
    zero = ir.Constant(vector, None)
    start = builder.block
    load = builder.append_basic_block("init")
    ready = builder.append_basic_block("ready")
    builder.cbranch(builder.icmp_signed("!=", init, ir.Constant(I64, 0)), load, ready)
    builder.position_at_end(load)
    loaded = []
    for i in range(rows):
        row = builder.add(init, builder.mul(init_row, ir.Constant(I64, i)))
        for j in range(vectors):
            offset = ir.Constant(I64, j * vector.count * itemsize)
            loaded.append(_load(builder, row, offset, vector, itemsize))
    builder.branch(ready)
    builder.position_at_end(ready)
    values = []
    for value in loaded:
        phi = builder.phi(vector)
        phi.add_incoming(zero, start)
        phi.add_incoming(value, load)
        values.append(phi)
    return values


@cache
def microkernel(rows: int, vectors: int, itemsize: int) -> Any:
    """An intrinsic (depth, a, a_row, a_col, panel, c, c_row, init, init_row) for one tile; strides and addresses in
    bytes.

    `panel` holds `depth` rows of `vectors` vectors. `init` is 0 or the address of the tile's first values, `init_row`
    bytes from row to row (0 for a bias, which all rows share).
    """
    length = vector_length(itemsize)
    scalar = _scalar(itemsize)
    vector = ir.VectorType(scalar, length)
    step = vectors * length * itemsize

    @intrinsic
    def tile(typing, depth, a, a_row, a_col, panel, c, c_row, init, init_row):
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            depth, a, a_row, a_col, panel, c, c_row, init, init_row = values
            first = _initial(builder, (rows, vectors), init, init_row, vector, itemsize)
            bases = [builder.add(a, builder.mul(a_row, ir.Constant(I64, i))) for i in range(rows)]
            before = builder.block
            loop = builder.append_basic_block("depth")
            done = builder.append_basic_block("done")
            builder.branch(loop)
            builder.position_at_end(loop)
            k, at_a, at_b = (builder.phi(I64) for _ in range(3))
            accumulators = [builder.phi(vector) for _ in first]
            panel_row = [
                _load(builder, at_b, ir.Constant(I64, j * length * itemsize), vector, itemsize) for j in range(vectors)
            ]
            multiply_add = fma(builder, vector)
            sums = []
            for i in range(rows):
                x = broadcast(builder, _load(builder, bases[i], at_a, scalar, itemsize), length)
                for j in range(vectors):
                    sums.append(builder.call(multiply_add, [x, panel_row[j], accumulators[i * vectors + j]]))
            following = (
                builder.add(k, ir.Constant(I64, 1)),
                builder.add(at_a, a_col),
                builder.add(at_b, ir.Constant(I64, step)),
            )
            starts = (ir.Constant(I64, 0), ir.Constant(I64, 0), panel)
            for phi, start, new in zip((k, at_a, at_b), starts, following, strict=True):
                phi.add_incoming(start, before)
                phi.add_incoming(new, loop)
            for phi, start, new in zip(accumulators, first, sums, strict=True):
                phi.add_incoming(start, before)
                phi.add_incoming(new, loop)
            builder.cbranch(builder.icmp_signed("<", following[0], depth), loop, done)
            builder.position_at_end(done)
            for i in range(rows):
                row = builder.add(c, builder.mul(c_row, ir.Constant(I64, i)))
                for j in range(vectors):
                    offset = ir.Constant(I64, j * length * itemsize)
                    _store(builder, sums[i * vectors + j], row, offset, itemsize)
            return context.get_dummy_value()

        return types.void(*([types.int64] * 9)), codegen

    return tile


@cache
def copy_rows(vectors: int, itemsize: int) -> Any:
    """An intrinsic (depth, source, source_row, panel): packs full rows of `vectors` vectors, `source_row` bytes
    apart.
    """
    length = vector_length(itemsize)
    vector = ir.VectorType(_scalar(itemsize), length)

    @intrinsic
    def pack(typing, depth, source, source_row, panel):
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            depth, source, source_row, panel = values
            before = builder.block
            loop = builder.append_basic_block("pack")
            done = builder.append_basic_block("packed")
            builder.branch(loop)
            builder.position_at_end(loop)
            k, origin, target = (builder.phi(I64) for _ in range(3))
            for j in range(vectors):
                offset = ir.Constant(I64, j * length * itemsize)
                _store(builder, _load(builder, origin, offset, vector, itemsize), target, offset, itemsize)
            new = (
                builder.add(k, ir.Constant(I64, 1)),
                builder.add(origin, source_row),
                builder.add(target, ir.Constant(I64, vectors * length * itemsize)),
            )
            for phi, start, value in zip((k, origin, target), (ir.Constant(I64, 0), source, panel), new, strict=True):
                phi.add_incoming(start, before)
                phi.add_incoming(value, loop)
            builder.cbranch(builder.icmp_signed("<", new[0], depth), loop, done)
            builder.position_at_end(done)
            return context.get_dummy_value()

        return types.void(*([types.int64] * 4)), codegen

    return pack


@cache
def transpose_square(itemsize: int) -> Any:
    """An intrinsic (source, source_row, target, target_row): transposes VL × VL elements; strides in bytes.

    log2(VL) rounds of exchanging halves between rows at distance d = VL/2, VL/4, … 1.
    """
    length = vector_length(itemsize)
    vector = ir.VectorType(_scalar(itemsize), length)

    @intrinsic
    def transpose(typing, source, source_row, target, target_row):
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            source, source_row, target, target_row = values
            lanes = ir.VectorType(I32, length)
            zero = ir.Constant(I64, 0)
            rows = [
                _load(
                    builder, builder.add(source, builder.mul(source_row, ir.Constant(I64, i))), zero, vector, itemsize
                )
                for i in range(length)
            ]
            distance = length // 2
            while distance:
                low = [j if not j & distance else length + j - distance for j in range(length)]
                high = [j + distance if not j & distance else length + j for j in range(length)]
                for i in range(length):
                    if not i & distance:
                        a, b = rows[i], rows[i + distance]
                        rows[i] = builder.shuffle_vector(a, b, ir.Constant(lanes, low))
                        rows[i + distance] = builder.shuffle_vector(a, b, ir.Constant(lanes, high))
                distance //= 2
            for i, row in enumerate(rows):
                _store(builder, row, builder.add(target, builder.mul(target_row, ir.Constant(I64, i))), zero, itemsize)
            return context.get_dummy_value()

        return types.void(*([types.int64] * 4)), codegen

    return transpose
