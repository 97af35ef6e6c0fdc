"""No two buffers that live at once share a byte, and the arena is as small as it can be where that is known."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastbp.base.errors import DoesNotFit
from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.memory.layout import LARGEST_BYTES, Layout, lay_out, lay_out_scattered
from fastbp.policy.named import make_plan
from fastbp.schedule.plan import Plan, head_rows
from fastbp.schedule.schedule import Schedule, evaluation_schedule, training_schedule
from fastbp.schedule.simulate import Buffer, Simulation, simulate

POLICIES = ("save_all", "full", "every(2)", "selective(core_attn, gelu)", "save_only(u)")
GRAPH = decoder_graph(DecoderConfig(2, 16, 2, 64, 16, 256), 1, workers=2)

Lifetime = tuple[int, int, int]
"""Born, dies, lines of 64 bytes."""


def simulation(lifetimes: list[Lifetime]) -> Simulation:
    """Buffers without a schedule."""
    buffers = tuple(
        Buffer((f"b{i}",), 64 * lines, born, dies, "kept") for i, (born, dies, lines) in enumerate(lifetimes)
    )
    ticks = range(max(buffer.dies for buffer in buffers))
    live = tuple(sum(buffer.nbytes for buffer in buffers if buffer.born <= tick < buffer.dies) for tick in ticks)
    return Simulation(Schedule(GRAPH, Plan("none", frozenset(), 1), ()), buffers, live, 0)


def assert_sound(layout: Layout) -> None:
    placed = list(zip(layout.buffers, layout.offsets, strict=True))
    for buffer, offset in placed:
        assert offset >= 0
        assert offset % 64 == 0
        assert offset + buffer.nbytes <= layout.size_bytes
    for (one, low), (other, high) in itertools.combinations(placed, 2):
        if one.born < other.dies and other.born < one.dies:
            assert low + one.nbytes <= high or high + other.nbytes <= low, f"{one} at {low} and {other} at {high}"
    assert layout.fragmentation_bytes == layout.size_bytes - layout.live_peak_bytes >= 0


@pytest.mark.parametrize("policy", POLICIES)
def test_schedules_are_laid_out_without_overlap_at_the_bound(policy: str) -> None:
    plan = make_plan(GRAPH, policy)
    for schedule in (training_schedule(GRAPH, plan), evaluation_schedule(GRAPH, plan)):
        found = simulate(schedule)
        layout = lay_out(found)
        assert layout.buffers == found.buffers
        assert_sound(layout)
        assert layout.size_bytes == found.peak_bytes
        assert layout.fragmentation_bytes == 0


@settings(max_examples=20, derandomize=True, deadline=None, database=None)
@given(st.frozensets(st.sampled_from(sorted(GRAPH.read_by_backward))))
def test_any_plan_is_laid_out_without_overlap(keep: frozenset[str]) -> None:
    assert_sound(lay_out(simulate(training_schedule(GRAPH, Plan("drawn", keep, head_rows(GRAPH))))))


LIFETIME = st.tuples(st.integers(0, 30), st.integers(1, 12), st.integers(1, 9)).map(lambda t: (t[0], t[0] + t[1], t[2]))


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(st.lists(LIFETIME, min_size=1, max_size=40))
def test_random_lifetimes_never_overlap_nor_fall_below_the_bound(lifetimes: list[Lifetime]) -> None:
    found = simulation(lifetimes)
    for how in (lay_out, lay_out_scattered):
        layout = how(found)
        assert_sound(layout)
        assert (layout.buffers, layout.live_peak_bytes) == (found.buffers, found.peak_bytes)
        assert layout.size_bytes >= found.peak_bytes


def nested(draw: st.DrawFn, born: int, dies: int, depth: int) -> list[Lifetime]:
    """A buffer, and within its lifetime others one after another, each with others inside."""
    made = [(born, dies, draw(st.integers(1, 9)))]
    if depth:
        cuts = sorted(draw(st.sets(st.integers(born, dies), max_size=4)))
        for start, stop in itertools.pairwise(cuts):
            made += nested(draw, start, stop, depth - 1)
    return made


@st.composite
def stacks(draw: st.DrawFn) -> list[Lifetime]:
    made = nested(draw, 0, draw(st.integers(1, 40)), 4)
    return [made[i] for i in draw(st.permutations(range(len(made))))]


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(stacks())
def test_lifetimes_like_a_stack_are_laid_out_at_the_bound(lifetimes: list[Lifetime]) -> None:
    layout = lay_out(simulation(lifetimes))
    assert_sound(layout)
    assert layout.fragmentation_bytes == 0


def test_a_hole_is_used_again() -> None:
    # b and c live side by side; when b dies, d fits where it was.
    layout = lay_out(simulation([(0, 10, 1), (1, 3, 4), (1, 9, 2), (3, 9, 4)]))
    assert layout.size_bytes == 64 * 7


def test_a_buffer_that_dies_when_another_is_born_makes_room() -> None:
    layout = lay_out(simulation([(0, 3, 5), (3, 6, 5)]))
    assert layout.offsets == (0, 0)


def test_a_repair_reaches_the_bound_where_every_plain_order_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    lifetimes = [(1, 6, 3), (4, 9, 1), (1, 4, 5), (6, 7, 5)]
    assert lay_out(simulation(lifetimes)).fragmentation_bytes == 0
    monkeypatch.setattr("fastbp.memory.layout.REPAIRS", 1)
    assert lay_out(simulation(lifetimes)).fragmentation_bytes > 0


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.builds(
            lambda born, length, lines: (born, born + length, lines),
            st.integers(0, 20),
            st.integers(1, 9),
            st.integers(1, 6),
        ),
        min_size=1,
        max_size=24,
    )
)
def test_a_layout_that_is_small_enough_ends_the_search(lifetimes: list[Lifetime]) -> None:  # fmt: skip
    found = simulation(lifetimes)
    best = lay_out(found)
    for enough in (0, found.peak_bytes, best.size_bytes, best.size_bytes + 128, 1 << 40):
        layout = lay_out(found, enough)
        assert_sound(layout)
        assert best.size_bytes <= layout.size_bytes <= max(enough, best.size_bytes)


def test_the_layout_is_a_function_of_the_schedule() -> None:
    plan = make_plan(GRAPH, "full")
    for how in (lay_out, lay_out_scattered):
        first, again = (how(simulate(training_schedule(GRAPH, plan))) for _ in range(2))
        assert first == again


def test_what_comes_again_and_again_has_a_home_unless_it_is_scattered() -> None:
    slices = [each for tick in range(0, 60, 3) for each in ((tick, tick + 2, 3), (tick + 1, tick + 3, 2))]
    homes, scattered = (len({*how(simulation(slices)).offsets}) for how in (lay_out, lay_out_scattered))
    assert homes == 2 < scattered


def test_more_than_any_machine_has_is_refused() -> None:
    # Offsets are 64-bit integers: their sums would wrap around.
    largest = LARGEST_BYTES // 64
    assert lay_out(simulation([(0, 1, largest)])).size_bytes == LARGEST_BYTES
    with pytest.raises(DoesNotFit, match=r"^the plan needs 1.0 PiB of activations: take a smaller --batch"):
        lay_out(simulation([(0, 1, largest), (1, 2, 1)]))
