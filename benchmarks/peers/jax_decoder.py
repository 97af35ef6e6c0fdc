"""The peer in JAX: the same decoder, a whole update compiled as one, its state donated so that it is overwritten.

Modes: "unrolled" writes every block out; XLA then sees all of them and keeps what it likes for backward. "scan-dots"
scans over stacked blocks and keeps what products without a batch gave (`dots_with_no_batch_dims_saveable`), recomputing
the rest: less memory, faster where memory binds. "scan-remat" scans too, and keeps nothing within a block. float32
throughout; AdamW, clipping and decay by hand, as in
`fastbp/ops/adamw.py`. `JaxTrainer` starts from this project's weights, so that both train the same model.

XLA takes as many threads as the process may use CPUs: set the affinity before JAX is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

Array = NDArray[Any]
Tree = dict[str, Any]

KEPT = {
    "scan-dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "scan-remat": jax.checkpoint_policies.nothing_saveable,
}
"""What the modes that scan keep of a block, besides its input."""

MODES = ("unrolled", *KEPT)
MATRICES = {"wte", "wpe", "wqkv", "wo", "w1", "w2"}
"""What weight decay applies to."""


class DecoderLike(Protocol):
    """What the peer reads of a `DecoderConfig`."""

    @property
    def blocks(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def context(self) -> int: ...
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


def norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    rstd = lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + eps)
    return centred * rstd * weight + bias


def linear(x: Any, block: Tree, weight: str, bias: str) -> Any:
    y = x @ block[weight]
    return y + block[bias] if bias in block else y


def run_block(config: DecoderLike, x: Any, block: Tree) -> Any:
    """x + Attn(LN1(x)), then x + w2·gelu(w1·LN2(x))."""
    B, T, C = x.shape
    H, D = config.heads, C // config.heads
    qkv = linear(norm(x, block["ln1.weight"], block["ln1.bias"], config.eps), block, "wqkv", "bqkv")
    q, k, v = jnp.moveaxis(qkv.reshape(B, T, 3, H, D), 2, 0)
    scores = jnp.einsum("bthd,bshd->bhts", q, k) * D**-0.5
    past = jnp.tril(jnp.ones((T, T), bool))
    weights = jax.nn.softmax(jnp.where(past, scores, -jnp.inf), axis=-1)
    heads = jnp.einsum("bhts,bshd->bthd", weights, v).reshape(B, T, C)
    x = x + linear(heads, block, "wo", "bo")
    hidden = linear(norm(x, block["ln2.weight"], block["ln2.bias"], config.eps), block, "w1", "b1")
    return x + linear(jax.nn.gelu(hidden, approximate=config.gelu == "tanh"), block, "w2", "b2")


def decoder_loss(config: DecoderLike, mode: str, parameters: Tree, tokens: Any, targets: Any) -> Any:
    """Mean cross-entropy of targets (B, T) after tokens (B, T)."""
    positions = parameters.get("wpe")
    if positions is None:
        positions = sinusoidal(config.context, config.width)
    x = parameters["wte"][tokens] + positions[: tokens.shape[1]]
    if mode == "unrolled":
        for block in parameters["blocks"]:
            x = run_block(config, x, block)
    else:
        step = jax.checkpoint(partial(run_block, config), policy=KEPT[mode])
        x, _ = lax.scan(lambda x, block: (step(x, block), None), x, parameters["blocks"])
    logits = norm(x, parameters["ln.weight"], parameters["ln.bias"], config.eps) @ parameters["wte"].T
    at_target = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return (jax.nn.logsumexp(logits, axis=-1) - at_target).mean()


def sinusoidal(T: int, C: int) -> Array:
    """(T, C) float32: sin(t / 10000^(2i/C)) in column 2i, cos in column 2i + 1."""
    angle = np.arange(T)[:, None] / 10000.0 ** (np.arange(0, C, 2) / C)
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(T, C).astype(np.float32)


def from_names(config: DecoderLike, mode: str, named: Mapping[str, Array]) -> Tree:
    """This project's parameters as the peer's: q, k and v side by side; blocks in a list, or stacked for the scan."""

    def block(i: int) -> dict[str, Array]:
        prefix = f"blocks.{i}."
        found = {name: named[f"{prefix}{name}"] for name in ("ln1.weight", "ln1.bias", "ln2.weight", "ln2.bias")}
        found["wqkv"] = np.concatenate([named[f"{prefix}attn.w{letter}"] for letter in "qkv"], axis=1)
        found |= {"wo": named[f"{prefix}attn.wo"], "w1": named[f"{prefix}mlp.w1"], "w2": named[f"{prefix}mlp.w2"]}
        if config.attention_bias:
            found["bqkv"] = np.concatenate([named[f"{prefix}attn.b{letter}"] for letter in "qkv"])
            found["bo"] = named[f"{prefix}attn.bo"]
        if config.feed_forward_bias:
            found |= {"b1": named[f"{prefix}mlp.b1"], "b2": named[f"{prefix}mlp.b2"]}
        return found

    blocks: Any = [block(i) for i in range(config.blocks)]
    if mode != "unrolled":
        blocks = {name: np.stack([each[name] for each in blocks]) for name in blocks[0]}
    tree: Tree = {
        "wte": named["wte"],
        "blocks": blocks,
        "ln.weight": named["final.ln.weight"],
        "ln.bias": named["final.ln.bias"],
    }
    if config.positions == "learned":
        tree["wpe"] = named["wpe"]
    # A copy: XLA may take over the memory of an array that it is given, and donation would then overwrite ours.
    return jax.tree.map(lambda values: jnp.array(values, jnp.float32, copy=True), tree)


def to_names(config: DecoderLike, mode: str, tree: Tree) -> dict[str, Array]:
    """The inverse of `from_names`, of parameters or of their gradients."""
    named = {"wte": tree["wte"], "final.ln.weight": tree["ln.weight"], "final.ln.bias": tree["ln.bias"]}
    if "wpe" in tree:
        named["wpe"] = tree["wpe"]
    for i in range(config.blocks):
        stacked = tree["blocks"]
        block = stacked[i] if mode == "unrolled" else {name: values[i] for name, values in stacked.items()}
        for name, values in block.items():
            if name.endswith("qkv"):
                parts = np.split(np.asarray(values), 3, axis=-1)
                named |= {f"blocks.{i}.attn.{name[0]}{letter}": part for letter, part in zip("qkv", parts, strict=True)}
            else:
                folder = "" if name.startswith("ln") else "attn." if name.endswith("o") else "mlp."
                named[f"blocks.{i}.{folder}{name}"] = values
    return {name: np.array(values) for name, values in named.items()}


class JaxTrainer:
    """Updates the decoder on batches of (batch, context) tokens; the constructor compiles nothing yet."""

    def __init__(
        self,
        config: DecoderLike,
        batch: int,
        mode: str = "unrolled",
        *,
        parameters: Mapping[str, Array],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.1,
        clip: float = 1.0,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"mode is {mode!r}; say {' or '.join(map(repr, MODES))}")
        self.config, self.mode, self.shape, self.lr = config, mode, (batch, config.context), lr
        weights = from_names(config, mode, parameters)
        zeros = partial(jax.tree.map, jnp.zeros_like)
        self._state = (weights, zeros(weights), zeros(weights), jnp.zeros((), jnp.float32))
        self._loss = partial(decoder_loss, config, mode)
        step = partial(_update, self._loss, betas, weight_decay, clip)
        self._step = jax.jit(step, donate_argnums=0)

    def update(self, tokens: Array, targets: Array, lr: float | None = None) -> float:
        """One update on tokens and targets (batch, context); the loss before it."""
        if tokens.shape != self.shape:
            raise ValueError(f"tokens are {tokens.shape}; this trainer was built for {self.shape}")
        rate = np.float32(self.lr if lr is None else lr)
        self._state, loss = self._step(self._state, tokens, targets, rate)
        # The loss may be there before the last weights are.
        jax.block_until_ready(self._state)
        return float(loss)

    def gradients(self, tokens: Array, targets: Array) -> tuple[float, dict[str, Array]]:
        """The loss and its gradients under this project's names; the weights stay."""
        loss, gradients = jax.jit(jax.value_and_grad(self._loss))(self._state[0], tokens, targets)
        return float(loss), to_names(self.config, self.mode, gradients)

    def activation_peak_bytes(self) -> int:
        """XLA's scratch, gaps included, for forward and backward compiled alone: in a whole update it also holds the
        gradients, which are results here.
        """
        ids = jax.ShapeDtypeStruct(self.shape, np.int32)
        program = jax.jit(jax.value_and_grad(self._loss)).lower(self._state[0], ids, ids).compile()
        return int(program.memory_analysis().temp_size_in_bytes)

    def parameters(self) -> dict[str, Array]:
        """A copy of the weights under this project's names and in its shapes."""
        return to_names(self.config, self.mode, self._state[0])


