"""Every op by name."""

from __future__ import annotations

from fastbp.ops import adamw, attention, embedding, gelu, layernorm, linear, linear_cross_entropy, qkv, residual, softmax
from fastbp.ops.op import Op

OPS: dict[str, Op] = {
    module.OP.name: module.OP
    for module in (
        embedding, layernorm, linear, qkv, attention, softmax, gelu, residual, linear_cross_entropy, adamw,
    )
}  # fmt: skip
