"""Buffers of a kind come to lie together, without an overlap and without a byte more."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastbp.memory.layout import Layout, lay_out, lay_out_scattered
from fastbp.memory.settle import settle
from fastbp.policy.named import make_plan
from fastbp.schedule.schedule import training_schedule
from fastbp.schedule.simulate import Buffer, simulate
from tests.memory.test_layout import GRAPH, LIFETIME, POLICIES, Lifetime, assert_sound, simulation

BUDGETS = ("optimal(112KiB)", "optimal(160KiB)")


def places(layout: Layout) -> int:
    """How many there are for what is not kept."""
    found = zip(layout.buffers, layout.offsets, strict=True)
    return len({offset for buffer, offset in found if buffer.category != "kept"})


@pytest.mark.parametrize("policy", [*POLICIES, *BUDGETS])
def test_schedules_settle_in_fewer_places(policy: str) -> None:
    for how in (lay_out, lay_out_scattered):
        layout = how(simulate(training_schedule(GRAPH, make_plan(GRAPH, policy))))
        settled = settle(layout)
        assert_sound(settled)
        assert (settled.size_bytes, settled.buffers) == (layout.size_bytes, layout.buffers)
        assert places(settled) <= places(layout)
        assert settle(layout) == settled


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(st.lists(LIFETIME, min_size=1, max_size=40), st.integers(1, 5))
def test_random_lifetimes_of_a_few_kinds_never_overlap(lifetimes: list[Lifetime], kinds: int) -> None:
    buffers = tuple(
        Buffer((f"b{i % kinds}",), buffer.nbytes, buffer.born, buffer.dies, ("working", "kept")[i % 3 == 2])
        for i, buffer in enumerate(simulation(lifetimes).buffers)
    )
    offsets = lay_out_scattered(simulation(lifetimes)).offsets
    end = max(offset + buffer.nbytes for offset, buffer in zip(offsets, buffers, strict=True))
    settled = settle(Layout(buffers, offsets, end, end))
    assert_sound(settled)
    kept = [i for i, buffer in enumerate(buffers) if buffer.category == "kept"]
    assert [settled.offsets[i] for i in kept] == [offsets[i] for i in kept]


def test_slices_come_to_where_most_of_them_are() -> None:
    names = ("blocks.0.u[0:8]", "blocks.0.u[8:16]", "blocks.1.u[0:8]", "blocks.1.u[8:16]", "blocks.1.g[8:16]")
    lives = ((0, 1), (1, 2), (2, 3), (3, 5), (3, 5))
    slices = [Buffer((name,), 64, *life, "working") for name, life in zip(names, lives, strict=True)]
    kept = Buffer(("blocks.0.x",), 64, 0, 5, "kept")
    settled = settle(Layout((*slices, kept), (0, 64, 0, 128, 64, 192), 256, 192))
    assert settled.offsets == (0, 0, 0, 0, 64, 192)


def test_the_end_is_reached_still() -> None:
    lives = (("u", 0, 2), ("u", 3, 5), ("w", 0, 1))
    buffers = tuple(Buffer((name,), 64, born, dies, "working") for name, born, dies in lives)
    layout = Layout(buffers, (0, 128, 64), 192, 128)
    assert settle(layout) == layout
