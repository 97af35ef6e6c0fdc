"""The planner: what it foresees is what simulate finds, its budget is kept, and nothing in its class is cheaper."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastbp.base.errors import DoesNotFit, InputError
from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.graph.graph import Graph, Node
from fastbp.memory.layout import lay_out
from fastbp.policy.bound import lower_bound
from fastbp.policy.cost import BACKWARD, COSTS, FROM_KEPT, TO_KEEP, Flops, schedule_cost
from fastbp.policy.named import make_plan
from fastbp.policy.optimal import Planner, Step
from fastbp.policy.options import AS_COMPUTED, keep_sets, slicings
from fastbp.schedule.plan import Plan, head_rows
from fastbp.schedule.schedule import training_schedule
from fastbp.schedule.simulate import simulate


def graph(blocks: int = 3, batch: int = 2, context: int = 128, vocab: int = 97, attention: str = "tiled") -> Graph:
    return decoder_graph(DecoderConfig(blocks, 32, 2, 96, context, vocab, attention=attention), batch, workers=2)


def budgets(planner: Planner, count: int) -> list[int]:
    low, high = planner.smallest_bytes, planner.largest_bytes
    return [low + (high - low) * i // (count - 1) for i in range(count)]


GRAPHS = {
    "one block": graph(1),
    "one sequence": graph(3, batch=1),
    "sequences": graph(3, batch=4, context=64),
    "large head": graph(2, vocab=5000),
    "materialised": graph(2, attention="materialised"),
    "odd": decoder_graph(DecoderConfig(3, 24, 3, 50, 70, 33), 3, workers=1),
    "one token": decoder_graph(DecoderConfig(2, 16, 2, 32, 1, 20), 5, workers=1),
    "dropout": decoder_graph(DecoderConfig(2, 32, 2, 96, 128, 97, dropout=0.2), 3, workers=2),
    "numpy": decoder_graph(DecoderConfig(2, 16, 2, 32, 64, 20), 2, workers=0),
}


class KeptAreCheap(Flops):
    """Every call has a price, that of what waits for backward a third of the other."""

    def of(self, graph: Graph, node: Node, when: str, rows: int) -> int:
        if when in (BACKWARD, FROM_KEPT) and node.op.backward is None:
            return 0
        calls = 1 if node.block is None else graph.tokens // rows  # the head's last slice may be a smaller one
        return sum(node.flops) * calls * graph.tokens * (1 if when in (TO_KEEP, FROM_KEPT) else 3)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_call_costs_what_its_schedule_says_also_where_what_is_kept_costs_something_else(name: str) -> None:
    cost = KeptAreCheap()
    planner = Planner(GRAPHS[name], cost)
    for budget in budgets(planner, 12):
        if found := planner.search(budget):
            assert schedule_cost(training_schedule(GRAPHS[name], found.plan), cost) == found.cost


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("lossy", [False, True])
@pytest.mark.parametrize("cost", ["flops", "roofline"])
def test_what_is_foreseen_is_what_simulate_finds(name: str, cost: str, lossy: bool) -> None:
    planner = Planner(GRAPHS[name], COSTS[cost], lossy)
    for budget in budgets(planner, 12):
        found = planner.search(budget)
        if found is None:
            continue  # below the smallest by what its layout needs more
        simulation = simulate(training_schedule(GRAPHS[name], found.plan))
        assert (simulation.peak_bytes, simulation.recomputed_flops) == (found.peak_bytes, found.recomputed_flops)
        assert simulation.peak_bytes <= budget
        if cost == "flops" and not lossy:
            assert schedule_cost(simulation.schedule, COSTS[cost]) == found.cost


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("lossy", [False, True])
def test_the_layout_fits_and_cost_never_rises_with_the_budget(name: str, lossy: bool) -> None:
    planner, last = Planner(GRAPHS[name], COSTS["flops"], lossy), None
    for budget in budgets(planner, 40):
        plan = planner.plan(budget)
        simulation = simulate(training_schedule(GRAPHS[name], plan))
        assert lay_out(simulation).size_bytes <= budget
        assert plan.budget_bytes == budget
        assert last is None or simulation.recomputed_flops <= last
        last = simulation.recomputed_flops
    assert last == 0
    assert not plan.packed  # of what costs the same, as computed


@pytest.mark.parametrize("name", GRAPHS)
def test_a_byte_less_than_the_smallest_is_refused_with_the_smallest(name: str) -> None:
    planner = Planner(GRAPHS[name], COSTS["flops"])
    planner.plan(planner.smallest_bytes)
    with pytest.raises(DoesNotFit, match=f"the smallest needs {planner.smallest_bytes} bytes"):
        planner.plan(planner.smallest_bytes - 1)


class DearHead(Flops):
    """A slice of the head costs more than anything else."""

    def of(self, graph: Graph, node: Node, when: str, rows: int) -> int:
        head = node is graph.nodes[-1]
        return -(-graph.tokens // rows) * 10**12 if head else super().of(graph, node, when, rows)


def test_small_slices_of_the_head_are_paid_for() -> None:
    """A budget's last bytes go to the head's slices rather than to a tensor that is cheaply made again."""
    found = GRAPHS["large head"]
    free, dear = Planner(found, COSTS["flops"]), Planner(found, DearHead())
    budgets = range(free.smallest_bytes, free.largest_bytes, max(1, (free.largest_bytes - free.smallest_bytes) // 20))
    pairs = [(free.search(budget), dear.search(budget)) for budget in budgets]
    rows = [(one.plan.head_rows, other.plan.head_rows) for one, other in pairs if one and other]
    assert all(one <= other for one, other in rows)
    assert any(one < other for one, other in rows)


def test_slices_of_the_head_are_larger_than_usual_only_where_that_costs_less() -> None:
    found = decoder_graph(DecoderConfig.preset("gpt2"), 1)
    rows = [Planner(found, cost).plan(1 << 30).head_rows for cost in (COSTS["flops"], DearHead())]
    assert rows == [head_rows(found), 512]


def everything(found: Graph, planner: Planner) -> list[tuple[int, int]]:
    """(peak, FLOPs) of every plan of the class without segments, by building each: no code of the planner's search."""
    names = {name.split(".", 2)[2] for name in found.read_by_backward if name.startswith("blocks.0.")} - {"x"}
    ways = list(product(keep_sets(names), slicings(found)))
    rows = [head.rows for head in planner.heads]
    result = []
    for walk in product(ways, repeat=found.blocks):
        for first, head in product((True, False), rows):
            keep = {"final.x"} | {f"blocks.{i}.x" for i in range(found.blocks) if i or first}
            keep |= {f"blocks.{i}.{name}" for i, (kept, _) in enumerate(walk) for name in kept}
            plan = Plan("", frozenset(keep), head, tuple(slices for _, slices in walk))
            simulation = simulate(training_schedule(found, plan))
            result.append((simulation.peak_bytes, simulation.recomputed_flops))
    return result


