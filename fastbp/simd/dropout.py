"""Dropout's factors M in vectors, for Numba's kernels: the twin of fastbp/_dropout.h, where it is told how words lie.

A word of the generator has a lane of 64 bits to itself. `drop` is what `dropout_of` gives: the key, the place, the
least word that keeps, 1/(1 − p).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fastbp.base.philox import KEY_STEPS, LOW, MULTIPLIERS, ROUNDS, WORDS
from fastbp.simd.abi import I64, cast, int_span, number64
from fastbp.simd.attention import BLOCK_VECTORS, lanes
from fastbp.simd.emit import BYTES, I32, broadcast, load, number, store, vector_type
from fastbp.simd.target import TARGET, vector_length
from fastbp.simd.vector import Lanes, Vector

WIDE = TARGET.vector_bytes // 8
"""Words of the generator in a vector."""
ROW_PART = WORDS * WIDE
VECTOR_BYTES = TARGET.vector_bytes
BLOCK_BYTES = BLOCK_VECTORS * VECTOR_BYTES


@numba.njit(nogil=True)
def dropout_of(args, attributes, state):
    """(key, key, place, threshold, scale) from the slot of the attributes and the address of the state."""
    rate, key = number64(args, attributes), int_span(args, state, 0, 2)
    threshold = numba.int64(min(rate * 2.0**32 + 0.5, float(LOW)))
    place = numba.int64(number64(args, attributes + 1))
    low = numba.int64(LOW)
    return key[0] & low, key[1] & low, place, threshold, cast(args, 1.0 / (1.0 - rate))


class _Factors:
    """Emits the generator for one `drop`, whose values are given as they are in Numba."""

    def __init__(self, builder: Any, itemsize: int, drop: Sequence[Any]) -> None:
        self.builder, self.single = builder, itemsize == 4
        self.wide = ir.VectorType(I64, WIDE)
        self.count = vector_length(itemsize)
        self._keys, self._place, threshold, scale = drop[:2], drop[2], drop[3], drop[4]
        if self.single:
            threshold = builder.trunc(threshold, I32)
        self._threshold, self._scale = broadcast(builder, threshold, self.count), broadcast(builder, scale, self.count)

    def splat(self, value: Any) -> Any:
        return broadcast(self.builder, value, WIDE)

    def constant(self, *values: int) -> Any:
        return ir.Constant(self.wide, list(values) if len(values) > 1 else list(values) * WIDE)

    def low(self, value: Any) -> Any:
        return self.builder.and_(value, self.constant(LOW))

    def words(self, quad: Any, row: Any) -> list[Any]:
        """The four words of the counters (quad, row, place, 0)."""
        b, half = self.builder, self.constant(32)
        c0, c1, c2, c3 = quad, row, self.splat(self._place), self.constant(0)
        for i in range(ROUNDS):
            keys = [
                self.splat(b.and_(b.add(key, number(i * step)), number(LOW)))
                for key, step in zip(self._keys, KEY_STEPS, strict=True)
            ]
            first, second = (b.mul(self.low(c), self.constant(m)) for c, m in zip((c0, c2), MULTIPLIERS, strict=True))
            c0 = b.xor(b.xor(b.lshr(second, half), c1), keys[0])
            c2 = b.xor(b.xor(b.lshr(first, half), c3), keys[1])
            c1, c3 = second, first
        return [c0, c1, c2, c3]

    def both(self, low: Any, high: Any) -> Any:
        """Two words a lane, the second one above the first."""
        return self.builder.or_(self.low(low), self.builder.shl(high, self.constant(32)))

    def interleaved(self, a: Any, b: Any) -> tuple[Any, Any]:
        """The lanes of a and b in turn: of their first halves, and of their second."""

        def turn(start: int) -> Any:
            lanes = [j % 2 * WIDE + j // 2 + start for j in range(WIDE)]
            return self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, WIDE), lanes))

        return turn(0), turn(WIDE // 2)

    def of(self, word: Any) -> Any:
        """The factors of two words a lane in float32, of one in float64."""
        word = self.builder.bitcast(word, ir.VectorType(I32, self.count)) if self.single else self.low(word)
        kept = self.builder.icmp_unsigned(">=", word, self._threshold)
        return self.builder.select(kept, self._scale, ir.Constant(self._scale.type, None))

    def along_row(self, row: Any, quad: Any) -> list[Any]:
        """Those of 4·WIDE elements of a row from column 4·quad on."""
        quads = self.builder.add(self.splat(quad), self.constant(*range(WIDE)))
        w = self.words(quads, self.splat(row))
        if self.single:
            return [self.of(each) for each in self.interleaved(self.both(w[0], w[1]), self.both(w[2], w[3]))]
        halves = zip(self.interleaved(w[0], w[2]), self.interleaved(w[1], w[3]), strict=True)
        return [self.of(each) for even, odd in halves for each in self.interleaved(even, odd)]

    def down_columns(self, row: Any, quad: Any) -> list[Any]:
        """Those of columns 4·quad … 4·quad + 3, each of a vector of rows from `row` on."""
        quads, rows, step = self.splat(quad), self.splat(row), 2 if self.single else 1
        starts = [self.constant(*range(first, first + WIDE * step, step)) for first in range(step)]
        parts = [self.words(quads, self.builder.add(rows, start)) for start in starts]
        return [self.of(self.both(*pair)) if self.single else self.of(*pair) for pair in zip(*parts, strict=True)]


def _factors(builder: Any, args: Any, drop: Any) -> _Factors:
    return _Factors(builder, args.dtype.bitwidth // 8, cgutils.unpack_tuple(builder, drop))


@intrinsic
def _drop_part(typing, args, x, y, size, row, column, drop):
    """y = x ∘ M for those of the 4·WIDE elements from `column` on that lie before `size`."""

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _, x, y, size, row, column, drop = values
        vector = vector_type(signature.args[0].dtype.bitwidth // 8)
        factors = _factors(builder, signature.args[0], drop).along_row(row, builder.udiv(column, number(WORDS)))
        lane = ir.Constant(ir.VectorType(I64, vector.count), list(range(vector.count)))
        for i, factor in enumerate(factors):
            at = builder.add(column, number(i * vector.count))
            inside = builder.icmp_signed("<", lane, broadcast(builder, builder.sub(size, at), vector.count))
            part = Lanes(builder, vector, at, inside)
            part.store(part.load(x) * Vector(builder, factor), y)
        return context.get_dummy_value()

    return types.void(args, *([types.int64] * 5), drop), codegen


@intrinsic
def _drop_quad(typing, args, s, first, last, row, quad, drop):
    """Of four rows of S, one a column of M from 4·quad on, those from `first` to before `last` times their factors."""

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _, s, first, last, row, quad, drop = values
        size = signature.args[0].dtype.bitwidth // 8
        factors = _factors(builder, signature.args[0], drop).down_columns(row, quad)
        for i, factor in enumerate(factors):
            begun = builder.icmp_signed("<=", first, number(i))
            with builder.if_then(builder.and_(begun, builder.icmp_signed(">", last, number(i)))):
                offset = number(i * BLOCK_BYTES)
                at = builder.inttoptr(builder.add(s, offset), BYTES)
                store(builder, builder.fmul(load(builder, at, vector_type(size), size), factor), at, size)
        return context.get_dummy_value()

    return types.void(args, *([types.int64] * 5), drop), codegen


@numba.njit(nogil=True)
def drop_row(args, x, y, size, row, drop):
    """y = x ∘ M for the first `size` elements of a row, at addresses; y may be x."""
    for column in range(0, size, ROW_PART):
        _drop_part(args, x, y, size, row, column, drop)


@numba.njit(nogil=True)
def drop_strip(args, vectors, rows, s, row, key, drop):
    """S ∘ M for a strip of `rows` keys from `key` on, held transposed as in fastbp/simd/attention.py; its queries are
    rows of M from `row` on."""
    for quad in range(key // WORDS, (key + rows + WORDS - 1) // WORDS):
        before = WORDS * quad - key
        at = s + before * BLOCK_BYTES
        for j in range(vectors):
            _drop_quad(
                args, at + j * VECTOR_BYTES, -before, rows - before, row + j * lanes(args), quad, drop
            )  # fmt: skip
