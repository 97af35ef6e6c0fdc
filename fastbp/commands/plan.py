"""Shows a policy's plan without running it: what is kept, what is recomputed,
the peak to the byte, its moment, and every tensor that is live then. A plan can
be explained tensor by tensor, changed, saved and replayed; --frontier shows
what each budget costs."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastbp.base.errors import InputError
from fastbp.commands.options import (
    add_model_options,
    add_run_options,
    chosen_batch,
    chosen_config,
    chosen_cost,
    chosen_policy,
)
from fastbp.commands.terminal import measuring
from fastbp.graph.graph import Graph
from fastbp.memory.layout import lay_out, require_plannable
from fastbp.policy.bound import lower_bound
from fastbp.policy.cost import Measured, schedule_cost
from fastbp.policy.explain import changed, explain, tensors_called
from fastbp.policy.named import make_plan
from fastbp.policy.optimal import Found, Planner
from fastbp.policy.saved import plan_json as plan_value
from fastbp.policy.saved import save_plan
from fastbp.report.explain import explanation_json, explanation_lines, what_if_lines
from fastbp.report.frontier_view import frontier_of
from fastbp.report.plan import certificate_lines, planner_lines
from fastbp.report.plan_view import simulated, view
from fastbp.run.backend import choose_backend
from fastbp.run.needed import graph_to_run
from fastbp.schedule.schedule import training_schedule
from fastbp.schedule.simulate import Simulation

MIB = 1 << 20

Result = tuple[dict[str, Any], list[str], int]


def add_options(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    add_run_options(parser)
    group = parser.add_argument_group("what is shown")
    group.add_argument("--schedule", action="store_true", help="print every action of the schedule too (default: off)")
    group.add_argument(
        "--explain", metavar="TENSOR",
        help="what the plan does with a tensor: qkv, or blocks.3.qkv for one block's (default: the plan)",
    )  # fmt: skip
    group.add_argument(
        "--what-if", metavar="TENSOR=HOW",
        help="the same plan with a tensor kept or recomputed: qkv=keep, blocks.3.u=recompute (default: the plan)",
    )  # fmt: skip
    group.add_argument(
        "--frontier", action="store_true", help="the cheapest plans from the smallest budget up (default: off)"
    )
    group.add_argument(
        "--certify", action="store_true",
        help="prove how far the plan can be from the fewest FLOPs of any plan in as many bytes; takes up to 20 s"
        " (default: off)",
    )  # fmt: skip
    group.add_argument(
        "--save", metavar="FILE", help="write the plan; --policy 'saved(FILE)' replays it (default: do not)"
    )


def run(options: argparse.Namespace) -> Result:
    config, batch = chosen_config(options), chosen_batch(options)
    graph = graph_to_run(config, batch, choose_backend(options.backend), options.workers, options.dtype)
    require_plannable(graph)
    policy = chosen_policy(options)
    with measuring() as say:
        cost = chosen_cost(options, "optimal()" if options.frontier else policy, config, batch, options.lossy, say)
        if options.frontier:
            frontier = frontier_of(Planner(graph, cost, options.lossy))
            return frontier.to_json(), frontier.lines(), 0
        plan = make_plan(graph, policy, cost, options.lossy)
    if options.save:
        save_plan(Path(options.save), graph, plan)
    shown = view(config, options.dtype, graph, plan)
    simulation = shown.simulation
    if options.explain:
        found = [explain(simulation, name) for name in tensors_called(graph, options.explain)]
        return {"tensors": [explanation_json(each) for each in found]}, explanation_lines(simulation, found), 0
    if options.what_if:
        return _what_if(graph, simulation, options.what_if)
    lines = shown.lines(options.schedule)
    if policy.startswith("optimal("):
        lines[lines.index("") : lines.index("")] = _planner(Planner(graph, cost, options.lossy), plan.budget_bytes or 0)
    result = shown.to_json() | {"plan": plan_value(plan), "certificate": None}
    if options.certify:
        result["certificate"] = _certificate(simulation, plan.budget_bytes or shown.peak_bytes)
        lines[lines.index("") : lines.index("")] = certificate_lines(result["certificate"])
    return result, lines, 0


def _certificate(simulation: Simulation, budget_bytes: int) -> dict[str, Any]:
    """The plan's FLOPs beside a bound on those of any plan. Raises InputError for a lossy plan, which the bound does
    not cover.
    """
    if simulation.schedule.plan.packed:
        raise InputError("--certify with --lossy: the bound is of exact plans, leave out one of them")
    graph = simulation.schedule.graph
    bound = lower_bound(graph, budget_bytes)
    assert bound.flops is not None  # there is a plan
    return {
        "budget_bytes": budget_bytes, "bound_flops_share": bound.flops / graph.flops_per_pass,
        "extra_flops_share": simulation.extra_flops_share,
        "gap": simulation.extra_flops_share - bound.flops / graph.flops_per_pass,
        "solved": bound.optimal, "seconds": bound.seconds,
    }  # fmt: skip


def _planner(planner: Planner, budget: int) -> list[str]:
    """What a budget's plan costs, and what the next MiB would buy."""
    here, more, free = planner.search(budget), planner.search(budget + MIB), planner.search(1 << 62)
    assert here and more and free
    measured, whole = isinstance(planner.cost, Measured), planner.graph.flops_per_pass
    if isinstance(planner.cost, Measured):
        here, more, free = (_foretold(planner.graph, each, planner.cost.as_measured) for each in (here, more, free))
    return planner_lines(planner.smallest_bytes, here, more, free, whole, measured)


def _foretold(graph: Graph, found: Found, cost: Measured) -> Found:
    """The same with what it should take, not with what a planner is charged."""
    return replace(found, cost=schedule_cost(training_schedule(graph, found.plan), cost))


def _what_if(graph: Graph, before: Simulation, words: str) -> Result:
    after = simulated(graph, changed(graph, before.schedule.plan, words))
    layouts = [lay_out(simulation) for simulation in (before, after)]
    result = {
        name: {
            "policy": simulation.schedule.plan.policy, "peak_bytes": layout.size_bytes,
            "kept_bytes": simulation.kept_bytes, "extra_flops_share": simulation.extra_flops_share,
        }
        for name, simulation, layout in zip(("before", "after"), (before, after), layouts, strict=True)
    }  # fmt: skip
    return result, what_if_lines(words, result["before"], result["after"]), 0