@pytest.mark.slow
@pytest.mark.parametrize(("blocks", "batch"), [(1, 1), (1, 2), (2, 1)])
def test_no_plan_of_the_class_is_cheaper(blocks: int, batch: int) -> None:
    found = graph(blocks, batch, context=64)
    planner = Planner(found, COSTS["flops"])
    every = everything(found, planner)
    for budget in sorted({peak for peak, _ in every})[:: max(1, len(every) // 400)]:
        best = min(flops for peak, flops in every if peak <= budget)
        plan = planner.search(budget)
        assert plan is not None
        assert plan.recomputed_flops <= best
        bound = lower_bound(found, budget).flops
        assert bound is not None
        assert bound <= best
        if len({name for name in plan.plan.keep if name.endswith(".x")}) >= blocks:  # not a segment's plan
            assert plan.recomputed_flops == best
    assert min(peak for peak, _ in every) >= planner.smallest_bytes - 4096


@settings(max_examples=12, derandomize=True, deadline=None, database=None)
@given(
    st.integers(1, 4), st.integers(1, 5), st.integers(2, 150), st.integers(1, 3), st.integers(2, 40), st.integers(0, 2)
)
def test_any_shape(blocks: int, batch: int, context: int, heads: int, vocab: int, workers: int) -> None:
    found = decoder_graph(DecoderConfig(blocks, 12 * heads, heads, 40, context, vocab), batch, workers=workers)
    planner = Planner(found, COSTS["flops"])
    for budget in budgets(planner, 5):
        foreseen = planner.search(budget)
        if foreseen:
            simulation = simulate(training_schedule(found, foreseen.plan))
            assert (simulation.peak_bytes, simulation.recomputed_flops) == (
                foreseen.peak_bytes,
                foreseen.recomputed_flops,
            )
        assert lay_out(simulate(training_schedule(found, planner.plan(budget)))).size_bytes <= budget


def test_a_plan_names_its_budget() -> None:
    planner = Planner(GRAPHS["one block"])
    assert planner.plan(8 << 20).policy == "optimal(8MiB)"
    assert replace(planner.plan(8 << 20), policy="") != planner.plan(planner.smallest_bytes)


class Cheat(Planner):
    """Claims that no block needs any bytes to be walked."""

    @property
    def steps(self) -> list[Step]:  # type: ignore[override]
        return [replace(step, needed_bytes=0) for step in super().steps]


def test_a_planner_that_reports_a_peak_too_low_is_found_out() -> None:
    found = graph(3)
    honest, cheat = Planner(found), Cheat(found)
    for budget in budgets(honest, 6):
        claimed = cheat.search(budget)
        assert claimed is not None
        real = simulate(training_schedule(found, claimed.plan)).peak_bytes
        assert claimed.peak_bytes <= budget
        if budget < honest.largest_bytes:
            assert real > claimed.peak_bytes
        # What is returned was built and laid out: it fits, or there is none.
        with suppress(DoesNotFit):
            assert lay_out(simulate(training_schedule(found, cheat.plan(budget)))).size_bytes <= budget


# --- lossy ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GRAPHS)
def test_bfloat16_never_costs_more_and_halves_what_a_budget_holds(name: str) -> None:
    exact, lossy = (Planner(GRAPHS[name], COSTS["flops"], each) for each in (False, True))
    assert lossy.smallest_bytes <= exact.smallest_bytes
    for budget in budgets(exact, 8):
        found, other = lossy.search(budget), exact.search(budget)
        assert found
        assert other is None or found.cost <= other.cost


def test_every_block_packs_all_that_it_keeps_but_statistics_or_nothing() -> None:
    planner = Planner(GRAPHS["sequences"], COSTS["flops"], lossy=True)
    seen = set()
    for budget in budgets(planner, 30):
        plan = planner.search(budget).plan  # type: ignore[union-attr]
        for block in range(3):
            kept = {name.split(".", 2)[2] for name in plan.keep if name.startswith(f"blocks.{block}.")}
            packed = {name.split(".", 2)[2] for name in plan.packed if name.startswith(f"blocks.{block}.")}
            assert packed in (set(), kept - AS_COMPUTED)
            seen.add((bool(kept), bool(packed)))
    assert {(True, True), (True, False)} <= seen


def test_a_lossy_plan_of_gpt2_keeps_half_at_the_same_flops() -> None:
    found = decoder_graph(DecoderConfig.preset("gpt2"), 1, workers=2)
    exact, lossy = (Planner(found, COSTS["flops"], each) for each in (False, True))
    for budget_mib, half_mib in ((310, 172), (126, 77)):  # 3 and 12 % of FLOPs more
        plans = [exact.plan(budget_mib << 20), lossy.plan(half_mib << 20)]
        kept, flops = zip(
            *(
                (each.kept_bytes, each.recomputed_flops)
                for each in (simulate(training_schedule(found, p)) for p in plans)
            ),
            strict=True,
        )
        assert kept[1] < 0.53 * kept[0]
        assert flops[1] <= flops[0]


def test_only_the_planner_is_lossy_and_only_in_float32() -> None:
    found = GRAPHS["sequences"]
    assert make_plan(found, "optimal(400KiB)", COSTS["flops"], lossy=True).packed
    for policy in ("save_all", "greedy(1MiB)", "saved(none.json)"):
        with pytest.raises(InputError, match="only --memory-budget SIZE chooses"):
            make_plan(found, policy, lossy=True)
    double = decoder_graph(DecoderConfig(1, 16, 2, 32, 8, 20), 1, dtype="float64")
    with pytest.raises(InputError, match="take --dtype float32, or no --lossy"):
        make_plan(double, "optimal(1GiB)", lossy=True)
