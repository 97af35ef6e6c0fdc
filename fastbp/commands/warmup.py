"""Compiles and caches the kernels, so that the next run starts at once; with
--tune, finds the blocks of products that suit this CPU and remembers them; with
--costs, measures what a planner weighs."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from typing import Any

from fastbp.base.errors import InputError
from fastbp.base.units import format_seconds
from fastbp.commands.options import add_backend, add_dtype, add_model_options, chosen_batch, chosen_config
from fastbp.commands.terminal import compiling, measuring
from fastbp.ops.registry import OPS
from fastbp.report.columns import wrapped
from fastbp.run.blocking import Blocking, remember
from fastbp.run.decoder import Decoder
from fastbp.run.numba_backend import address, cache_folder, prepare
from fastbp.run.products import products_of
from fastbp.run.seconds import seconds_of_calls
from fastbp.run.tune import Tuned, tune

TUNE_SECONDS = 3.0
"""For each of the three dimensions of a block."""

Result = tuple[dict[str, Any], list[str], int]


def add_options(parser: argparse.ArgumentParser) -> None:
    add_dtype(parser)
    parser.add_argument(
        "--tune", action="store_true",
        help="measure blocks of products on a decoder's shapes and keep the fastest for this CPU; the bits of results"
        " stay the same (default: off)",
    )  # fmt: skip
    parser.add_argument(
        "--costs", action="store_true",
        help="measure what every call of a block takes in every slice, for plans under a budget, and keep it (default:"
        " off; the first plan of a shape does it)",
    )  # fmt: skip
    add_backend(parser)
    add_model_options(parser)


def run(options: argparse.Namespace) -> Result:
    if options.costs:
        return _costs(options)
    return _tune(options) if options.tune else _compile(options)


def _costs(options: argparse.Namespace) -> Result:
    start = time.perf_counter()
    with measuring() as say:
        found = seconds_of_calls(
            chosen_config(options), chosen_batch(options), backend=options.backend, dtype=options.dtype, say=say
        )
    seconds = time.perf_counter() - start
    line = f"{len(found.nanoseconds)} calls of a block measured or known in {format_seconds(seconds)}"
    return {"seconds": seconds, "calls": len(found.nanoseconds)}, wrapped(line, 2), 0


def _compile(options: argparse.Namespace) -> Result:
    start = time.perf_counter()
    kernels = [
        (op.name, direction)
        for op in OPS.values()
        for direction in ("forward", "backward")
        if op.numba_kernel(direction) is not None
    ]
    with compiling() as progress:
        prepare({name for name, _ in kernels}, options.dtype, progress)
        for name, direction in kernels:
            address(name, direction, options.dtype, progress)
    seconds = time.perf_counter() - start
    where = cache_folder() or "nowhere: the cache folder cannot be written, every start compiles anew"
    line = f"{len(kernels)} kernels ready in {format_seconds(seconds)}, kept in {where}"
    return {"seconds": seconds}, wrapped(line, 2), 0


def _tune(options: argparse.Namespace) -> Result:
    start = time.perf_counter()
    with measuring() as progress:
        decoder = Decoder(
            chosen_config(options), chosen_batch(options), backend=options.backend, dtype=options.dtype,
            progress=progress,
        )  # fmt: skip
        if not decoder.backend.compiled:
            raise InputError("--tune --backend numpy: NumPy blocks its own products, choose cython or numba")
        team = decoder.runner.workers
        found = tune(products_of(decoder.schedule), decoder.backend, options.dtype, team, TUNE_SECONDS, progress)
    try:
        kept: str | None = str(remember(decoder.backend.name, options.dtype, found.blocking))
    except OSError:
        kept = None
    seconds = time.perf_counter() - start
    result = {
        "seconds": seconds, "backend": decoder.backend.name, "blocking": asdict(found.blocking),
        "time_share": found.time_share, "kept": kept,
    }  # fmt: skip
    return result, wrapped(_tuned_line(found, decoder.backend.name, kept), 2), 0


def _tuned_line(found: Tuned, backend: str, kept: str | None) -> str:
    blocks = found.blocking
    default = " (the default)" if blocks == Blocking() else ""
    where = f"kept in {kept}" if kept else "not kept: the cache folder cannot be written"
    return (
        f"{backend}: blocks of {blocks.depth} terms, {blocks.rows} rows, {blocks.panels} panels{default}, products in"
        f" {found.time_share:.1%} of the default's time, {where}"
    )
