"""Each op's forward as one torch formula, from which torch derives the gradients."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from samples import Sample
from torch.nn import functional

from fastbp.ops.attention_dropout import weight_factors
from fastbp.ops.dropout import factors

Tensors = dict[str, Any]


def embedding(s: Sample, v: Tensors) -> torch.Tensor:
    return v["table"][v["tokens"]] + v["positions"][torch.arange(s.sizes.N) % s.sizes.T]


def layernorm(s: Sample, v: Tensors) -> torch.Tensor:
    return functional.layer_norm(v["x"], (s.sizes.C,), v["weight"], v["bias"], s.attributes["eps"])


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return functional.linear(x, weight.T, bias)


def linear(s: Sample, v: Tensors) -> torch.Tensor:
    return _linear(v["x"], v["weight"], v.get("bias"))


def qkv(s: Sample, v: Tensors) -> torch.Tensor:
    return torch.cat([_linear(v["x"], v[f"w{part}"], v.get(f"b{part}")) for part in "qkv"], dim=1)


def attention(s: Sample, v: Tensors) -> torch.Tensor:
    q, k, value = v["qkv"].reshape(s.sizes.B, s.sizes.T, 3, s.sizes.H, -1).permute(2, 0, 3, 1, 4)
    o = functional.scaled_dot_product_attention(q, k, value, is_causal=True)
    return o.transpose(1, 2).reshape(s.sizes.B, s.sizes.T, s.sizes.C)


def tiled_attention(s: Sample, v: Tensors) -> torch.Tensor:
    return attention(s, v)


def _masked(s: Sample, v: Tensors, make: Any, *arguments: Any) -> torch.Tensor:
    """M as the definition makes it."""
    known = SimpleNamespace(**s.sizes, **s.attributes)
    return torch.from_numpy(make(known, v["state"].numpy().astype(np.int32), *arguments, np.dtype("float64")))


def dropout(s: Sample, v: Tensors) -> torch.Tensor:
    return v["x"] * _masked(s, v, factors, s.sizes.S, v["x"].shape)


def attention_dropout(s: Sample, v: Tensors) -> torch.Tensor:
    B, T, C, H, _ = s.sizes.values()
    q, k, value = v["qkv"].reshape(B, T, 3, H, -1).permute(2, 0, 3, 1, 4)
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    weights = (q @ k.mT / (C // H) ** 0.5).masked_fill(future, -torch.inf).softmax(-1)
    return (weights * _masked(s, v, weight_factors) @ value).transpose(1, 2).reshape(B, T, C)


def tiled_attention_dropout(s: Sample, v: Tensors) -> torch.Tensor:
    return attention_dropout(s, v)


def softmax(s: Sample, v: Tensors) -> torch.Tensor:
    future = torch.arange(s.sizes.T) > (torch.arange(s.sizes.N) % s.sizes.T)[:, None]
    return (v["s"] * s.attributes["scale"]).masked_fill(future, -torch.inf).softmax(-1)


def gelu(s: Sample, v: Tensors) -> torch.Tensor:
    return functional.gelu(v["x"], approximate="tanh" if s.attributes["tanh"] else "none")


def residual(s: Sample, v: Tensors) -> torch.Tensor:
    return v["x"] + v["f"]


def linear_cross_entropy(s: Sample, v: Tensors) -> torch.Tensor:
    return functional.cross_entropy(v["x"] @ v["weight"].T, v["targets"], reduction="none")


def torch_gradients(sample: Sample) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The op's first output, and the gradient of every input and param that has one, in float64."""
    op, tensors = sample.op, {}
    for (role, port), array in sample.values.items():
        if role == "value" and (port in op.inputs or port in op.params):
            tensors[port] = torch.from_numpy(array.astype(np_type(port, op.integers)))
            tensors[port].requires_grad_(port not in op.integers and port not in sample.constant)
    output = globals()[op.name](sample, tensors)
    output.backward(torch.from_numpy(sample.values["gradient", next(iter(op.outputs))]))
    return output.detach(), {port: t.grad for port, t in tensors.items() if t.requires_grad}


def np_type(port: str, integers: tuple[str, ...]) -> str:
    return "int64" if port in integers else "float64"
