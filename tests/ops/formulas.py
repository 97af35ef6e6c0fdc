"""Each op's forward as one torch formula, from which torch derives the gradients."""

from __future__ import annotations

from typing import Any

import torch
from samples import Sample
from torch.nn import functional

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
