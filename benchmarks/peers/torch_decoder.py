"""The peer: the same decoder as a torch module, at the settings that train it fastest in float32.

One fused product for q, k and v, torch's own causal attention, tanh or exact GELU, a tied head,
fused AdamW. `TorchTrainer` starts from this project's weights, so that both train the same model.

Modes, by what they keep for backward:
    eager       everything, as most people run it
    checkpoint  every block's input; the block is recomputed
    selective   of every block also what its products and its attention gave
    chunked     everything but the logits, which are made and remade for CHUNK_ROWS rows at a time
    compile     what the compiler finds fastest; activation_budget below 1 lets it keep less

What is fastest depends on the size: "compile" at tiny and small; at medium and gpt2 "compile" with
activation_budget=0.75, which recomputes cheap pointwise work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
import torch._functorch.config
import torch._inductor
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

Array = NDArray[Any]

MODES = ("eager", "checkpoint", "selective", "chunked", "compile")
CHUNK_ROWS = 128
"""Rows of logits at once in the mode "chunked": at gpt2 24.5 MiB of 196."""


class DecoderLike(Protocol):
    """What the peer reads of a `DecoderConfig`."""

    @property
    def blocks(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def feed_forward(self) -> int: ...
    @property
    def context(self) -> int: ...
    @property
    def vocab(self) -> int: ...
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


class Block(nn.Module):
    """x + Attn(LN1(x)), then x + down gelu(up LN2(x))."""

    def __init__(self, config: DecoderLike) -> None:
        super().__init__()
        C, hidden = config.width, config.feed_forward
        self.heads = config.heads
        self.approximate = {"tanh": "tanh", "erf": "none"}[config.gelu]
        self.ln1 = nn.LayerNorm(C, eps=config.eps)
        self.qkv = nn.Linear(C, 3 * C, bias=config.attention_bias)
        self.out = nn.Linear(C, C, bias=config.attention_bias)
        self.ln2 = nn.LayerNorm(C, eps=config.eps)
        self.up = nn.Linear(C, hidden, bias=config.feed_forward_bias)
        self.down = nn.Linear(hidden, C, bias=config.feed_forward_bias)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        qkv = self.qkv(self.ln1(x)).view(B, T, 3, self.heads, C // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).reshape(B, T, C))
        activated = F.gelu(self.up(self.ln2(x)), approximate=self.approximate)
        y: Tensor = x + self.down(activated)
        return y


# Nothing is drawn within a block, so there is no random state to go back to.
recomputed = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)

SELECTED = [
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
]
"""What "selective" keeps: products without and with a bias, and attention as the CPU runs it."""

RUN_BLOCK: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "checkpoint": recomputed,
    "selective": partial(recomputed, context_fn=partial(create_selective_checkpoint_contexts, SELECTED)),
}
"""By mode, how x goes through a block where it is not just called."""


def head_loss(x: Tensor, weight: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy of targets (N) under the logits x·weightᵀ, x (N, C), weight (V, C)."""
    return F.cross_entropy(F.linear(x, weight), targets, reduction=reduction)


def chunked_head_loss(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """The mean of `head_loss`, with no more than CHUNK_ROWS rows of logits at any time."""
    pairs = zip(x.split(CHUNK_ROWS), targets.split(CHUNK_ROWS), strict=True)
    total: Tensor = sum(recomputed(head_loss, rows, weight, wanted, "sum") for rows, wanted in pairs)
    return total / len(targets)


class TorchDecoder(nn.Module):
    """tokens, targets (B, T) -> mean cross-entropy."""

    position: Tensor

    def __init__(self, config: DecoderLike, mode: str = "eager") -> None:
        super().__init__()
        self.mode = mode
        self.wte = nn.Embedding(config.vocab, config.width)
        if config.positions == "learned":
            self.position = nn.Parameter(torch.empty(config.context, config.width))
        else:
            self.register_buffer("position", sinusoidal(config.context, config.width))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.blocks))
        self.ln = nn.LayerNorm(config.width, eps=config.eps)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.wte(tokens) + self.position[: tokens.shape[1]]
        run_block = RUN_BLOCK.get(self.mode, nn.Module.__call__)
        for block in self.blocks:
            x = run_block(block, x)
        loss = chunked_head_loss if self.mode == "chunked" else head_loss
        return loss(self.ln(x).flatten(0, 1), self.wte.weight, targets.flatten())


