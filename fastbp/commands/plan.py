"""Shows a policy's plan without running it: what is kept, what is recomputed,
the peak to the byte, its moment, and every tensor that is live then."""

from __future__ import annotations

import argparse
from typing import Any

from fastbp.commands.options import add_model_options, add_run_options, chosen_batch, chosen_config, chosen_policy
from fastbp.graph.decoder import ITEMSIZE, decoder_graph, parameter_shapes
from fastbp.memory.flat import FlatShapes
from fastbp.memory.layout import lay_out, require_plannable
from fastbp.policy.named import make_plan
from fastbp.report.plan import plan_json, plan_lines
from fastbp.run.backend import choose_backend
from fastbp.run.workers import choose_parts, choose_workers
from fastbp.schedule.schedule import training_schedule
from fastbp.schedule.simulate import simulate


def add_options(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    add_run_options(parser)
    parser.add_argument("--schedule", action="store_true", help="print every action of the schedule too")


def run(options: argparse.Namespace) -> tuple[dict[str, Any], list[str], int]:
    config, batch = chosen_config(options), chosen_batch(options)
    backend = choose_backend(options.backend)
    workers = choose_workers(options.workers, decoder_graph(config, batch).products_per_pass)
    graph = decoder_graph(config, batch, workers=choose_parts(workers) if backend.compiled else 0, dtype=options.dtype)
    require_plannable(graph)
    simulation = simulate(training_schedule(graph, make_plan(graph, chosen_policy(options))))
    layout = lay_out(simulation)
    whole = lay_out(simulate(training_schedule(graph, make_plan(graph, "save_all"))))
    parameter_bytes = FlatShapes(parameter_shapes(config)).size * ITEMSIZE[options.dtype]
    result = plan_json(simulation, layout, parameter_bytes)
    return result, plan_lines(simulation, layout, whole, parameter_bytes, options.schedule), 0
