"""The FMA limit of a core: independent chains of fused multiply-adds in registers, nothing else.

It is what every share of the peak is a share of, measured in the same run.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fastbp.simd.abi import I64, dim, fma
from fastbp.simd.target import vector_length

CHAINS = 12
"""Enough to hide the latency of two units (4 to 5 cycles each) and few enough for 16 registers."""


@intrinsic
def _chains(typing: Any, args: Any, rounds: Any) -> Any:
    """Runs `rounds` of CHAINS multiply-adds and returns a sum that keeps them alive."""

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        size = signature.args[0].dtype.bitwidth // 8
        scalar = ir.FloatType() if size == 4 else ir.DoubleType()
        vector = ir.VectorType(scalar, vector_length(size))
        multiply_add = fma(builder, vector)
        before = builder.block
        loop, done = builder.append_basic_block("loop"), builder.append_basic_block("done")
        factor = ir.Constant(vector, [0.999] * vector.count)
        builder.branch(loop)
        builder.position_at_end(loop)
        k = builder.phi(I64)
        sums = [builder.phi(vector) for _ in range(CHAINS)]
        new = [builder.call(multiply_add, [total, factor, factor]) for total in sums]
        for i, (total, value) in enumerate(zip(sums, new, strict=True)):
            total.add_incoming(ir.Constant(vector, [float(i)] * vector.count), before)
            total.add_incoming(value, loop)
        following = builder.add(k, ir.Constant(I64, 1))
        k.add_incoming(ir.Constant(I64, 0), before)
        k.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", following, values[1]), loop, done)
        builder.position_at_end(done)
        total = new[0]
        for value in new[1:]:
            total = builder.fadd(total, value)
        return builder.extract_element(total, ir.Constant(ir.IntType(32), 0))

    return args.dtype(args, types.int64), codegen


def numba_fma_peak(args, worker, workers):
    """args[0] rounds on every worker; args[1] the address of a result for each worker."""
    _store(args, dim(args, 1), worker, _chains(args, dim(args, 0)))


@intrinsic
def _store(typing: Any, args: Any, address: Any, index: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        pointer = builder.inttoptr(values[1], values[3].type.as_pointer())
        builder.store(values[3], builder.gep(pointer, [values[2]]))
        return context.get_dummy_value()

    return types.void(args, types.int64, types.int64, args.dtype), codegen


def flops(rounds: int, itemsize: int) -> int:
    """FLOPs of one worker's run."""
    return 2 * rounds * CHAINS * vector_length(itemsize)
