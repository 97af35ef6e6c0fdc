"""The decoder as a graph.

x0 = wte[token] + positions
x ← x + wo·attention(qkv(LN1 x));   x ← x + w2·gelu(w1·LN2 x)      in every block
losses = cross-entropy of LN_f(x)·wteᵀ

With dropout the attention's weights, and what each sublayer adds to x, lose a share of their elements.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fastbp.graph.config import DecoderConfig
from fastbp.graph.graph import Graph, Node
from fastbp.graph.tensor import Tensor
from fastbp.ops.op import FIRST
from fastbp.ops.registry import OPS

ITEMSIZE = {"float32": 4, "float64": 8}
SITES = ("attention", "proj", "mlp")
"""Where a block drops: attention's weights, and what either sublayer adds to the stream."""


def parameter_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Every parameter's name and shape, in the order of the forward pass."""
    C, F = config.width, config.feed_forward
    shapes: dict[str, tuple[int, ...]] = {"wte": (config.vocab, C)}
    if config.positions == "learned":
        shapes["wpe"] = (config.context, C)
    for i in range(config.blocks):
        block = f"blocks.{i}."
        shapes |= {block + "ln1.weight": (C,), block + "ln1.bias": (C,)}
        shapes |= {block + f"attn.w{part}": (C, C) for part in "qkv"}
        if config.attention_bias:
            shapes |= {block + f"attn.b{part}": (C,) for part in "qkv"}
        shapes[block + "attn.wo"] = (C, C)
        if config.attention_bias:
            shapes[block + "attn.bo"] = (C,)
        shapes |= {block + "ln2.weight": (C,), block + "ln2.bias": (C,), block + "mlp.w1": (C, F)}
        if config.feed_forward_bias:
            shapes[block + "mlp.b1"] = (F,)
        shapes[block + "mlp.w2"] = (F, C)
        if config.feed_forward_bias:
            shapes[block + "mlp.b2"] = (C,)
    return shapes | {"final.ln.weight": (C,), "final.ln.bias": (C,)}


def sinusoidal_positions(context: int, width: int) -> np.ndarray:
    """(T, C) float64: sin(t/10000^(2i/C)) in column 2i, cos in column 2i + 1. Vaswani et al. 2017, §3.5."""
    angles = np.arange(context)[:, None] / 10000 ** (np.arange(0, width, 2) / width)
    table = np.empty((context, width))
    table[:, 0::2], table[:, 1::2] = np.sin(angles), np.cos(angles)
    return table


@dataclass
class _Builder:
    """Collects tensors and nodes; the sizes that every node shares."""

    shared: dict[str, int]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)

    def add(self, op_name: str, prefix: str, ports: dict[str, str], block: int | None = None, *,
            sizes: dict[str, int] | None = None, attributes: dict[str, float] | None = None) -> None:  # fmt: skip
        """Adds a node named after its first output; tensors that it writes are made here."""
        op = OPS[op_name]
        dims = op.extended({**self.shared, **(sizes or {})})
        named = {port: prefix + name if port in {**op.outputs, **op.saved} else name for port, name in ports.items()}
        for port in (*op.outputs, *op.saved):
            if named[port] not in self.tensors:
                self.tensors[named[port]] = Tensor(named[port], op.shape(port, dims), "activation")
        first = named[next(iter(op.outputs))]
        self.nodes.append(Node(first, op_name, dims, named, attributes or {}, block))


