"""Finds the largest batch or context for which parameters, gradients, two moments
and activations fit into memory, and the planner's cheapest plan for it. The
process itself, code and libraries, comes on top."""

from __future__ import annotations

import argparse
from typing import Any

from fastbp.commands.options import (
    BACKEND,
    DTYPE,
    add_backend,
    add_dtype,
    add_model_options,
    add_workers,
    chosen_batch,
    chosen_config,
    one_of,
    size,
)
from fastbp.commands.terminal import measuring
from fastbp.memory.layout import lay_out
from fastbp.report.fit import fit_json, fit_lines, training_command
from fastbp.run.backend import choose_backend
from fastbp.run.fit import available_bytes
from fastbp.run.fitting import Candidate, fitted, most
from fastbp.schedule.schedule import training_schedule
from fastbp.schedule.simulate import simulate

SIZES = ("batch", "context")
PASSED_ON = (
    "preset", "blocks", "width", "heads", "ffn", "vocab", "positions", "dropout", "dtype", "backend", "workers",
)  # fmt: skip
"""Options that the command to try has too, where something else than by default was asked for."""


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is to fit")
    group.add_argument(
        "--memory", type=size, metavar="SIZE", help="bytes to fit into, such as 4GiB (default: what is free now)"
    )
    group.add_argument(
        "--what", type=one_of(SIZES), default="batch", metavar="NAME", help=f"{' or '.join(SIZES)} (default batch)"
    )
    add_model_options(parser)
    how = parser.add_argument_group("how it runs")
    add_dtype(how)
    add_backend(how)
    add_workers(how)


def run(options: argparse.Namespace) -> tuple[dict[str, Any], list[str], int]:
    memory_bytes = available_bytes() if options.memory is None else options.memory
    asked = Candidate(
        chosen_config(options), chosen_batch(options), choose_backend(options.backend), options.workers, options.dtype
    )
    with measuring("planning") as say:
        found, plan = fitted(asked, options.what, memory_bytes, say)
        simulation = simulate(training_schedule(found.graph, plan))
        arena_bytes = lay_out(simulation).size_bytes
    reached = {"batch": found.batch, "context": found.config.context}
    ended = reached[options.what] == most(asked, options.what)
    result = fit_json(
        options.what, found.batch, found.config.context, memory_bytes, found.state_bytes, arena_bytes, simulation, ended
    )
    given = {name: getattr(options, name) for name in PASSED_ON if getattr(options, name) not in (None, DTYPE, BACKEND)}
    return result, fit_lines(result, training_command(result, given)), 0
