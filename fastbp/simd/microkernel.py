"""The heart of every product: a tile of C kept in registers while the terms of a block stream past; one call does all
tiles below each other.

    C[0:rows, 0:vectors·VL] = init + Σ_k A[·, k] · B[k, ·]

A tile may do more on its way, as `FORMS` says: copy the rows of B that it reads to a packed panel, for the tiles below,
and sum them; where A's columns lie far apart, fetch them term by term or copy them too, for the panels beside. What
comes next of A, of B and of C is fetched a little before every chunk of terms. Each form is an LLVM function of its
own, so that its loop has all registers: the sums are phi nodes of vector type, an element of A is broadcast, a row of B
is loaded as vectors. Strides are bytes, so the forward product (A by rows) and the weight gradient (A by columns) share
the code. An element of C is one chain of fused multiply-adds in the order of k, started from `init`: its
bits do not depend on the form, the tile, the slice or the worker.
"""

from __future__ import annotations

from collections.abc import Callable
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
LINE = 64
"""Bytes of a row of A that a chunk of terms reads."""

OPERANDS = (
    "count", "a", "a_row", "a_col", "a_step", "a_ahead", "b", "b_row", "c", "c_row", "init", "init_row", "pack_a",
    "pack_b", "sums", "soon", "soon_end", "fetch_c",
)  # fmt: skip
"""The arguments behind `depth`: the number of tiles, at least 1, and addresses and strides in bytes. `a_step` leads
from one tile's A to the next, `a_ahead` to what comes next of A; `init` is 0 or where the first values lie. With PACK_B
`b` has rows `b_row` apart, which `sums` grow by where it is not 0; else it is a panel, and the next panel's rows lie
from `soon` up to `soon_end`, `b_row` apart, to be fetched. `fetch_c` tells whether to fetch the next tile's C."""


