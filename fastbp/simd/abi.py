"""How a Numba kernel reads its arguments.

A kernel is compiled as `void kernel(const int64_t *args, int64_t worker, int64_t workers)`. To Numba the first argument
is a pointer to float32 or float64: C does not see the difference, and so one source serves both dtypes and the type of
`args` tells every helper which one is meant.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable
from numba.np.numpy_support import carray

KERNEL = {
    "float32": types.void(types.CPointer(types.float32), types.int64, types.int64),
    "float64": types.void(types.CPointer(types.float64), types.int64, types.int64),
}
I64 = ir.IntType(64)
FLAGS = {"reassoc", "contract", "nsz", "arcp"}
"""The fast-math that is allowed: nothing that assumes away NaN or infinity."""


def element(args_type: Any) -> Any:
    """The LLVM type of the elements that `args` stands for."""
    return ir.FloatType() if args_type.dtype == types.float32 else ir.DoubleType()


@intrinsic
def dim(typing: Any, args: Any, slot: Any) -> Any:
    """args[slot] as an integer: a dimension or an address."""

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        words = builder.bitcast(values[0], I64.as_pointer())
        return builder.load(builder.gep(words, [values[1]]))

    return types.int64(args, types.int64), codegen


@intrinsic
def number64(typing: Any, args: Any, slot: Any) -> Any:
    """args[slot] as the bits of a float64, whole in either dtype."""

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        words = builder.bitcast(values[0], ir.DoubleType().as_pointer())
        return builder.load(builder.gep(words, [values[1]]))

    return types.float64(args, types.int64), codegen


@intrinsic
def number(typing: Any, args: Any, slot: Any) -> Any:
    """args[slot] as the bits of a float64, in the kernel's dtype."""

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        words = builder.bitcast(values[0], ir.DoubleType().as_pointer())
        value = builder.load(builder.gep(words, [values[1]]))
        if signature.args[0].dtype == types.float32:
            value = builder.fptrunc(value, ir.FloatType())
        return value

    return args.dtype(args, types.int64), codegen


@intrinsic
def itemsize(typing: Any, args: Any) -> Any:
    """Bytes of an element."""
    size = args.dtype.bitwidth // 8

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return ir.Constant(I64, size)

    return types.int64(args), codegen


def _pointer(dtype: Any) -> Any:
    """An intrinsic (args, address) → pointer to `dtype`; None stands for the dtype of args."""

    @intrinsic
    def pointer(typing: Any, args: Any, address: Any) -> Any:
        result = types.CPointer(dtype or args.dtype)

        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return builder.inttoptr(values[1], context.get_value_type(result))

        return result(args, types.int64), codegen

    return pointer


_reals = _pointer(None)
_ints = _pointer(types.int32)
_doubles = _pointer(types.float64)
_halves = _pointer(types.uint16)


@register_jitable
def span(args, address, start, size):
    """`size` elements from element `start` of the buffer at `address`, as a one-dimensional array."""
    return carray(_reals(args, address + start * itemsize(args)), size)


@register_jitable
def int_span(args, address, start, size):
    """The same for int32."""
    return carray(_ints(args, address + start * 4), size)


@register_jitable
def double_span(args, address, start, size):
    """The same for float64, whatever the kernel's dtype."""
    return carray(_doubles(args, address + start * 8), size)


@register_jitable
def half_span(args, address, start, size):
    """The same for bfloat16, as its bits in uint16."""
    return carray(_halves(args, address + start * 2), size)


@intrinsic
def cast(typing: Any, args: Any, value: Any) -> Any:
    """A number in the kernel's dtype."""

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return context.cast(builder, values[1], signature.args[1], signature.return_type)

    return args.dtype(args, value), codegen


def distinct(*parts: object) -> Any:
    """Decorates a function that a generator makes in several forms: each form gets a name of its own.

    Code from the cache and code compiled now are linked by name. Forms that differ in what they enclose, and not in the
    types of their arguments, would have one name, and the linker would take either for the other.
    """

    def rename(function: Any) -> Any:
        function.__qualname__ = "_".join([function.__qualname__, *map(str, parts)])
        return function

    return rename


def inline(function: Any) -> Any:
    """A helper of kernels, compiled for each dtype with the fast-math that is allowed."""
    return numba.njit(fastmath=FLAGS, nogil=True, error_model="numpy")(function)


@inline
def copy(source, target, size):
    """target = source. Kernels that may run in place copy first where they do not, and then know of one array only:
    two that might overlap would not be vectorised."""
    for i in range(size):
        target[i] = source[i]


@inline
def add(source, total, size):
    """total += source."""
    for i in range(size):
        total[i] += source[i]


def fma(builder: Any, vector: Any) -> Any:
    """The fused multiply-add of a vector or scalar type, declared by hand: numba has no vector overloads."""
    if isinstance(vector, ir.VectorType):
        scalar = "f32" if isinstance(vector.element, ir.FloatType) else "f64"
        name = f"llvm.fma.v{vector.count}{scalar}"
    else:
        name = "llvm.fma.f32" if isinstance(vector, ir.FloatType) else "llvm.fma.f64"
    kind = ir.FunctionType(vector, (vector, vector, vector))
    return cgutils.get_or_insert_function(builder.module, kind, name)
