"""Loops over whole vector registers, emitted as LLVM IR: for what LLVM does not vectorise by itself.

A body is a Python function of `Vector`s, on which + − · / work lane by lane. `elementwise` makes an intrinsic of it
that runs over a row, `map_and_sum` one that also returns a sum: whole vectors first, then one with the lanes masked
that lie behind the row's end. So an element's bits do not depend on where in a vector it lies.
LLVM leaves such loops scalar or half as wide: a maximum that heeds NaN, a call, a CPU for which it prefers 256 bits.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fastbp.simd.abi import I64, element
from fastbp.simd.target import vector_length

I32 = ir.IntType(32)
CONTRACT = ("contract",)


class Vector:
    """An LLVM value of vector type with arithmetic; numbers become vectors. a·b + c is one fused multiply-add where the
    CPU has it."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    @property
    def single(self) -> bool:
        """float32, not float64."""
        return isinstance(self.value.type.element, ir.FloatType)

    @property
    def count(self) -> int:
        return int(self.value.type.count)

    def splat(self, number: float) -> Vector:
        """A vector of the same type, each lane `number`."""
        return Vector(self.builder, ir.Constant(self.value.type, [number] * self.count))

    def _with(self, other: Vector | float) -> Any:
        return (other if isinstance(other, Vector) else self.splat(other)).value

    def __add__(self, other: Vector | float) -> Vector:
        return Vector(self.builder, self.builder.fadd(self.value, self._with(other), flags=CONTRACT))

    def __sub__(self, other: Vector | float) -> Vector:
        return Vector(self.builder, self.builder.fsub(self.value, self._with(other), flags=CONTRACT))

    def __mul__(self, other: Vector | float) -> Vector:
        return Vector(self.builder, self.builder.fmul(self.value, self._with(other), flags=CONTRACT))

    def __truediv__(self, other: Vector | float) -> Vector:
        return Vector(self.builder, self.builder.fdiv(self.value, self._with(other)))

    def __rsub__(self, other: float) -> Vector:
        return self.splat(other) - self

    def __rtruediv__(self, other: float) -> Vector:
        return self.splat(other) / self

    __radd__, __rmul__ = __add__, __mul__

    def zero_where(self, mask: Any) -> Vector:
        """0 in the lanes of a mask."""
        return Vector(self.builder, self.builder.select(mask, self.splat(0).value, self.value))

    def above(self, limit: Vector | float) -> Any:
        """The mask of lanes that are larger; a NaN is not."""
        return self.builder.fcmp_ordered(">", self.value, self._with(limit))

    def at_least(self, low: float) -> Vector:
        """The larger of each lane and `low`; a NaN stays."""
        other = self._with(low)
        return Vector(
            self.builder,
            self.builder.select(self.builder.fcmp_ordered(">", other, self.value), other, self.value),
        )

    def at_most(self, high: float) -> Vector:
        """The smaller of each lane and `high`; a NaN stays."""
        other = self._with(high)
        return Vector(
            self.builder,
            self.builder.select(self.builder.fcmp_ordered("<", other, self.value), other, self.value),
        )

    def larger(self, other: Vector) -> Vector:
        """self > other ? self : other, so other where either is NaN."""
        mask = self.builder.fcmp_ordered(">", self.value, other.value)
        return Vector(self.builder, self.builder.select(mask, self.value, other.value))

    @property
    def words(self) -> Any:
        """The bits, as integers."""
        kind = ir.VectorType(I32 if self.single else I64, self.count)
        return self.builder.bitcast(self.value, kind)

    def from_words(self, words: Any) -> Vector:
        """A vector of the same type with these bits."""
        return Vector(self.builder, self.builder.bitcast(words, self.value.type))

    def call(self, name: str, *arguments: Any) -> Vector:
        """What an LLVM function of this vector and other values, that has a result of the same type, returns."""
        values = [self.value, *(self._with(a) if isinstance(a, Vector | float) else a for a in arguments)]
        kind = ir.FunctionType(self.value.type, [value.type for value in values])
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return Vector(self.builder, self.builder.call(function, values))

    def each_lane(self, name: str) -> Vector:
        """What a function of the C library returns for every lane."""
        scalar = self.value.type.element
        function = cgutils.get_or_insert_function(self.builder.module, ir.FunctionType(scalar, [scalar]), name)
        value = self.value
        for lane in range(self.count):
            at = ir.Constant(I32, lane)
            one = self.builder.call(function, [self.builder.extract_element(self.value, at)])
            value = self.builder.insert_element(value, one, at)
        return Vector(self.builder, value)

    def folded(self, fold: Callable[[Vector, Vector], Vector]) -> Any:
        """All lanes folded into one number, in halves."""
        total, distance = self, self.count // 2
        while distance:
            across = ir.Constant(ir.VectorType(I32, self.count), [lane ^ distance for lane in range(self.count)])
            total = fold(total, Vector(self.builder, self.builder.shuffle_vector(total.value, total.value, across)))
            distance //= 2
        return self.builder.extract_element(total.value, ir.Constant(I32, 0))