def _update(
    loss_of: Any, betas: tuple[float, float], weight_decay: float, clip: float, state: Any, tokens: Any, targets: Any,
    lr: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Gradients, clipping by the global norm, AdamW with eps 1e-8; returns the new state and the loss."""
    weights, first, second, count = state
    loss, gradients = jax.value_and_grad(loss_of)(weights, tokens, targets)
    count = count + 1
    scale = 1.0
    if clip > 0:
        squares = sum(jnp.vdot(g, g) for g in jax.tree.leaves(gradients))
        scale = jnp.minimum(1.0, clip / (jnp.sqrt(squares) + 1e-6))
    beta1, beta2 = betas
    correction1, correction2 = 1 - beta1**count, 1 - beta2**count

    def step(path: Any, p: Any, g: Any, m: Any, v: Any) -> tuple[Any, Any, Any]:
        g = g * scale
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        decay = weight_decay if path[-1].key in MATRICES else 0.0
        return p - lr * decay * p - lr * (m / correction1) / (jnp.sqrt(v / correction2) + 1e-8), m, v

    stepped = jax.tree_util.tree_map_with_path(step, weights, gradients, first, second)
    new = tuple(
        jax.tree.map(lambda each, i=i: each[i], stepped, is_leaf=lambda x: isinstance(x, tuple)) for i in range(3)
    )
    return (*new, count), loss
