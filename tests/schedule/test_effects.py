"""What actions read and write, told for the seed's decoder by hand."""

from __future__ import annotations

import pytest

from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.schedule.actions import Action, Backward, Forward, Free, Pack, Recompute, Reduce, Unpack
from fastbp.schedule.effects import Effects, buffer_bytes, gradient, sliced_dims
from fastbp.schedule.local import Rows

GRAPH = decoder_graph(DecoderConfig.preset("seed"), 3, workers=0)
EFFECTS = Effects(GRAPH)
PART = "d:blocks.0.mid+blocks.0.ln2"


def test_the_gradient_of_x_is_dx() -> None:
    assert gradient("blocks.0.x") == "d:blocks.0.x"


@pytest.mark.parametrize(
    ("action", "reads", "writes"),
    [
        (Forward("blocks.0.x"), (), ("blocks.0.x",)),
        (Forward("blocks.0.o"), ("blocks.0.qkv",), ("blocks.0.o", "blocks.0.p")),
        (Recompute("blocks.0.o"), ("blocks.0.qkv",), ("blocks.0.o", "blocks.0.p")),
        (Forward("blocks.0.mid"), ("blocks.0.x", "blocks.0.proj"), ("blocks.0.mid",)),
        (Backward("blocks.0.o"), ("d:blocks.0.o", "blocks.0.qkv", "blocks.0.p"), ("d:blocks.0.qkv",)),
        (Backward("blocks.0.g"), ("d:blocks.0.g", "blocks.0.u"), ("d:blocks.0.u",)),
        (Backward("blocks.1.z"), ("d:final.x", "blocks.1.g"), ("d:blocks.1.g",)),
        (Backward("blocks.0.proj"), ("d:final.x", "blocks.0.o"), ("d:blocks.0.o",)),
        (Backward("blocks.0.x"), ("d:final.x",), ()),
        (Reduce("d:final.x", PART), ("d:final.x", PART), ("d:final.x",)),
        (Pack("blocks.0.u"), ("blocks.0.u",), ("bf16:blocks.0.u",)),
        (Pack("blocks.0.u", (0, 8), (("blocks.0.u", (0, 16)),)), ("blocks.0.u[0:16]",), ("bf16:blocks.0.u",)),
        (Unpack("blocks.0.u", (8, 16)), ("bf16:blocks.0.u",), ("blocks.0.u",)),
        (Free("blocks.0.x"), (), ()),
    ],
)  # fmt: skip
def test_reads_and_writes(action: Action, reads: tuple[str, ...], writes: tuple[str, ...]) -> None:
    effect = EFFECTS.of(action)
    assert (effect.reads, effect.writes) == (reads, writes)


@pytest.mark.parametrize(
    ("action", "rows"),
    [
        (Forward("blocks.0.u"), None),
        (Forward("blocks.0.u", (2, 5)), (2, 5)),
        (Backward("blocks.0.o", (1, 2)), (8, 16)),
        (Reduce("d:final.x", PART, (2, 5)), (2, 5)),
        (Unpack("blocks.0.u", (8, 16)), (8, 16)),
    ],
)
def test_rows_are_tokens_where_an_op_counts_sequences_too(action: Action, rows: Rows | None) -> None:
    assert EFFECTS.of(action).rows == EFFECTS.token_rows(action) == rows


def _gelu_backward(rows: Rows | None, **places: Rows) -> Backward:
    return Backward("blocks.0.g", rows, local=tuple((f"d:blocks.0.{name}", part) for name, part in places.items()))


@pytest.mark.parametrize(
    ("action", "pairs"),
    [
        (_gelu_backward(None), (("d:blocks.0.u", "d:blocks.0.g"),)),
        (_gelu_backward((0, 8)), ()),
        (_gelu_backward((0, 8), u=(0, 8)), ()),
        (_gelu_backward((0, 8), u=(0, 8), g=(0, 16)), ()),
        (_gelu_backward((0, 8), u=(0, 8), g=(0, 8)), (("d:blocks.0.u[0:8]", "d:blocks.0.g[0:8]"),)),
        (Backward("blocks.0.o"), ()),
        (Pack("blocks.0.u"), ()),
    ],
)
def test_a_slice_is_written_over_whole_slices_alone(action: Action, pairs: tuple[tuple[str, str], ...]) -> None:
    assert EFFECTS.of(action).in_place == pairs


