"""Every op by name."""

from __future__ import annotations

from fastbp.ops import (
    adamw,
    attention,
    attention_dropout,
    dropout,
    embedding,
    gelu,
    layernorm,
    linear,
    linear_cross_entropy,
    pack,
    qkv,
    residual,
    softmax,
    tiled_attention,
    tiled_attention_dropout,
    unpack,
)
from fastbp.ops.op import Op

OPS: dict[str, Op] = {
    module.OP.name: module.OP
    for module in (
        embedding, layernorm, linear, qkv, attention, tiled_attention, softmax, gelu, residual,
        dropout, attention_dropout, tiled_attention_dropout,
        linear_cross_entropy, adamw, pack, unpack,
    )
}  # fmt: skip


def register(op: Op) -> Op:
    """Adds an op of your own, so that graphs and backends find it by name. Raises ValueError where the name is
    taken.
    """
    if OPS.setdefault(op.name, op) is not op:
        raise ValueError(f"there is an op {op.name} already: choose another name")
    return op