def sinusoidal(T: int, C: int) -> Tensor:
    """(T, C) float32: pe[t, 2i] = sin(t / 10000^(2i/C)), pe[t, 2i+1] = cos(the same)."""
    angle = np.arange(T)[:, None] / 10000.0 ** (np.arange(0, C, 2) / C)
    table = np.empty((T, C), np.float32)
    table[:, 0::2] = np.sin(angle)
    table[:, 1::2] = np.cos(angle)[:, : C // 2]
    return torch.from_numpy(table)


def named_views(model: TorchDecoder) -> dict[str, Tensor]:
    """This project's parameter names, each with a view of the module's tensor in our shape.

    Loading writes through the views and reading copies out of them, so the correspondence
    (torch stores (out, in), and q, k, v in one tensor) is said once.
    """
    views: dict[str, Tensor] = {"wte": model.wte.weight}
    if isinstance(model.position, nn.Parameter):
        views["wpe"] = model.position
    for i, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        name = f"blocks.{i}."
        views |= _norm_views(name + "ln1", block.ln1)
        for letters, linear in (("qkv", block.qkv), ("o", block.out)):
            views |= _linear_views(name + "attn.", letters, linear)
        views |= _norm_views(name + "ln2", block.ln2)
        for letters, linear in (("1", block.up), ("2", block.down)):
            views |= _linear_views(name + "mlp.", letters, linear)
    views |= _norm_views("final.ln", model.ln)
    return {name: view.detach() for name, view in views.items()}


def _norm_views(name: str, norm: nn.LayerNorm) -> dict[str, Tensor]:
    return {name + ".weight": norm.weight, name + ".bias": norm.bias}


def _linear_views(prefix: str, letters: str, linear: nn.Linear) -> dict[str, Tensor]:
    weights = linear.weight.chunk(len(letters), dim=0)
    views = {f"{prefix}w{letter}": w.T for letter, w in zip(letters, weights, strict=True)}
    if linear.bias is not None:
        biases = linear.bias.chunk(len(letters))
        views |= {f"{prefix}b{letter}": b for letter, b in zip(letters, biases, strict=True)}
    return views


class TorchTrainer:
    """Updates a `TorchDecoder` on batches of (batch, context) tokens.

    `threads` becomes torch's thread count for the process. With mode="compile" the constructor also
    compiles forward and backward for that one shape, so no update is timed with its compilation;
    `activation_budget` below 1 lets the compiler recompute activations.
    """

    def __init__(
        self,
        config: DecoderLike,
        batch: int,
        threads: int,
        mode: str = "eager",
        *,
        parameters: Mapping[str, Array],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.95),
        weight_decay: float = 0.1,
        clip: float = 1.0,
        activation_budget: float = 1.0,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"mode is {mode!r}; say {' or '.join(map(repr, MODES))}")
        if not 0 <= activation_budget <= 1 or (activation_budget < 1 and mode != "compile"):
            raise ValueError(f"activation_budget is {activation_budget} with {mode!r}; say 0 to 1, with 'compile'")
        torch.set_num_threads(threads)  # before compiling: the compiler writes it into its loops
        self.shape = (batch, config.context)
        self.clip = clip
        self.model = TorchDecoder(config, mode)
        self._load(parameters)
        self.optimiser = _adamw(self.model, lr, betas, weight_decay)
        self._loss: Callable[[Tensor, Tensor], Tensor] = self.model
        if mode == "compile":
            self._loss = self._compiled(activation_budget)

    def update(self, tokens: Array, targets: Array, lr: float | None = None) -> float:
        """One update on tokens and targets (batch, context); the loss before it."""
        if tokens.shape != self.shape:
            raise ValueError(f"tokens are {tokens.shape}; this trainer was built for {self.shape}")
        if lr is not None:
            for group in self.optimiser.param_groups:
                group["lr"] = lr
        self.optimiser.zero_grad(set_to_none=True)
        loss = self._loss(_ids(tokens), _ids(targets))
        loss.backward()  # type: ignore[no-untyped-call]
        if self.clip > 0:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimiser.step()
        return loss.item()

    @torch.no_grad()
    def evaluate(self, tokens: Array, targets: Array) -> float:
        """The loss, for any number of sequences: eager in both modes, so nothing recompiles."""
        return float(self.model(_ids(tokens), _ids(targets)).item())

    def parameters(self) -> dict[str, Array]:
        """A copy of the weights under this project's names and in its shapes."""
        return {name: view.numpy().copy() for name, view in named_views(self.model).items()}

    def _load(self, parameters: Mapping[str, Array]) -> None:
        views = named_views(self.model)
        if views.keys() != parameters.keys():
            raise ValueError(f"parameters differ: {sorted(views.keys() ^ parameters.keys())}")
        for name, view in views.items():
            if view.shape != parameters[name].shape:
                raise ValueError(f"{name} is {parameters[name].shape}, not {tuple(view.shape)}")
            view.copy_(torch.from_numpy(np.array(parameters[name], np.float32)))

    def _compiled(self, activation_budget: float) -> Callable[[Tensor, Tensor], Tensor]:
        def inductor(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
            with torch._functorch.config.patch(activation_memory_budget=activation_budget):
                return torch._inductor.compile(graph, inputs)

        # torch shares compiled code between models of one shape unless their backends differ; a
        # backend of its own keeps this trainer from running with the budget of another.
        compiled: Callable[[Tensor, Tensor], Tensor] = torch.compile(
            self.model, backend=inductor, fullgraph=True, dynamic=False
        )
        # Two tensors: one passed twice would be compiled as an alias, and the update once more.
        tokens, targets = (torch.zeros(self.shape, dtype=torch.int64) for _ in range(2))
        compiled(tokens, targets).backward()  # type: ignore[no-untyped-call]
        self.optimiser.zero_grad(set_to_none=True)
        return compiled


def _adamw(model: TorchDecoder, lr: float, betas: tuple[float, float], weight_decay: float) -> torch.optim.AdamW:
    """Decay reaches the matrices only: not the biases and not LayerNorm."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=betas, fused=True)


def _ids(array: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64))