class Lanes:
    """The lanes of one turn of a loop: all of them, or those that a mask leaves."""

    def __init__(self, builder: Any, vector: Any, index: Any, mask: Any = None) -> None:
        self.builder, self.vector, self.index, self.mask = builder, vector, index, mask
        self._bytes = 4 if isinstance(vector.element, ir.FloatType) else 8

    def _at(self, base: Any) -> Any:
        at = self.builder.gep(self.builder.inttoptr(base, self.vector.element.as_pointer()), [self.index])
        return self.builder.bitcast(at, self.vector.as_pointer())

    def load(self, base: Any) -> Vector:
        """The vector of the row at `base`; masked lanes are 0."""
        at = self._at(base)
        if self.mask is None:
            value = self.builder.load(at)
            value.align = self._bytes
            return Vector(self.builder, value)
        kind = ir.FunctionType(self.vector, [at.type, I32, self.mask.type, self.vector])
        function = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.masked.load.{self._suffix}")
        zero = ir.Constant(self.vector, None)
        return Vector(self.builder, self.builder.call(function, [at, ir.Constant(I32, self._bytes), self.mask, zero]))

    def store(self, vector: Vector, base: Any) -> None:
        at = self._at(base)
        if self.mask is None:
            self.builder.store(vector.value, at).align = self._bytes
            return
        kind = ir.FunctionType(ir.VoidType(), [self.vector, at.type, I32, self.mask.type])
        function = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.masked.store.{self._suffix}")
        self.builder.call(function, [vector.value, at, ir.Constant(I32, self._bytes), self.mask])

    def kept(self, vector: Vector, otherwise: Vector) -> Vector:
        """`otherwise` in the masked lanes."""
        if self.mask is None:
            return vector
        return Vector(self.builder, self.builder.select(self.mask, vector.value, otherwise.value))

    @property
    def _suffix(self) -> str:
        return f"v{self.vector.count}{'f32' if isinstance(self.vector.element, ir.FloatType) else 'f64'}.p0"


Turn = Callable[[Lanes, Sequence[Any]], Sequence[Any]]


def _loop(builder: Any, vector: Any, size: Any, starts: Sequence[Any], turn: Turn) -> list[Any]:
    """Emits `turn(lanes, carried)` for every vector of a row of `size` elements; returns what the last one carries."""
    length = ir.Constant(I64, vector.count)
    whole = builder.and_(size, ir.Constant(I64, -vector.count))
    before = builder.block
    loop, rest, tail, done = (builder.append_basic_block(name) for name in ("whole", "rest", "tail", "done"))
    builder.cbranch(builder.icmp_signed(">", whole, ir.Constant(I64, 0)), loop, rest)
    builder.position_at_end(loop)
    index = builder.phi(I64)
    carried = [builder.phi(value.type) for value in starts]
    new = turn(Lanes(builder, vector, index), carried)
    following = builder.add(index, length)
    for phi, start, value in zip([index, *carried], [ir.Constant(I64, 0), *starts], [following, *new], strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(value, builder.block)
    last = builder.block
    builder.cbranch(builder.icmp_signed("<", following, whole), loop, rest)
    builder.position_at_end(rest)
    so_far = [builder.phi(value.type) for value in starts]
    for phi, start, value in zip(so_far, starts, new, strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(value, last)
    builder.cbranch(builder.icmp_signed("<", whole, size), tail, done)
    builder.position_at_end(tail)
    lanes = ir.Constant(ir.VectorType(I32, vector.count), list(range(vector.count)))
    left = _splat(builder, builder.trunc(builder.sub(size, whole), I32), vector.count)
    ended = turn(Lanes(builder, vector, whole, builder.icmp_signed("<", lanes, left)), so_far)
    last = builder.block
    builder.branch(done)
    builder.position_at_end(done)
    results = [builder.phi(value.type) for value in starts]
    for phi, value, end in zip(results, so_far, ended, strict=True):
        phi.add_incoming(value, rest)
        phi.add_incoming(end, last)
    return results


def _splat(builder: Any, scalar: Any, count: int) -> Any:
    kind = ir.VectorType(scalar.type, count)
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(I32, 0))
    zeros = ir.Constant(ir.VectorType(I32, count), [0] * count)
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), zeros)


