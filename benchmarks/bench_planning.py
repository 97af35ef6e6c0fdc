"""How long the planner takes to find a plan for a budget, and what the plan costs, beside the dynamic programme of
Rotor (fastbp/policy/rotor.py): every plan in a process of its own, where nothing is remembered, forwards and backwards
through the list. Medians, and the ratio to Rotor's. Importing and building the graph are not counted.

    python benchmarks/bench_planning.py [--preset gpt2] [--blocks 12,96] [--budgets 400MiB,275MiB,65MiB] [--rounds 5]

Budgets are for as many blocks as the preset has; more blocks get as much more.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

from fastbp.base.errors import DoesNotFit
from fastbp.base.units import exact_bytes, format_bytes
from fastbp.commands.options import BATCH, list_of, size, whole
from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.policy.named import make_plan
from fastbp.run.measure import Spread, in_turn
from fastbp.schedule.schedule import training_schedule
from fastbp.schedule.simulate import simulate

PLANNERS = ("optimal", "rotor")
"""The last is the mark."""


def planned(preset: str, blocks: int, policy: str) -> tuple[float, float | None]:
    """Seconds, and the share of FLOPs that the plan runs again; None where none fits."""
    graph = decoder_graph(replace(DecoderConfig.preset(preset), blocks=blocks), BATCH[preset], workers=2)
    begin = time.perf_counter()
    try:
        plan = make_plan(graph, policy)
    except DoesNotFit:
        return time.perf_counter() - begin, None
    seconds = time.perf_counter() - begin
    return seconds, simulate(training_schedule(graph, plan)).extra_flops_share


def bench(preset: str, blocks: int, budget: int, rounds: int) -> None:
    seconds: dict[str, list[float]] = defaultdict(list)
    shares: dict[str, float | None] = {}
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
        for name in in_turn(PLANNERS, seconds=0, least=rounds):
            policy = f"{name}({exact_bytes(budget)})"
            took, shares[name] = processes.submit(planned, preset, blocks, policy).result()
            seconds[name].append(took)
    mark = Spread.of(seconds[PLANNERS[-1]]).median
    for name, found in seconds.items():
        spread, share = Spread.of(found), shares[name]
        plan = "no plan fits" if share is None else f"{share:6.1%} more FLOPs"
        print(
            f"  {format_bytes(budget):>9}  {name:<8} {spread.median:.3f} [{spread.low:.3f}-{spread.high:.3f}] s"
            f" {spread.median / mark:6.2f} of {PLANNERS[-1]}'s  {plan}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="gpt2", choices=BATCH)
    parser.add_argument("--blocks", type=list_of(whole()), default="12,96", help="decoders of so many blocks")
    parser.add_argument("--budgets", type=list_of(size), default="400MiB,275MiB,65MiB", help="sizes")
    parser.add_argument("--rounds", type=whole(), default=5, help="processes of each")
    options = parser.parse_args()
    for blocks in options.blocks:
        print(f"{options.preset} with {blocks} blocks, {options.rounds} processes each", flush=True)
        for budget in options.budgets:
            scaled = budget * blocks // DecoderConfig.preset(options.preset).blocks
            bench(options.preset, blocks, scaled, options.rounds)


if __name__ == "__main__":
    main()