def test_a_norm_writes_its_part_of_the_streams_gradient_beside_it() -> None:
    effect = EFFECTS.of(Backward("blocks.0.ln2"))
    assert effect.writes == (PART,)
    assert effect.reads == ("d:blocks.0.ln2", "blocks.0.mid", "blocks.0.ln2.mean", "blocks.0.ln2.rstd")


def test_the_streams_gradient_is_one_buffer_from_the_final_norm_to_the_embedding() -> None:
    stream = ["blocks.0.x", "blocks.0.mid", "blocks.1.x", "blocks.1.mid"]
    passed_on = ["blocks.0.proj", "blocks.0.z", "blocks.1.proj", "blocks.1.z"]
    assert EFFECTS.shared_gradient == {f"d:{name}": "d:final.x" for name in stream + passed_on}
    assert EFFECTS.buffer("d:blocks.0.mid") == "d:final.x"
    assert EFFECTS.buffer("d:blocks.0.u") == "d:blocks.0.u"


def test_the_last_reader_of_a_tensor_makes_its_gradient_and_the_others_add_parts() -> None:
    node = GRAPH.by_name
    assert EFFECTS.contribution(node["final.x"], "blocks.1.mid") == "d:blocks.1.mid"
    assert EFFECTS.contribution(node["blocks.1.ln2"], "blocks.1.mid") == "d:blocks.1.mid+blocks.1.ln2"
    assert EFFECTS.contribution(node["final.ln"], "final.x") == "d:final.x"


def test_parts_that_are_due_when_a_backward_reads_the_stream() -> None:
    due = {
        name: EFFECTS.parts_before[name]
        for name in ("blocks.1.z", "blocks.1.proj", "blocks.0.z", "blocks.0.proj", "blocks.0.x")
    }
    assert due == {"blocks.1.z": 0, "blocks.1.proj": 1, "blocks.0.z": 2, "blocks.0.proj": 3, "blocks.0.x": 4}
    assert EFFECTS.parts_before["blocks.1.u"] == 0


def test_only_the_residual_has_no_backward() -> None:
    assert {node.op_name for node in GRAPH.nodes if not EFFECTS.runs_backward(node)} == {"residual"}


def test_scratch_is_what_the_op_declares_for_the_slice() -> None:
    # W = 0: no panel. The logits are 24 rows of 64, or those of the slice.
    assert EFFECTS.of(Backward("losses")).scratch == (("z", 24 * 64),)
    assert EFFECTS.of(Backward("losses", (8, 13))).scratch == (("z", 5 * 64),)
    assert EFFECTS.of(Forward("blocks.0.u")).scratch == ()
    wide = Effects(decoder_graph(DecoderConfig.preset("seed"), 3, workers=2))
    (panel,) = wide.of(Forward("blocks.0.u")).scratch
    assert panel == ("panel", 2 * wide.graph.by_name["blocks.0.u"].dims.P)
    assert [port for port, _ in wide.of(Backward("blocks.0.o")).scratch] == ["ds", "panel"]


def test_a_slice_changes_the_independent_dimension_and_what_derives_from_it() -> None:
    node = GRAPH.by_name["losses"]
    assert sliced_dims(node, None) is node.dims
    dims = sliced_dims(node, (4, 9))
    assert (dims.N, dims.V, dims.C) == (5, 64, 16)
    assert sliced_dims(GRAPH.by_name["blocks.0.o"], (1, 3)).B == 2
    dropped = decoder_graph(DecoderConfig.preset("seed", dropout=0.1), 3).by_name["blocks.0.o"]
    assert (dropped.dims.S, sliced_dims(dropped, (1, 3)).S, sliced_dims(dropped, (1, 3)).B) == (0, 1, 2)
    many = decoder_graph(DecoderConfig.preset("seed"), 20, workers=1).by_name["losses"]
    assert sliced_dims(many, (0, 5)).P < many.dims.P == sliced_dims(many, (0, 160)).P


def test_a_packed_buffer_has_half_the_bytes() -> None:
    assert buffer_bytes(GRAPH, "blocks.0.u") == buffer_bytes(GRAPH, "d:blocks.0.u") == 24 * 32 * 4
    assert buffer_bytes(GRAPH, "bf16:blocks.0.u") == 24 * 32 * 2
    assert buffer_bytes(GRAPH, "blocks.0.u[8:16]", 8) == 8 * 32 * 4
