"""Calls under their keys: every call has one, and what is made again is told apart from what is made first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastbp.graph.config import DecoderConfig
from fastbp.memory.timeline import STAGES
from fastbp.run.calls import CallKey, block_of, by_block
from fastbp.run.decoder import Decoder
from fastbp.run.op_times import calls_of, op_and_direction, work_of
from fastbp.schedule.actions import Free, Recompute, Reduce, Unpack

TINY = DecoderConfig(3, 16, 2, 32, 8, 64)
POLICIES = ("save_all", "full", "optimal(33KiB)")


def decoder_of(policy: str, backend: str = "numpy") -> Decoder:
    return Decoder(TINY, 2, policy=policy, backend=backend, workers=1)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_recomputation_has_a_direction_of_its_own(policy: str) -> None:
    decoder = decoder_of(policy)
    again = sum(isinstance(action, Recompute) for action in decoder.schedule.actions)
    calls = calls_of(decoder, by_block(decoder))
    assert sum(count for key, count in calls.items() if key.direction == "recompute") == again
    assert (again > 0) == (policy != "save_all")
    assert {key.direction for key in calls} <= set(STAGES)
    assert calls.total() == 1 + sum(not isinstance(action, Free) for action in decoder.schedule.actions)


@pytest.mark.parametrize("backend", ["numpy", "cython"])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_work_by_block_and_in_all(policy: str, backend: str) -> None:
    decoder = decoder_of(policy, backend=backend)
    fine, coarse = work_of(decoder, by_block(decoder)), work_of(decoder, op_and_direction)
    for attribute in ("product_flops", "moved_bytes"):
        assert sum(getattr(w, attribute) for w in fine.values()) == sum(getattr(w, attribute) for w in coarse.values())
    assert set(fine) == set(calls_of(decoder, by_block(decoder)))
    for block in range(TINY.blocks):
        used = {op for key in fine if key.block == block for op in key.op.split("+")}
        assert used == {node.op_name for node in decoder.graph.nodes if node.block == block}


def test_the_work_of_no_block() -> None:
    keys = set(calls_of(decoder_of("save_all"), by_block(decoder_of("save_all"))))
    assert {key.op for key in keys if key.block is None} == {"embedding", "layernorm", "linear_cross_entropy", "adamw"}
    assert CallKey("adamw", "forward", None) in keys


def test_parts_of_gradients_and_what_is_packed_belong_to_a_block() -> None:
    plan = replace(decoder_of("save_all").plan, packed=frozenset({"blocks.0.g", "blocks.2.u"}))
    decoder = Decoder(TINY, 2, plan=plan, backend="numpy")
    actions = decoder.schedule.actions
    found = {type(action) for action in actions}
    assert {Reduce, Unpack} <= found
    for action in actions:
        if isinstance(action, Reduce):
            node = action.source.partition("+")[2].partition("[")[0]
            assert f"blocks.{block_of(decoder.graph, action)}." in node
        elif isinstance(action, Unpack):
            assert block_of(decoder.graph, action) == decoder.graph.producer[action.tensor].block
