"""The audit: nothing differs under any policy, and one bit that does is found and named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fastbp.check.audit import Audit, audit
from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.policy.optimal import Planner
from fastbp.run.decoder import Decoder
from fastbp.run.instruction import Instruction
from fastbp.run.program import Program
from fastbp.schedule.actions import Forward, Recompute, written
from fastbp.schedule.effects import Effects

CONFIG = DecoderConfig(3, 32, 2, 64, 64, 40)
BATCH = 4
SMALLEST = f"optimal({Planner(decoder_graph(CONFIG, BATCH, workers=0)).smallest_bytes})"
"""In slices; with workers=0 as NumPy runs it, which needs as little scratch as any."""


def ready(policy: str, backend: str = "numpy", config: DecoderConfig = CONFIG) -> Decoder:
    decoder = Decoder(config, BATCH, policy=policy, backend=backend, workers=1)
    decoder.initialise(3)
    random = np.random.default_rng(3)
    decoder.tokens[:] = random.integers(0, config.vocab, decoder.tokens.shape)
    decoder.targets[:] = random.integers(0, config.vocab, decoder.targets.shape)
    return decoder


def recomputed(decoder: Decoder) -> tuple[set[str], int]:
    """Tensors that the schedule brings back, and their bytes, each time."""
    graph, effects = decoder.graph, Effects(decoder.graph)
    names, nbytes = set(), 0
    for action in decoder.schedule.actions:
        if isinstance(action, Recompute):
            start, stop = effects.token_rows(action) or (0, graph.tokens)
            for name in graph.by_name[action.node].outputs:
                names.add(name)
                nbytes += graph.bytes_of(name) * (stop - start) // graph.tokens
    return names, nbytes


def planted(decoder: Decoder, tick: int, name: str, *at: int) -> None:
    """From now on the instruction of a tick leaves a bit changed in some elements of what it writes."""
    run_watched = decoder.runner.run_watched

    def run(program: Program, watch: Callable[[Instruction], bool]) -> bool:
        def changed(instruction: Instruction) -> bool:
            if instruction.tick == tick:
                array = dict(instruction.outputs)[name]
                array.reshape(-1).view(np.uint32)[list(at)] ^= 1
            return watch(instruction)

        return run_watched(program, changed)

    decoder.runner.run_watched = run  # type: ignore[method-assign]


@pytest.mark.parametrize("backend", ["numpy", "cython"])
@pytest.mark.parametrize(
    "policy", ["full", "full_last", "every(2)", "selective(gelu, layernorm)", "save_only(x)", "optimal(240KiB)"]
)
def test_what_comes_back_is_what_went(policy: str, backend: str) -> None:
    decoder = ready(policy, backend)
    names, nbytes = recomputed(decoder)
    assert audit(decoder) == Audit(len(names), nbytes, None)
    assert nbytes > 0
    assert not decoder.gradients.flat.any()


@pytest.mark.parametrize("attention", ["tiled", "materialised"])
def test_slices_are_compared_with_forward_s_rows(attention: str) -> None:
    config = DecoderConfig(3, 32, 2, 64, 64, 40, attention=attention)
    smallest = Planner(decoder_graph(config, BATCH, workers=0)).smallest_bytes
    decoder = ready(f"optimal({smallest})", config=config)
    sliced = [action for action in decoder.schedule.actions if isinstance(action, Recompute) and action.rows]
    assert len(sliced) > 20
    names, nbytes = recomputed(decoder)
    assert audit(decoder) == Audit(len(names), nbytes, None)


def test_save_all_has_nothing_to_compare() -> None:
    assert audit(ready("save_all")) == Audit(0, 0, None)


def test_two_audits_find_the_same() -> None:
    decoder = ready("full")
    assert audit(decoder) == audit(decoder)


@pytest.mark.parametrize("backend", ["numpy", "cython"])
def test_one_bit_is_found_and_named(backend: str) -> None:
    decoder = ready("full_last", backend)
    actions = decoder.schedule.actions
    tick = next(i for i, each in enumerate(actions) if written(each) == "R blocks.1.u")
    planted(decoder, tick, "blocks.1.u", 70 * 64 + 5)
    found = audit(decoder).difference
    assert found is not None
    assert (found.tensor, found.op, found.rows) == ("blocks.1.u", "linear (blocks.1.u)", (70, 71))


def test_one_bit_in_a_slice_is_named_by_its_row_of_the_whole() -> None:
    decoder = ready(SMALLEST)
    slices = [
        (tick, action)
        for tick, action in enumerate(decoder.schedule.actions)
        if isinstance(action, Recompute) and action.node == "blocks.0.u" and action.rows
    ]
    tick, action = slices[-1]
    assert action.rows is not None
    assert action.rows[0] > 0
    planted(decoder, tick, "blocks.0.u", 0)
    found = audit(decoder).difference
    assert found is not None
    assert (found.tensor, found.rows) == ("blocks.0.u", (action.rows[0], action.rows[0] + 1))


@pytest.mark.parametrize(("count", "rows"), [(3, (70, 73)), (186, (70, 256))])
def test_all_rows_that_differ_in_a_row_are_named(count: int, rows: tuple[int, int]) -> None:
    decoder = ready("full_last")
    tick = next(i for i, each in enumerate(decoder.schedule.actions) if written(each) == "R blocks.1.u")
    planted(decoder, tick, "blocks.1.u", *(64 * row for row in range(70, 70 + count)))
    found = audit(decoder).difference
    assert found is not None
    assert found.rows == rows


def test_a_tensor_is_whole_behind_the_last_of_its_instructions() -> None:
    decoder = ready("full")
    expected = audit(decoder)
    twice = (
        each for each in decoder.gradients_program.instructions for _ in range(2 if each.node == "blocks.1.u" else 1)
    )
    phases = tuple(replace(each) for each in twice)
    decoder.gradients_program = Program(phases)
    assert audit(decoder) == expected


def test_rows_of_attention_are_whole_sequences() -> None:
    decoder = ready("full_last")
    tick = next(i for i, each in enumerate(decoder.schedule.actions) if written(each) == "R blocks.0.o")
    planted(decoder, tick, "blocks.0.o", 2 * 64 * 32)
    found = audit(decoder).difference
    assert found is not None
    assert (found.tensor, found.rows) == ("blocks.0.o", (128, 192))


def test_a_bit_that_forward_changes_is_found_when_the_tensor_comes_back() -> None:
    decoder = ready("full_last")
    forward = [type(action) is Forward for action in decoder.schedule.actions]
    names: list[Any] = [written(action) for action in decoder.schedule.actions]
    tick = names.index("F blocks.2.g")
    assert forward[tick]
    planted(decoder, tick, "blocks.2.g", 0)
    found = audit(decoder).difference
    assert found is not None
    # Every reader behind it was given the changed bit as well, but these come back from other inputs.
    assert found.tensor == "blocks.2.g"
    assert found.rows == (0, 1)
