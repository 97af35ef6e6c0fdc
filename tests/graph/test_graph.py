"""The graph refuses what does not hold together and derives what backward reads and what it all costs."""

from __future__ import annotations

import pytest

from fastbp.base.dims import Dims
from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.graph.graph import Graph, Node
from fastbp.graph.tensor import Tensor


def gelu(name: str, source: str, N: int = 2, F: int = 3) -> Node:
    return Node(name, "gelu", Dims({"N": N, "F": F}), {"x": source, "y": name}, {"tanh": 1.0})


def tensors(**kinds: str) -> dict[str, Tensor]:
    return {name: Tensor(name, (2, 3), kind) for name, kind in kinds.items()}


def test_nodes_stand_in_topological_order() -> None:
    known = tensors(x="constant", a="activation", b="activation")
    graph = Graph(known, (gelu("a", "x"), gelu("b", "a")), 4)
    assert graph.producer["b"] is graph.by_name["b"]
    with pytest.raises(ValueError, match="node b reads a before it is written"):
        Graph(known, (gelu("b", "a"), gelu("a", "x")), 4)


def test_a_node_does_not_feed_itself() -> None:
    with pytest.raises(ValueError, match="node a reads a before it is written"):
        Graph(tensors(a="activation"), (gelu("a", "a"),), 4)


def test_a_tensor_of_another_size_than_its_port_is_refused() -> None:
    with pytest.raises(ValueError, match="node a: x has 8 elements, x 6"):
        Graph(tensors(x="constant", a="activation"), (gelu("a", "x", F=4),), 4)


def test_a_node_lists_its_tensors_in_the_order_of_its_op() -> None:
    graph = decoder_graph(DecoderConfig.preset("seed"), 1)
    norm, attention = graph.by_name["blocks.1.ln2"], graph.by_name["blocks.1.o"]
    assert norm.inputs == ("blocks.1.mid",)
    assert norm.outputs == ("blocks.1.ln2", "blocks.1.ln2.mean", "blocks.1.ln2.rstd")
    assert norm.backward_reads == ("blocks.1.mid", "blocks.1.ln2.weight", "blocks.1.ln2.mean", "blocks.1.ln2.rstd")
    assert attention.outputs == ("blocks.1.o", "blocks.1.p")


def test_backward_reads_thirteen_tensors_of_a_block_and_four_behind_the_last() -> None:
    graph = decoder_graph(DecoderConfig.preset("seed"), 1)
    names = ["x", "ln1", "ln1.mean", "ln1.rstd", "qkv", "p", "o", "mid", "ln2", "ln2.mean", "ln2.rstd", "u", "g"]
    blocks = {f"blocks.{i}.{name}" for i in range(2) for name in names}
    assert graph.read_by_backward == blocks | {"final.x", "final.ln", "final.mean", "final.rstd"}


def test_kinds_are_told_apart() -> None:
    graph = decoder_graph(DecoderConfig.preset("seed"), 1)
    assert len(graph.parameters) == 27
    assert sum(tensor.size for tensor in graph.parameters) == 5376
    assert {tensor.name for tensor in graph.activations} == set(graph.producer) - {"losses"}
    assert graph.blocks == 2


def test_bytes_of_a_tensor_follow_the_dtype() -> None:
    config = DecoderConfig.preset("seed")
    assert decoder_graph(config, 3, dtype="float32").bytes_of("blocks.0.qkv") == 3 * 8 * 48 * 4
    assert decoder_graph(config, 3, dtype="float64").bytes_of("blocks.0.qkv") == 3 * 8 * 48 * 8
    assert decoder_graph(config, 3, dtype="float64").bytes_of("tokens") == 3 * 8 * 4


def test_products_of_a_pass_follow_the_formula() -> None:
    # Per token forward: 8C² + 4CF in every block, 2·T·C in attention, 2CV in the head; backward is twice that,
    # attention too. A head that yields its losses on the way counts its logits once, forward, as any other op.
    B, L, C, F, T, V = 3, 4, 128, 512, 64, 65
    graph = decoder_graph(DecoderConfig.preset("small"), B)
    forward = B * T * (L * (8 * C * C + 4 * C * F + 2 * T * C) + 2 * C * V)
    assert graph.products_per_pass == 3 * forward
    pointwise = sum(sum(node.op.pointwise(node.dims)) for node in graph.nodes)
    assert graph.flops_per_pass == 3 * forward + pointwise