class _Tile:
    """One form of the tile, as the body of an LLVM function."""

    def __init__(self, function: Any, rows: int, vectors: int, form: int, itemsize: int) -> None:
        self.rows, self.vectors, self.form, self.itemsize = rows, vectors, form, itemsize
        self.vector, self.step = vector_type(itemsize), vector_length(itemsize) * itemsize
        self.builder = builder = ir.IRBuilder(function.append_basic_block("entry"))
        self.depth = function.args[0]
        self.given = given = dict(zip(OPERANDS, function.args[1:], strict=True))
        self.b_row = given["b_row"] if form & PACK_B else number(vectors * self.step)
        self.row3 = hidden(builder, builder.mul(given["a_row"], number(3)))
        names = ("a", "b", "c", "pack_a", "pack_b", "soon", "soon_end")
        self.pointers = {name: builder.inttoptr(given[name], BYTES) for name in names}
        moving = ("a", "c", "pack_a", "soon")
        loop = Loop(builder, "tile", [given["count"], given["init"], *(self.pointers[name] for name in moving)])
        left, init, *pointers = loop.variables
        self.pointers.update(zip(moving, pointers, strict=True))
        soon = self._run(init)
        left = builder.sub(left, number(1))
        column = number(rows * itemsize)
        steps = {
            "a": given["a_step"], "c": builder.mul(given["c_row"], number(rows)),
            "pack_a": builder.add(builder.mul(self.depth, column), number(LINE)),
        }  # fmt: skip
        below = [builder.gep(self.pointers[name], [step]) for name, step in steps.items()]
        init = builder.add(init, builder.mul(given["init_row"], number(rows)))
        loop.close(builder.icmp_signed(">", left, number(0)), [left, init, *below, soon])
        builder.ret_void()

    def _run(self, init: Any) -> Any:
        """One tile; returns where `soon` has come to."""
        builder, given = self.builder, self.given
        tile = [(i, j) for i in range(self.rows) for j in range(self.vectors)]
        sums = self._starts(init, lambda base: [self._at(base, "init_row", i, j) for i, j in tile])
        totals = self._starts(given["sums"], self._columns) if self.form & PACK_B else []
        soon, *values = self._chunks([*sums, *totals])
        for (i, j), value in zip(tile, values, strict=False):
            store(builder, value, self._at(self.pointers["c"], "c_row", i, j), self.itemsize)
        if self.form & PACK_B:
            with builder.if_then(builder.icmp_signed("!=", given["sums"], number(0))):
                places = self._columns(builder.inttoptr(given["sums"], BYTES))
                for value, place in zip(values[len(tile) :], places, strict=True):
                    store(builder, value, place, self.itemsize)
        return soon

    def _at(self, base: Any, stride: str, i: int, j: int) -> Any:
        """Vector j of row i."""
        offset = self.builder.mul(self.given[stride], number(i))
        return self.builder.gep(base, [self.builder.add(offset, number(j * self.step))])

    def _columns(self, base: Any) -> list[Any]:
        """The vectors of a row."""
        return [self.builder.gep(base, [number(j * self.step)]) for j in range(self.vectors)]

    def _starts(self, base: Any, places: Callable[[Any], list[Any]]) -> list[Any]:
        """Vectors that lie at places from an address on, or zeros where that is 0."""
        builder = self.builder
        start, some = builder.block, builder.append_basic_block("some")
        ready = builder.append_basic_block("ready")
        builder.cbranch(builder.icmp_signed("!=", base, number(0)), some, ready)
        builder.position_at_end(some)
        found = places(builder.inttoptr(base, BYTES))
        loaded = [load(builder, place, self.vector, self.itemsize) for place in found]
        builder.branch(ready)
        builder.position_at_end(ready)
        values = [builder.phi(self.vector) for _ in loaded]
        for value, vector in zip(values, loaded, strict=True):
            value.add_incoming(ir.Constant(self.vector, None), start)
            value.add_incoming(vector, some)
        return values

    def _chunks(self, sums: list[Any]) -> list[Any]:
        """All terms, a line of A's rows at a time: `soon`, moved on, the sums and B's totals. Fetching is spread over
        the chunks, since one burst of all would fill the line buffers."""
        builder, pointers, chunk = self.builder, self.pointers, number(LINE // self.itemsize)
        fetch_c = builder.icmp_signed("!=", self.given["fetch_c"], number(0))
        unfetched = builder.select(fetch_c, number(self.vectors), number(0))
        far_rows = hidden(builder, builder.gep(pointers["a"], [builder.mul(self.given["a_row"], number(4))]))
        streams = [pointers["a"], far_rows, pointers["b"], pointers["pack_a"], pointers["pack_b"]]
        following = self._at(pointers["c"], "c_row", self.rows, 0)
        loop = Loop(builder, "chunk", [self.depth, unfetched, following, pointers["soon"], *streams, *sums])
        rest, unfetched, following, soon, *values = loop.variables
        some = builder.icmp_signed(">", unfetched, number(0))
        with builder.if_then(some):
            for i in range(self.rows):
                prefetch(builder, self._at(following, "c_row", i, 0), write=True)
        if not self.form & (FETCH_A | PACK_A):
            a, a4 = (builder.gep(pointer, [self.given["a_ahead"]]) for pointer in values[:2])
            for i in range(self.rows):
                prefetch(builder, self._row_of_a(a, a4, i))
        if not self.form & PACK_B:
            wanted = builder.icmp_unsigned("<", soon, pointers["soon_end"])
            with builder.if_then(wanted):
                for j in range(self.vectors):
                    prefetch(builder, builder.gep(soon, [number(j * self.step)]), locality=2)
            soon = builder.gep(soon, [builder.select(wanted, self.given["b_row"], number(0))])
        short = builder.icmp_signed("<", rest, chunk)
        values = self._terms(builder.select(short, rest, chunk), values)
        rest = builder.sub(rest, chunk)
        loop.close(
            builder.icmp_signed(">", rest, number(0)),
            [rest, builder.sub(unfetched, number(1)), builder.gep(following, [number(self.step)]), soon, *values],
        )
        return [soon, *values[len(streams) :]]

    def _terms(self, count: Any, values: list[Any]) -> list[Any]:
        """`count` > 0 terms: the moved pointers, the sums and B's totals."""
        builder, vectors, given = self.builder, self.vectors, self.given
        loop = Loop(builder, "term", [count, *values])
        left, *pointers = loop.variables[:6]
        sums, totals = loop.variables[6 : 6 + self.rows * vectors], loop.variables[6 + self.rows * vectors :]
        a, a4, b, pack_a, pack_b = (hidden(builder, pointer) for pointer in pointers)
        y = self._row_of_b(b, pack_b)
        if self.form & PACK_A:
            prefetch(builder, builder.gep(a, [builder.mul(given["a_col"], number(FAR_AHEAD))]))
            column = load(builder, a, ir.VectorType(scalar_type(self.itemsize), TARGET.tile_rows[0]), self.itemsize)
            store(builder, column, pack_a, self.itemsize)
            pack_a = builder.gep(pack_a, [number(TARGET.tile_rows[0] * self.itemsize)])
        elif self.form & FETCH_A:
            prefetch(builder, builder.gep(a, [given["a_ahead"]]))
        multiply_add, new = fma(builder, self.vector), []
        for i in range(self.rows):
            element = load(builder, self._row_of_a(a, a4, i), scalar_type(self.itemsize), self.itemsize)
            x = broadcast(builder, element, self.vector.count)
            new += [builder.call(multiply_add, [x, y[j], sums[i * vectors + j]]) for j in range(vectors)]
        new += [builder.fadd(total, y[j]) for j, total in enumerate(totals)]
        a, a4 = (builder.gep(pointer, [given["a_col"]]) for pointer in (a, a4))
        b = builder.gep(b, [self.b_row])
        if self.form & PACK_B:
            pack_b = builder.gep(pack_b, [number(vectors * self.step)])
        left = builder.sub(left, number(1))
        moved = [a, a4, b, pack_a, pack_b, *new]
        loop.close(builder.icmp_signed("!=", left, number(0)), [left, *moved])
        return moved

    def _row_of_b(self, b: Any, pack_b: Any) -> list[Any]:
        """A term's vectors of B; where they are copied, those to come are fetched."""
        builder, y = self.builder, []
        for j in range(self.vectors):
            y.append(load(builder, builder.gep(b, [number(j * self.step)]), self.vector, self.itemsize))
            if self.form & PACK_B:
                ahead = builder.add(builder.mul(self.b_row, number(AHEAD)), number(j * self.step))
                prefetch(builder, builder.gep(b, [ahead]))
                store(builder, y[j], builder.gep(pack_b, [number(j * self.step)]), self.itemsize)
        return y

    def _row_of_a(self, a: Any, a4: Any, i: int) -> Any:
        """Row i is reached from one of two pointers by a multiple of its stride that an address can hold: a pointer a
        row would not leave enough registers."""
        offset = self.row3 if i % 4 == 3 else self.builder.mul(self.given["a_row"], number(i % 4))
        return self.builder.gep(a if i < 4 else a4, [offset])


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
    count, a, a_row, a_col, a_step, a_ahead, b, b_row, c, c_row, init, init_row, pack_a,
    pack_b, sums, soon, soon_end, fetch_c,
):  # fmt: skip
    """Runs tiles: `rows` of A each, one of the target's heights, against `vectors` of B, in one of `forms`. To be
    called at one place of a module."""
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

    return types.void(args, *([types.int64] * (4 + len(OPERANDS)))), codegen
