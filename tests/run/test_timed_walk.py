"""A plan's passes, timed whole, are shared among its calls by what these take one by one."""

from __future__ import annotations

import pytest

from fastbp.graph.config import DecoderConfig
from fastbp.policy.cost import AGAIN, BACKWARD, FORWARD
from fastbp.run import timed_walk
from fastbp.run.decoder import Decoder
from fastbp.run.program import Program
from fastbp.run.timed_walk import CALL_BY_CALL, Clock, TimedWalk
from fastbp.schedule.plan import Plan, Slices

DECODER = Decoder(DecoderConfig(2, 16, 2, 32, 8, 3), 4, backend="cython", workers=1)
SLICES = Slices(4, 16)
PLAN = Plan("measured", frozenset({"blocks.0.x", "blocks.1.x", "final.x"}), 32, (SLICES, SLICES))


class Counted(Clock):
    """Every call takes a second, but those that are told to be slow."""

    def __init__(self) -> None:
        self.programs = 0
        self.slow: set[int] = set()

    def seconds(self, program: Program) -> float:
        self.programs += 1
        DECODER.runner.run(program)
        return float(len(program.instructions)) + 1000 * (self.programs in self.slow)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Counted:
    monkeypatch.setattr(timed_walk, "SHORT", 0.0)
    return Counted()


def test_the_calls_add_up_to_their_passes(clock: Counted) -> None:
    walk = TimedWalk(DECODER, PLAN, clock)
    passes = [walk.run("near") for _ in range(4)]
    found = walk.seconds("near", passes)
    outside = {node.name for node in DECODER.graph.nodes if node.block is None}
    times = {key: 1 if key[0] in outside else 2 for key in found}
    times["ln1", AGAIN, 16] = 4  # a block brings it back for attention's rows, and once more for its own
    assert sum(times[key] * seconds for key, seconds in found.items()) == pytest.approx(sum(passes[0]))
    assert {when for _, when, _ in found} >= {FORWARD, AGAIN, BACKWARD}
    # Two slices are all rows of a block.
    assert found["u", FORWARD, 16] == pytest.approx(2)


def test_calls_run_one_by_one_a_few_times_in_a_place(clock: Counted) -> None:
    walk = TimedWalk(DECODER, PLAN, clock)
    taken = []
    for place in ("near",) * 5 + ("apart",):
        before = clock.programs
        walk.run(place)
        taken.append(clock.programs - before)
    assert min(taken) == 2
    assert [count > 2 for count in taken] == [True] * CALL_BY_CALL + [False] * (5 - CALL_BY_CALL) + [True]


def test_a_call_that_was_interrupted_changes_nothing(clock: Counted) -> None:
    walk = TimedWalk(DECODER, PLAN, clock)
    clock.slow = {clock.programs + 5}
    passes = [walk.run("near") for _ in range(4)]
    assert walk.seconds("near", passes)["u", FORWARD, 16] == pytest.approx(2)


def test_where_it_was_in_no_place_what_is_known_of_another_counts(clock: Counted) -> None:
    walk = TimedWalk(DECODER, PLAN, clock)
    passes = [walk.run("near")]
    assert walk.seconds("apart", passes) == walk.seconds("near", passes)
