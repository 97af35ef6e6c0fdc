"""The heart of every product: a tile of C kept in registers while the terms of a block stream past.

    C[0:rows, 0:vectors·VL] = init + Σ_k A[·, k] · B[k, ·]

A tile may do more on its way, as `FORMS` says: copy the rows of B that it reads to a packed panel, for the tiles below;
where A's columns lie far apart, fetch them ahead or copy them too, for the panels beside. Each form is an LLVM function
of its own, so that its loop has all registers: the sums are phi nodes of vector type, an element of A is broadcast, a
row of B is loaded as vectors. Strides are bytes, so the forward product (A by rows) and the weight gradient (A by
columns) share the code. An element of C is one chain of fused multiply-adds in the order of k, started from `init`: its
bits do not depend on the form, the tile, the slice or the worker.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fastbp.simd.abi import I64, fma
from fastbp.simd.emit import BYTES, Loop, broadcast, hidden, load, number, prefetch, scalar_type, store, vector_type
from fastbp.simd.target import TARGET, Target, vector_length

FETCH_A, PACK_A, PACK_B = 1, 2, 4
FORMS = (0, FETCH_A, PACK_A, PACK_B, FETCH_A | PACK_B, PACK_A | PACK_B)
"""What a whole tile does besides; the last rows of a height are plain tiles."""

AHEAD = 12
"""Terms between a load and its prefetch."""
FAR_AHEAD = 32
"""The same for far columns of A, which come from memory."""
PANEL_AHEAD = 24
"""The same for a packed panel, which comes from the second-level cache."""

OPERANDS = ("a", "a_row", "a_col", "b", "b_row", "c", "c_row", "init", "init_row", "pack_a", "pack_b", "fetch_c")
"""A tile's arguments behind `depth`: addresses and strides in bytes. `init` is 0 or where the first values lie, `b_row`
counts in forms with PACK_B only (a panel's rows lie close), and `fetch_c` tells whether to fetch the next tile's C."""


class _Tile:
    """One form of the tile, as the body of an LLVM function."""

    def __init__(self, function: Any, rows: int, vectors: int, form: int, itemsize: int) -> None:
        self.rows, self.vectors, self.form, self.itemsize = rows, vectors, form, itemsize
        self.vector, self.step = vector_type(itemsize), vector_length(itemsize) * itemsize
        self.builder = builder = ir.IRBuilder(function.append_basic_block("entry"))
        self.depth = function.args[0]
        self.given = dict(zip(OPERANDS, function.args[1:], strict=True))
        names = ("a", "b", "c", "pack_a", "pack_b")
        self.pointers = {name: builder.inttoptr(self.given[name], BYTES) for name in names}
        sums = self._first()
        if form & PACK_B:
            self.b_row = self.given["b_row"]
        else:
            self.b_row = number(vectors * self.step)
        self.row3 = hidden(builder, builder.mul(self.given["a_row"], number(3)))
        sums = self._bursts(sums)
        for i in range(rows):
            for j in range(vectors):
                store(builder, sums[i * vectors + j], self._at(self.pointers["c"], "c_row", i, j), itemsize)
        builder.ret_void()

    def _at(self, base: Any, stride: str, i: int, j: int) -> Any:
        """Vector j of row i."""
        offset = self.builder.mul(self.given[stride], number(i))
        return self.builder.gep(base, [self.builder.add(offset, number(j * self.step))])

    def _first(self) -> list[Any]:
        """The sums' first values: what lies at `init`, or zero where it is 0."""
        builder, init = self.builder, self.given["init"]
        start, some = builder.block, builder.append_basic_block("init")
        ready = builder.append_basic_block("ready")
        builder.cbranch(builder.icmp_signed("!=", init, number(0)), some, ready)
        builder.position_at_end(some)
        base = builder.inttoptr(init, BYTES)
        tile = [(i, j) for i in range(self.rows) for j in range(self.vectors)]
        loaded = [load(builder, self._at(base, "init_row", i, j), self.vector, self.itemsize) for i, j in tile]
        builder.branch(ready)
        builder.position_at_end(ready)
        sums = [builder.phi(self.vector) for _ in loaded]
        for value, found in zip(sums, loaded, strict=True):
            value.add_incoming(ir.Constant(self.vector, None), start)
            value.add_incoming(found, some)
        return sums

    def _bursts(self, sums: list[Any]) -> list[Any]:
        """All terms, in as many parts as the tile has vectors where C is fetched: before each, a vector of every row of
        the next tile. One burst of all would fill the line buffers."""
        builder, pointers, one = self.builder, self.pointers, number(1)
        wanted = builder.icmp_signed("!=", self.given["fetch_c"], number(0))
        fetch = builder.and_(wanted, builder.icmp_signed(">=", self.depth, number(self.vectors)))
        last = hidden(builder, builder.select(fetch, number(self.vectors - 1), number(0)))  # so nothing is unrolled
        count = builder.select(fetch, builder.udiv(self.depth, number(self.vectors)), self.depth)
        far_rows = hidden(builder, builder.gep(pointers["a"], [builder.mul(self.given["a_row"], number(4))]))
        streams = [pointers["a"], far_rows, pointers["b"], pointers["pack_a"], pointers["pack_b"]]
        following = self._at(pointers["c"], "c_row", self.rows, 0)
        loop = Loop(builder, "burst", [number(0), following, *streams, *sums])
        part, following, *values = loop.variables
        with builder.if_then(fetch):
            for i in range(self.rows):
                prefetch(builder, self._at(following, "c_row", i, 0), write=True)
        rest = builder.sub(self.depth, builder.mul(last, count))
        values = self._terms(builder.select(builder.icmp_signed("==", part, last), rest, count), values)
        again = builder.icmp_signed("<", part, last)
        loop.close(again, [builder.add(part, one), builder.gep(following, [number(self.step)]), *values])
        return values[len(streams) :]

    def _terms(self, count: Any, values: list[Any]) -> list[Any]:
        """`count` > 0 terms: the moved pointers and the sums."""
        builder, vectors, given = self.builder, self.vectors, self.given
        loop = Loop(builder, "term", [count, *values])
        left, *pointers = loop.variables[:6]
        sums = loop.variables[6:]
        a, a4, b, pack_a, pack_b = (hidden(builder, pointer) for pointer in pointers)
        y = self._row_of_b(b, pack_b)
        if self.form & (FETCH_A | PACK_A):
            terms = FAR_AHEAD if self.form & PACK_A else AHEAD
            prefetch(builder, builder.gep(a, [builder.mul(given["a_col"], number(terms))]))
        if self.form & PACK_A:
            column = load(builder, a, ir.VectorType(scalar_type(self.itemsize), TARGET.tile_rows[0]), self.itemsize)
            store(builder, column, pack_a, self.itemsize)
            pack_a = builder.gep(pack_a, [number(TARGET.tile_rows[0] * self.itemsize)])
        multiply_add, new = fma(builder, self.vector), []
        for i in range(self.rows):
            x = broadcast(builder, self._element_of_a(a, a4, i), self.vector.count)
            new += [builder.call(multiply_add, [x, y[j], sums[i * vectors + j]]) for j in range(vectors)]
        a, a4 = (builder.gep(pointer, [given["a_col"]]) for pointer in (a, a4))
        b = builder.gep(b, [self.b_row])
        if self.form & PACK_B:
            pack_b = builder.gep(pack_b, [number(vectors * self.step)])
        left = builder.sub(left, number(1))
        moved = [a, a4, b, pack_a, pack_b, *new]
        loop.close(builder.icmp_signed("!=", left, number(0)), [left, *moved])
        return moved

    def _row_of_b(self, b: Any, pack_b: Any) -> list[Any]:
        """A term's vectors of B, those to come fetched. The few tiles of last rows do without."""
        builder, y = self.builder, []
        terms = AHEAD if self.form & PACK_B else PANEL_AHEAD
        for j in range(self.vectors):
            y.append(load(builder, builder.gep(b, [number(j * self.step)]), self.vector, self.itemsize))
            if self.rows == TARGET.tile_rows[0]:
                ahead = builder.add(builder.mul(self.b_row, number(terms)), number(j * self.step))
                prefetch(builder, builder.gep(b, [ahead]))
            if self.form & PACK_B:
                store(builder, y[j], builder.gep(pack_b, [number(j * self.step)]), self.itemsize)
        return y

    def _element_of_a(self, a: Any, a4: Any, i: int) -> Any:
        """Row i is reached from one of two pointers by a multiple of its stride that an address can hold: a pointer a
        row would not leave enough registers."""
        base = a if i < 4 else a4
        offset = self.row3 if i % 4 == 3 else self.builder.mul(self.given["a_row"], number(i % 4))
        return load(self.builder, self.builder.gep(base, [offset]), scalar_type(self.itemsize), self.itemsize)


def _tile(module: Any, rows: int, vectors: int, form: int, itemsize: int) -> Any:
    """The function of one form, in this module."""
    kind = ir.FunctionType(ir.VoidType(), [I64] * (1 + len(OPERANDS)))
    function = ir.Function(module, kind, f"fastbp_tile_{rows}_{vectors}_{form}_{itemsize}")
    function.linkage = "internal"
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    _Tile(function, rows, vectors, form, itemsize)
    return function


def forms(target: Target) -> list[tuple[int, int, int]]:
    """Rows, vectors and form of the tiles that are needed. A is copied for other panels only, and of several panels,
    cut evenly, none is less than half as wide as the widest."""
    tallest, *shorter = target.tile_rows
    widths = range(1, target.tile_vectors + 1)
    return [
        *((tallest, width, form) for form in FORMS for width in widths if not form & PACK_A or 2 * width >= widths[-1]),
        *((rows, width, 0) for rows in shorter for width in widths),
    ]


@intrinsic
def tile(
    typing, args, rows, vectors, form, depth,
    a, a_row, a_col, b, b_row, c, c_row, init, init_row, pack_a, pack_b, fetch_c,
):  # fmt: skip
    """Runs one tile: `rows` of A, one of the target's heights, against `vectors` of B, in one of `forms`. To be called
    at one place of a module."""
    size = args.dtype.bitwidth // 8

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        rows, vectors, form, *operands = values[1:]
        which = builder.or_(builder.shl(rows, number(8)), builder.or_(builder.shl(vectors, number(4)), form))
        done = builder.append_basic_block("tile_done")
        switch = builder.switch(which, done)
        for height, width, extra in forms(TARGET):
            block = builder.append_basic_block("tile")
            switch.add_case(number(height << 8 | width << 4 | extra), block)
            builder.position_at_end(block)
            builder.call(_tile(builder.module, height, width, extra, size), operands)
            builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return types.void(args, *([types.int64] * 16)), codegen
