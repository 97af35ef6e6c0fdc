"""A plan as people read it, and as JSON."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from fastbp.base.units import format_bytes
from fastbp.graph.graph import Graph
from fastbp.memory.layout import Layout
from fastbp.policy.named import short_name
from fastbp.policy.optimal import Found
from fastbp.report.columns import wrapped
from fastbp.schedule.actions import Recompute, written
from fastbp.schedule.plan import Plan
from fastbp.schedule.simulate import Simulation

LINES_AT_PEAK = 12
INDENT = 12
"""Columns of a line's name."""


def plan_json(simulation: Simulation, layout: Layout, parameter_bytes: int) -> dict[str, Any]:
    """The keys of `fastbp plan --json`. The peak is the layout's size, as training predicts it."""
    peak = simulation.peak_tick
    return {
        "policy": simulation.schedule.plan.policy,
        "budget_bytes": simulation.schedule.plan.budget_bytes,
        "peak_bytes": layout.size_bytes,
        "peak_tick": peak,
        "live_at_peak": [
            {"tensor": buffer.name_at(peak), "bytes": buffer.nbytes} for buffer in simulation.live_at(peak)
        ],
        "kept_bytes": simulation.kept_bytes,
        "extra_flops_share": simulation.extra_flops_share,
        "categories": categories_json(simulation, parameter_bytes),
        "schedule": [written(action) for action in simulation.schedule.actions],
    }


def categories_json(simulation: Simulation, parameter_bytes: int) -> dict[str, int]:
    """All bytes of training at the peak by what they are for: beside the arena, then in it."""
    return {
        "parameters": parameter_bytes,
        "parameter gradients": parameter_bytes,
        "optimiser state": 2 * parameter_bytes,
        **simulation.bytes_by_category(simulation.peak_tick),
    }


def plan_lines(
    simulation: Simulation, layout: Layout, whole: Layout, parameter_bytes: int, schedule: bool
) -> list[str]:
    """The plan in at most 80 columns. `whole` is the layout of save_all, to compare with."""
    peak, plan = simulation.peak_tick, simulation.schedule.plan
    action = written(simulation.schedule.actions[peak])
    share = layout.size_bytes / whole.size_bytes
    lines = [
        f"policy      {plan.policy}",
        f"peak        {format_bytes(layout.size_bytes)} of activations ({layout.size_bytes} bytes),"
        f" at tick {peak}: {action}",
        f"            {share:.1%} of save_all's {format_bytes(whole.size_bytes)},"
        f" for {simulation.extra_flops_share:.1%} more FLOPs",
        f"arena       {format_bytes(layout.size_bytes)}, {layout.fragmentation_bytes} bytes of it fragmentation",
        f"besides     {format_bytes(parameter_bytes)} each: parameters, their gradients, two moments",
        f"kept        {format_bytes(simulation.kept_bytes)}: {_by_block(simulation.schedule.graph, plan.keep)}",
        *([f"as bfloat16 {_by_block(simulation.schedule.graph, plan.packed)}"] if plan.packed else []),
        *_slices(plan),
        f"recomputed  {_by_block(simulation.schedule.graph, _again(simulation))}",
        "",
        f"at the peak, by category: {_categories(simulation.bytes_by_category(peak))}",
        *_at_peak(simulation),
    ]
    if schedule:
        lines += [
            "",
            "schedule",
            *(f"{tick:>6}  {written(each)}" for tick, each in enumerate(simulation.schedule.actions)),
        ]
    return [part for line in lines for part in wrapped(line, INDENT)]


def _again(simulation: Simulation) -> frozenset[str]:
    """What backward reads of what is made a second time."""
    graph, keep = simulation.schedule.graph, simulation.schedule.plan.keep
    runs = {action.node for action in simulation.schedule.actions if isinstance(action, Recompute)}
    made = {name for node in runs for name in graph.by_name[node].outputs}
    return frozenset(made & graph.read_by_backward - keep)


def planner_lines(
    smallest_bytes: int, here: Found, more: Found, free: Found, flops_per_pass: int, measured: bool
) -> list[str]:
    """What a budget's plan costs beside the cheapest of all, and what a MiB more would buy."""

    def cost(found: Found, other: Found) -> str:
        flops = f"{(found.recomputed_flops - other.recomputed_flops) / flops_per_pass:.2%} of FLOPs"
        return f"{(found.cost - other.cost) / 1e6:.2f} ms, {flops}" if measured else flops

    lines = [
        f"budget      the smallest with a plan is {format_bytes(smallest_bytes)} ({smallest_bytes} bytes);"
        f" {format_bytes(free.peak_bytes)} and more cost nothing",
        f"costs       {cost(here, free)} an update more than without a bound",
        f"next MiB    saves {cost(here, more)}",
    ]
    return [part for line in lines for part in wrapped(line, INDENT)]


def certificate_lines(certificate: Mapping[str, Any]) -> list[str]:
    """How far a plan can be from the best at most."""
    line = (
        f"proof       no plan in as many bytes recomputes less than {certificate['bound_flops_share']:.2%} of FLOPs:"
        f" at most {certificate['gap']:.2%} could be saved"
    )
    return wrapped(line + ("" if certificate["solved"] else " (the solver ran out of time)"), INDENT)


def _slices(plan: Plan) -> list[str]:
    """How many blocks are walked in which slices, and the head's rows."""
    if not plan.slices:
        return []
    counts = Counter(plan.slices)
    words = [
        f"{count} blocks {f'{each.sequences} sequences and {each.rows} rows' if each else 'all rows'} at a time"
        for each, count in counts.items()
    ]
    return [f"slices      {', '.join(words)}; the head {plan.head_rows} rows"]


def _by_block(graph: Graph, names: frozenset[str]) -> str:
    """Tensors by short name, with the blocks where not all have them."""
    blocks: dict[str, list[int]] = defaultdict(list)
    rest = []
    for tensor in graph.activations:
        if tensor.name in names:
            short = short_name(tensor.name)
            if short == tensor.name:
                rest.append(short)
            else:
                blocks[short].append(int(tensor.name.split(".")[1]))
    words = [short + _which(found, graph.blocks) for short, found in blocks.items()]
    return ", ".join(words + rest) or "nothing"


def _which(found: list[int], count: int) -> str:
    if len(found) == count:
        return ""
    if found == list(range(found[0], found[-1] + 1)):
        return f"[{found[0]}]" if len(found) == 1 else f"[{found[0]}-{found[-1]}]"
    return "[" + ",".join(map(str, found)) + "]"


def _categories(totals: dict[str, int]) -> str:
    return ", ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in totals.items() if nbytes)


def _at_peak(simulation: Simulation) -> list[str]:
    peak = simulation.peak_tick
    return live_lines([(buffer.name_at(peak), buffer.nbytes, buffer.category) for buffer in simulation.live_at(peak)])


def live_lines(live: Sequence[tuple[str, int, str]], shown: int = LINES_AT_PEAK) -> list[str]:
    """(tensor, bytes, category) of what is live, the largest first; what comes behind the first so many is summed."""
    lines = [f"  {format_bytes(nbytes):>10}  {category:<9}  {tensor}" for tensor, nbytes, category in live]
    if len(lines) > shown:
        hidden = live[shown:]
        total = format_bytes(sum(nbytes for _, nbytes, _ in hidden))
        lines[shown:] = [f"  {total:>10}  in {len(hidden)} smaller or equal ones (--json lists all)"]
    return lines
