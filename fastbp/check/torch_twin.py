"""The decoder once more, as a plain torch function whose gradients autograd derives.

It is the judge of the backward pass written by hand, so it shares no code with it: softmax
attention is spelled out, nothing is fused, and everything runs in the dtype of the parameters.

    x0 = wte[token] + position
    x  = x + Attn(LN1(x));  x = x + W2 gelu(W1 LN2(x))      once a block
    logits = LN_f(x) wteᵀ;  loss = mean cross-entropy

Every weight is stored (in, out): y = x W + b. Import this file only where
`torch_available.torch_version()` is not None.

Trap: a sum split over threads depends on their number. `gradients` and `linear_gradients` therefore
run on one thread, so that they repeat to the bit, and give the caller's thread count back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

Array = NDArray[Any]


class DecoderLike(Protocol):
    """What the twin reads of a `DecoderConfig`."""

    @property
    def blocks(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def positions(self) -> str: ...
    @property
    def attention_bias(self) -> bool: ...
    @property
    def feed_forward_bias(self) -> bool: ...
    @property
    def eps(self) -> float: ...
    @property
    def gelu(self) -> str: ...


def decoder_logits(config: DecoderLike, parameters: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    """Logits (B, T, V) of tokens (B, T); KeyError for a parameter that `config` asks for."""
    wte = parameters["wte"]
    x = F.embedding(tokens, wte) + _positions(config, parameters, tokens.shape[1])
    for i in range(config.blocks):
        block = f"blocks.{i}."
        x = x + _attention(config, parameters, block, _norm(config, parameters, block + "ln1", x))
        x = x + _feed_forward(config, parameters, block, _norm(config, parameters, block + "ln2", x))
    return _norm(config, parameters, "final.ln", x) @ wte.T


def decoder_loss(config: DecoderLike, parameters: Mapping[str, Tensor], tokens: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy, in nats, of targets (B, T) after tokens (B, T): a scalar tensor."""
    logits = decoder_logits(config, parameters, tokens)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="mean")


def gradients(
    config: DecoderLike, parameters: Mapping[str, Array], tokens: Array, targets: Array
) -> tuple[float, dict[str, Array]]:
    """The loss and its gradient by every parameter, by name, in each parameter's shape and dtype.

    `parameters` share one dtype; tokens and targets are integers (B, T). A parameter that is
    missing raises KeyError, and one that the loss does not depend on RuntimeError.
    """
    with _one_thread():
        leaves = {name: _leaf(array) for name, array in parameters.items()}
        loss = decoder_loss(config, leaves, _ids(tokens), _ids(targets))
        derived = torch.autograd.grad(loss, list(leaves.values()))
        return loss.item(), {name: dvalue.numpy() for name, dvalue in zip(leaves, derived, strict=True)}


def linear_gradients(x: Array, w: Array) -> tuple[Array, Array]:
    """(dx, dw) of mean(x wᵀ) through `torch.nn.Linear` without bias, in the dtype of x.

    x is (N, in) and w is (out, in), torch's layout; the gradients have their shapes.
    """
    with _one_thread():
        leaf = _leaf(x)
        # On the meta device the module draws no numbers from torch's generator.
        linear = torch.nn.Linear(w.shape[1], w.shape[0], bias=False, device="meta")
        linear.weight = torch.nn.Parameter(_leaf(w.astype(x.dtype)).detach())
        dx, dw = torch.autograd.grad(linear(leaf).mean(), [leaf, linear.weight])
        return dx.numpy(), dw.numpy()


def _positions(config: DecoderLike, parameters: Mapping[str, Tensor], T: int) -> Tensor:
    """(T, C): the learned rows, or sin and cos in turn of t / 10000^(2i/C)."""
    if config.positions == "learned":
        return parameters["wpe"][:T]
    wte = parameters["wte"]
    C = config.width
    t = torch.arange(T, dtype=torch.float64)[:, None]
    angle = t / 10000 ** (torch.arange(0, C, 2, dtype=torch.float64) / C)
    table = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :C]
    return table.to(wte.dtype)


def _norm(config: DecoderLike, parameters: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    weight, bias = parameters[name + ".weight"], parameters[name + ".bias"]
    return F.layer_norm(x, (config.width,), weight, bias, config.eps)


def _linear(parameters: Mapping[str, Tensor], block: str, weight: str, bias: str | None, x: Tensor) -> Tensor:
    y = x @ parameters[block + weight]
    return y if bias is None else y + parameters[block + bias]


def _attention(config: DecoderLike, parameters: Mapping[str, Tensor], block: str, x: Tensor) -> Tensor:
    """P = softmax(q kᵀ / √D) over the past and the present, head by head; (P v) W_o."""
    B, T, C = x.shape
    H, D = config.heads, C // config.heads

    def linear(letter: str, value: Tensor) -> Tensor:
        bias = f"attn.b{letter}" if config.attention_bias else None
        return _linear(parameters, block, f"attn.w{letter}", bias, value)

    q, k, v = (linear(letter, x).view(B, T, H, D).transpose(1, 2) for letter in "qkv")
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(2, 3) / math.sqrt(D)).masked_fill(future, -math.inf)
    heads = torch.softmax(scores, dim=-1) @ v
    return linear("o", heads.transpose(1, 2).reshape(B, T, C))


def _feed_forward(config: DecoderLike, parameters: Mapping[str, Tensor], block: str, x: Tensor) -> Tensor:
    b1, b2 = ("mlp.b1", "mlp.b2") if config.feed_forward_bias else (None, None)
    hidden = _linear(parameters, block, "mlp.w1", b1, x)
    # torch's word for the exact GELU, with erf, is "none".
    activated = F.gelu(hidden, approximate={"tanh": "tanh", "erf": "none"}[config.gelu])
    return _linear(parameters, block, "mlp.w2", b2, activated)


def _leaf(array: Array) -> Tensor:
    """A copy, so that read-only arrays and odd strides are welcome."""
    return torch.from_numpy(np.array(array, order="C")).requires_grad_()


def _ids(array: Array) -> Tensor:
    return torch.from_numpy(np.array(array, dtype=np.int64))


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
