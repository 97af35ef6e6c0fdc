"""Runs policies side by side, in turn: what memory each saves, what it costs, and
whether measured memory is what was predicted and gradients are the same bits."""

from __future__ import annotations

import argparse
from functools import partial
from importlib import import_module
from typing import Any

from fastbp.base.units import exact_bytes
from fastbp.check.comparison import ALL_SECONDS, LEAST_ROUNDS, REFERENCE, ROUNDS, Comparison, Model, passed
from fastbp.commands.options import (
    add_backend,
    add_cost,
    add_dtype,
    add_model_options,
    add_seed,
    add_workers,
    chosen_batch,
    chosen_config,
    chosen_cost,
    list_of,
    new_file,
    size,
    split_list,
    whole,
)
from fastbp.commands.terminal import measuring
from fastbp.graph.graph import Graph
from fastbp.memory.layout import layout_bytes
from fastbp.policy.cost import COSTS, Cost
from fastbp.policy.named import make_plan
from fastbp.policy.optimal import Planner
from fastbp.report.comparison import comparison_lines
from fastbp.report.comparison_view import comparison_json

POLICIES = (
    REFERENCE, "selective(layernorm)", "selective(gelu, layernorm)", "selective(mlp)", "dots", "every(2)", "full",
)  # fmt: skip
"""What is compared, with the planner at BUDGETS budgets, where nothing is asked for."""
BUDGETS = 6


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is compared")
    group.add_argument(
        "--policies", type=split_list, metavar="A,B,...",
        help=f"policies beside {REFERENCE} (default: {', '.join(POLICIES[1:])}; none where --budgets are given)",
    )  # fmt: skip
    group.add_argument(
        "--budgets", type=list_of(size), metavar="A,B,...",
        help="sizes, such as 400MiB,200MiB: each is the policy optimal(SIZE) (default:"
        " --budget-count of them; none where --policies are given)",
    )  # fmt: skip
    group.add_argument(
        "--budget-count", type=whole(2), metavar="N",
        help=f"so many budgets from the planner's smallest to {REFERENCE}'s peak (default {BUDGETS})",
    )  # fmt: skip
    group.add_argument(
        "--repeat", type=whole(), default=0, metavar="N",
        help=f"rounds (default: as many as take {ALL_SECONDS:.0f} s, {LEAST_ROUNDS} to {ROUNDS})",
    )  # fmt: skip
    group.add_argument("--plot", metavar="FILE.png", help="draw memory against time and FLOPs (default: no picture)")
    group.add_argument(
        "--audit", action="store_true",
        help="hash tensors in forward and where they are recomputed, and name the first that differs (default: off)",
    )  # fmt: skip
    add_model_options(parser)
    how = parser.add_argument_group("how it runs")
    add_cost(how)
    add_dtype(how)
    add_backend(how)
    add_workers(how)
    add_seed(parser)


def run(options: argparse.Namespace) -> tuple[dict[str, Any], list[str], int]:
    picture = new_file("--plot", options.plot, ".png")
    model = Model(
        chosen_config(options), chosen_batch(options), options.backend, options.workers, options.dtype, options.seed
    )
    with measuring() as say:
        costs = partial(chosen_cost, options, "optimal()", model.config, model.batch, say=say)
        cost = costs()
        comparison = Comparison(model, options.repeat, options.audit, say, cost, lambda place: costs(place=place))
        comparison.run(_policies(options, model, cost))
    result = comparison_json(comparison, options.preset)
    rows = result["rows"]
    lines = comparison_lines(result)
    if picture:
        title = f"{options.preset}, batch {model.batch}, context {model.config.context}, {model.dtype}"
        # matplotlib takes half a second to import.
        import_module("fastbp.report.plot").memory_against_cost(rows, title, picture)
        lines.append(f"picture: {picture}")
    return result, lines, 0 if all(map(passed, rows)) else 1


def _policies(options: argparse.Namespace, model: Model, cost: Cost) -> list[str]:
    named, budgets, count = options.policies, options.budgets, options.budget_count
    if named is None and budgets is None:
        named, count = list(POLICIES), count or BUDGETS
    if count is not None:
        budgets = sorted({*(budgets or []), *budgets_between(model.graph(), count, cost)})
    return [*(named or []), *(f"optimal({exact_bytes(budget)})" for budget in budgets or [])]


def budgets_between(graph: Graph, count: int, cost: Cost = COSTS["roofline"]) -> list[int]:
    """Bytes from the planner's smallest to save_all's peak, each the same multiple of the one before, but for rounding
    up to what is easily read. The first is exact.
    """
    low, high = Planner(graph, cost).smallest_bytes, layout_bytes(graph, make_plan(graph, REFERENCE))
    steps = (low * (high / low) ** (i / (count - 1)) for i in range(1, count))
    return sorted({low, *(_rounded_up(int(step)) for step in steps)})


def _rounded_up(nbytes: int) -> int:
    """At most a sixteenth more."""
    unit = next((unit for unit in (1 << 20, 1 << 10) if nbytes >= 16 * unit), 64)
    return -(-nbytes // unit) * unit