def _vector_type(args_type: Any) -> Any:
    return ir.VectorType(element(args_type), vector_length(args_type.dtype.bitwidth // 8))


def elementwise(function: Callable[..., Vector]) -> Any:
    """An intrinsic (args, x, y, size), with as many rows x as the function takes, up to three: y = function(x), element
    by element, over rows at addresses. y may be any of the rows that are read.
    """

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        *sources, target, size = values[1:]

        def turn(lanes: Lanes, carried: Sequence[Any]) -> Sequence[Any]:
            lanes.store(function(*(lanes.load(source) for source in sources)), target)
            return ()

        _loop(builder, _vector_type(signature.args[0]), size, (), turn)
        return context.get_dummy_value()

    @intrinsic
    def of_one(typing, args, x, y, size):
        return types.void(args, types.int64, types.int64, types.int64), emit

    @intrinsic
    def of_two(typing, args, x1, x2, y, size):
        return types.void(args, types.int64, types.int64, types.int64, types.int64), emit

    @intrinsic
    def of_three(typing, args, x1, x2, x3, y, size):
        return types.void(args, types.int64, types.int64, types.int64, types.int64, types.int64), emit

    return (of_one, of_two, of_three)[len(inspect.signature(function).parameters) - 1]


def _largest(a: Vector, b: Vector) -> Vector:
    return a.larger(b)


@intrinsic
def row_largest(typing: Any, args: Any, x: Any, size: Any) -> Any:
    """The largest of the `size` elements at address x; −∞ where there is none. A NaN may go unheeded."""

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _, x, size = values
        vector = _vector_type(signature.args[0])
        lowest = Vector(builder, ir.Constant(vector, [float("-inf")] * vector.count))

        def turn(lanes: Lanes, carried: Sequence[Any]) -> Sequence[Any]:
            return (lanes.kept(lanes.load(x), lowest).larger(Vector(builder, carried[0])).value,)

        (highest,) = _loop(builder, vector, size, (lowest.value,), turn)
        return Vector(builder, highest).folded(_largest)

    return args.dtype(args, types.int64, types.int64), codegen


def map_and_sum(function: Callable[[Vector, Vector, Vector], Vector]) -> Any:
    """An intrinsic (args, x, y, size, a, b): y = function(x, a, b) over a row, for numbers a and b; returns Σ y."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _, x, y, size, *numbers = values
        vector = _vector_type(signature.args[0])
        a, b = (Vector(builder, _splat(builder, number, vector.count)) for number in numbers)
        zero = Vector(builder, ir.Constant(vector, None))

        def turn(lanes: Lanes, carried: Sequence[Any]) -> Sequence[Any]:
            result = function(lanes.load(x), a, b)
            lanes.store(result, y)
            return ((Vector(builder, carried[0]) + lanes.kept(result, zero)).value,)

        (total,) = _loop(builder, vector, size, (zero.value,), turn)
        return Vector(builder, total).folded(lambda one, other: one + other)

    @intrinsic
    def over(typing, args, x, y, size, a, b):
        return args.dtype(args, types.int64, types.int64, types.int64, args.dtype, args.dtype), emit

    return over
