"""Measures how near this machine's limits the kernels come: every product, every
op, a whole update; with --peers, torch and JAX beside it. Shares are taken of
the FMA peak or the memory bandwidth, measured in the same run."""

from __future__ import annotations

import argparse
from statistics import median
from typing import Any

from fastbp.base.errors import InputError
from fastbp.commands.options import (
    add_model_options,
    add_run_options,
    chosen_batch,
    chosen_config,
    chosen_cost,
    chosen_policy,
    seconds,
)
from fastbp.commands.terminal import measuring
from fastbp.report.bench import bench_lines
from fastbp.run.contender import PEERS, installed, require_server
from fastbp.run.limits import Limits
from fastbp.run.products import products_of
from fastbp.run.workers import Workers
from fastbp.train.benchmark import description, measure_contenders, measure_ops, measure_products, measure_update
from fastbp.train.synthetic import synthetic_trainer


def add_options(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    add_run_options(parser)
    group = parser.add_argument_group("what is measured")
    group.add_argument(
        "--seconds", type=seconds, default=5.0, metavar="S",
        help="how long each table is measured, and each contender; a round that was begun is finished (default 5)",
    )  # fmt: skip
    group.add_argument(
        "--peers", action="store_true",
        help="also torch and JAX, where installed, each in a process of its own, with its memory (default: off)",
    )  # fmt: skip


def run(options: argparse.Namespace) -> tuple[dict[str, Any], list[str], int]:
    config, batch = chosen_config(options), chosen_batch(options)
    if options.peers:
        require_server()
        if options.dtype != "float32":
            raise InputError(f"--peers with --dtype {options.dtype}: the peers train in float32 alone")
        if config.dropout:
            raise InputError(f"--peers with --dropout {config.dropout}: the peers train without dropout")
    with measuring() as say:
        policy = chosen_policy(options)
        trainer = synthetic_trainer(
            config, batch, backend=options.backend, workers=options.workers, policy=policy,
            cost=chosen_cost(options, policy, config, batch, options.lossy, say), lossy=options.lossy,
            dtype=options.dtype, progress=say,
        )  # fmt: skip
        decoder = trainer.decoder
        limits = Limits(decoder.runner.workers if decoder.backend.compiled else Workers(1), options.dtype)
        products = products_of(decoder.schedule)
        gemm = measure_products(products, decoder, limits, options.seconds, say)
        say("ops")
        ops = measure_ops(trainer, limits, options.seconds)
        say("updates")
        update = measure_update(trainer, limits, options.seconds)
        backend, workers, flops = decoder.backend.name, decoder.workers, trainer.flops_per_update
        policy = decoder.plan.policy
        del trainer, decoder  # contenders need the memory
        names = [name for library, names in PEERS.items() if options.peers and installed(library) for name in names]
        update["peers"] = {}
        if options.peers:
            what = description(config, batch, workers, policy)
            update["peers"] = measure_contenders(
                [f"fastbp {backend}", *names], what, flops, limits, options.seconds, say
            )
    result = {
        "preset": options.preset, "batch": batch, "context": config.context, "dtype": options.dtype, "policy": policy,
        "backend": backend, "workers": workers,
        "fma_peak_gflops": {str(count): median(found) for count, found in sorted(limits.gflops.items())},
        "fma_peak_range": {str(count): [min(found), max(found)] for count, found in sorted(limits.gflops.items())},
        "memory_gb_per_second": median(limits.gb_per_second),
        "barrier_seconds": median(limits.barriers),
        "barrier_range": [min(limits.barriers), max(limits.barriers)],
        "gemm": gemm, "ops": ops, "update": update,
        "not_installed": [library for library in PEERS if options.peers and not installed(library)],
    }  # fmt: skip
    return result, bench_lines(result), 0