def decoder_graph(config: DecoderConfig, batch: int, *, workers: int = 1, dtype: str = "float32") -> Graph:
    """The training graph for `batch` sequences of the whole context. `workers` is W: 0 where kernels need no
    scratch.
    """
    B, T, C = batch, config.context, config.width
    N = B * T
    build = _Builder(
        {"B": B, "T": T, "N": N, "C": C, "H": config.heads, "F": config.feed_forward, "V": config.vocab, "W": workers}
    )
    for name in ("tokens", "targets"):
        build.tensors[name] = Tensor(name, (N,), "host", "int32")
    build.tensors["losses"] = Tensor("losses", (N,), "host")
    if config.dropout:
        build.tensors["dropout_state"] = Tensor("dropout_state", OPS["dropout"].shape("state", {}), "host", "int32")
    for name, shape in parameter_shapes(config).items():
        build.tensors[name] = Tensor(name, shape, "parameter")
    positions = "wpe"
    if config.positions == "sinusoidal":
        positions = "positions"
        build.tensors[positions] = Tensor(positions, (T, C), "constant")
    build.add("embedding", "", {"tokens": "tokens", "table": "wte", "positions": positions, "x": _stream(config, 0)})
    for i in range(config.blocks):
        _block(build, config, i)
    final = {"x": _stream(config, config.blocks), "weight": "final.ln.weight", "bias": "final.ln.bias"}
    build.add(
        "layernorm", "final.", {**final, "y": "ln", "mean": "mean", "rstd": "rstd"}, attributes={"eps": config.eps}
    )
    head = {"x": "final.ln", "targets": "targets", "weight": "wte", "losses": "losses"}
    build.add("linear_cross_entropy", "", head)
    return Graph(build.tensors, tuple(build.nodes), ITEMSIZE[dtype])


def _stream(config: DecoderConfig, i: int) -> str:
    """The residual stream as block i finds it; behind the last block, as the final norm does."""
    return f"blocks.{i}.x" if i < config.blocks else "final.x"


def _block(build: _Builder, config: DecoderConfig, i: int) -> None:
    block, C, F = f"blocks.{i}.", config.width, config.feed_forward
    x, middle = _stream(config, i), block + "mid"
    eps = {"eps": config.eps}

    def norm(name: str, source: str) -> None:
        ports = {"x": source, "weight": f"{block}{name}.weight", "bias": f"{block}{name}.bias"}
        build.add(
            "layernorm", block, {**ports, "y": name, "mean": f"{name}.mean", "rstd": f"{name}.rstd"}, i, attributes=eps
        )

    def linear(source: str, target: str, part: str, letter: str, bias: bool, sizes: dict[str, int]) -> None:
        ports = {"x": block + source, "weight": f"{block}{part}.w{letter}", "y": target}
        build.add("linear", block, ports | ({"bias": f"{block}{part}.b{letter}"} if bias else {}), i, sizes=sizes)

    def dropping(op_name: str, ports: dict[str, str], site: str) -> None:
        place = {"rate": config.dropout, "place": len(SITES) * i + SITES.index(site)}
        build.add(op_name, block, ports | {"state": "dropout_state"}, i, sizes={FIRST: 0}, attributes=place)

    def dropped(source: str, site: str) -> str:
        """What of `source` is added to the stream."""
        if not config.dropout:
            return block + source
        dropping("dropout", {"x": block + source, "y": f"{source}_dropped"}, site)
        return f"{block}{source}_dropped"

    norm("ln1", x)
    weights = {f"w{part}": f"{block}attn.w{part}" for part in "qkv"}
    biases = {f"b{part}": f"{block}attn.b{part}" for part in "qkv"} if config.attention_bias else {}
    build.add("qkv", block, {"x": block + "ln1", **weights, **biases, "y": "qkv"}, i)
    op_name, saved = ("tiled_attention", "lse") if config.attention == "tiled" else ("attention", "p")
    attention = {"qkv": block + "qkv", "o": "o", saved: saved}
    if config.dropout:
        dropping(f"{op_name}_dropout", attention, "attention")
    else:
        build.add(op_name, block, attention, i)
    linear("o", "proj", "attn", "o", config.attention_bias, {"I": C, "O": C})
    build.add("residual", block, {"x": x, "f": dropped("proj", "proj"), "y": "mid"}, i)
    norm("ln2", middle)
    linear("ln2", "u", "mlp", "1", config.feed_forward_bias, {"I": C, "O": F})
    build.add("gelu", block, {"x": block + "u", "y": "g"}, i, attributes={"tanh": float(config.gelu == "tanh")})
    linear("g", "z", "mlp", "2", config.feed_forward_bias, {"I": F, "O": C})
    build.add("residual", "", {"x": middle, "f": dropped("z", "mlp"), "y": _stream(config, i + 1)}, i)
