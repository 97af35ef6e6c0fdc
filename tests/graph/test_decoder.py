"""The decoder's graph: names and shapes in the promised order, and the wiring of a block."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fastbp.graph.config import PRESETS, DecoderConfig
from fastbp.graph.decoder import decoder_graph, parameter_shapes, sinusoidal_positions
from fastbp.ops.op import FIRST

BIASED = DecoderConfig(1, 6, 2, 10, 4, 9, attention_bias=True, feed_forward_bias=True)
BARE = DecoderConfig(1, 6, 2, 10, 4, 9, attention_bias=False, feed_forward_bias=False, positions="sinusoidal")


BLOCK_PARAMETERS = """
ln1.weight ln1.bias attn.wq attn.wk attn.wv attn.bq attn.bk attn.bv attn.wo attn.bo
ln2.weight ln2.bias mlp.w1 mlp.b1 mlp.w2 mlp.b2
"""
BARE_PARAMETERS = """
wte ln1.weight ln1.bias attn.wq attn.wk attn.wv attn.wo ln2.weight ln2.bias mlp.w1 mlp.w2 final.ln.weight final.ln.bias
"""
BLOCK_NODES = "ln1 qkv o proj mid ln2 u g z"
OPS_OF = {"tiled": "tiled_attention", "materialised": "attention"}
FIRST_OPS = "embedding layernorm qkv attention linear residual layernorm linear gelu linear residual"


def test_parameters_with_every_bias_in_order() -> None:
    block = [f"blocks.0.{name}" for name in BLOCK_PARAMETERS.split()]
    names = ["wte", "wpe", *block, "final.ln.weight", "final.ln.bias"]
    shapes = parameter_shapes(BIASED)
    assert list(shapes) == names
    assert (shapes["wte"], shapes["wpe"]) == ((9, 6), (4, 6))
    assert (shapes["blocks.0.attn.wo"], shapes["blocks.0.attn.bo"]) == ((6, 6), (6,))
    assert (shapes["blocks.0.mlp.w1"], shapes["blocks.0.mlp.b1"]) == ((6, 10), (10,))
    assert (shapes["blocks.0.mlp.w2"], shapes["blocks.0.mlp.b2"]) == ((10, 6), (6,))


def test_parameters_without_biases_and_with_constant_positions() -> None:
    names = [name.removeprefix("blocks.0.") for name in parameter_shapes(BARE)]
    assert names == BARE_PARAMETERS.split()


@pytest.mark.parametrize(("preset", "tensors", "numbers"), [("seed", 27, 5_376), ("gpt2", 196, 124_439_808)])
def test_presets_have_the_published_number_of_parameters(preset: str, tensors: int, numbers: int) -> None:
    # GPT-2 has 148 tensors with q, k and v in one; here they are three, with three biases: 4 more in each of 12 blocks.
    shapes = parameter_shapes(PRESETS[preset])
    assert (len(shapes), sum(int(np.prod(shape)) for shape in shapes.values())) == (tensors, numbers)


def test_sinusoidal_positions_follow_the_formula_element_by_element() -> None:
    table = sinusoidal_positions(5, 6)
    assert table.shape == (5, 6)
    assert table.dtype == np.float64
    for t in range(5):
        for i in range(3):
            angle = t / 10000 ** (2 * i / 6)
            np.testing.assert_allclose(table[t, 2 * i : 2 * i + 2], [np.sin(angle), np.cos(angle)], rtol=1e-15)


def test_the_nodes_of_a_decoder_in_order() -> None:
    first, second = ([f"blocks.{i}.{name}" for name in BLOCK_NODES.split()] for i in range(2))
    graph = decoder_graph(PRESETS["seed"], 1)
    names = ["blocks.0.x", *first, "blocks.1.x", *second, "final.x", "final.ln", "losses"]
    assert [node.name for node in graph.nodes] == names
    assert [node.op_name for node in graph.nodes][:11] == FIRST_OPS.split()


def test_a_node_belongs_to_the_block_that_computes_it() -> None:
    graph = decoder_graph(PRESETS["seed"], 1)
    # The sum that ends block 0 is named after the stream that block 1 finds, and is block 0's work.
    assert [node.block for node in graph.nodes] == [None, *[0] * 10, *[1] * 10, None, None]


def test_the_stream_and_the_tied_head_are_wired() -> None:
    ports = {node.name: node.ports for node in decoder_graph(BIASED, 2).nodes}
    assert (ports["blocks.0.mid"]["x"], ports["blocks.0.mid"]["f"]) == ("blocks.0.x", "blocks.0.proj")
    assert (ports["final.x"]["x"], ports["final.x"]["f"]) == ("blocks.0.mid", "blocks.0.z")
    assert ports["blocks.0.ln2"]["x"] == "blocks.0.mid"
    assert ports["losses"]["weight"] == ports["blocks.0.x"]["table"] == "wte"
    assert ports["blocks.0.x"]["positions"] == "wpe"
    assert ports["blocks.0.z"]["bias"] == "blocks.0.mlp.b2"


def test_without_biases_the_ports_are_absent() -> None:
    graph = decoder_graph(BARE, 2)
    ports = {node.name: node.ports for node in graph.nodes}
    assert not {"bq", "bk", "bv"} & set(ports["blocks.0.qkv"])
    assert not any("bias" in ports[f"blocks.0.{name}"] for name in ("proj", "u", "z"))
    assert ports["blocks.0.x"]["positions"] == "positions"
    assert graph.tensors["positions"].kind == "constant"


def test_attributes_reach_the_nodes() -> None:
    graph = decoder_graph(DecoderConfig(1, 6, 2, 10, 4, 9, eps=1e-3, gelu="erf"), 2)
    assert all(node.attributes == {"eps": 1e-3} for node in graph.nodes if node.op_name == "layernorm")
    assert graph.by_name["blocks.0.g"].attributes == {"tanh": 0.0}
    assert decoder_graph(BIASED, 2).by_name["blocks.0.g"].attributes == {"tanh": 1.0}


@pytest.mark.parametrize("attention", ["tiled", "materialised"])
def test_dropout_adds_a_node_behind_either_sublayer_and_changes_the_attention(attention: str) -> None:
    plain = DecoderConfig.preset("seed", attention=attention)
    graph = decoder_graph(replace(plain, dropout=0.1), 1)
    names = "ln1 qkv o proj proj_dropped mid ln2 u g z z_dropped"
    assert [node.name for node in graph.nodes][1:12] == [f"blocks.0.{name}" for name in names.split()]
    state = graph.tensors["dropout_state"]
    assert (state.kind, state.dtype, state.shape) == ("host", "int32", (2,))
    droppers = [node for node in graph.nodes if "state" in node.ports]
    assert [node.op_name for node in droppers[:3]] == [OPS_OF[attention] + "_dropout", "dropout", "dropout"]
    assert [node.attributes for node in droppers] == [{"rate": 0.1, "place": float(i)} for i in range(6)]
    assert graph.by_name["blocks.0.mid"].ports["f"] == "blocks.0.proj_dropped"
    assert graph.by_name["blocks.1.x"].ports["f"] == "blocks.0.z_dropped"
    assert graph.read_by_backward == decoder_graph(plain, 1).read_by_backward


def test_without_dropout_nothing_is_there_of_it() -> None:
    graph = decoder_graph(PRESETS["seed"], 1)
    assert "dropout_state" not in graph.tensors
    assert not any("dropout" in node.op_name or FIRST in node.dims for node in graph.nodes)


def test_workers_size_the_scratch_and_nothing_else() -> None:
    none, two = (decoder_graph(BIASED, 2, workers=workers) for workers in (0, 2))
    assert none.tensors == two.tensors
    for one, other in zip(none.nodes, two.nodes, strict=True):
        assert {**one.dims, "W": 2} == dict(other.dims)
