"""Puts one update under the clock and the ledger: seconds by op and by block,
bytes at the peak by category and by tensor, and what dropping more would save.
Tokens are without meaning, since neither time nor memory depends on them."""

from __future__ import annotations

import argparse
from typing import Any

from fastbp.commands.options import (
    add_model_options,
    add_run_options,
    chosen_batch,
    chosen_config,
    chosen_cost,
    chosen_policy,
    new_file,
    seconds,
)
from fastbp.commands.terminal import measuring
from fastbp.report.profile import profile


def add_options(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    add_run_options(parser)
    group = parser.add_argument_group("what is measured and shown")
    group.add_argument(
        "--seconds", type=seconds, default=5.0, metavar="S",
        help="how long calls are measured, and whole updates; three rounds at least (default 5)",
    )  # fmt: skip
    group.add_argument(
        "--rss", action="store_true",
        help="watch an update in a fresh process with memory-profiler, and judge its resident memory by the ledger;"
        " it misses short spikes and is no longer maintained: the ledger is the truth, this its witness (default: off)",
    )  # fmt: skip
    group.add_argument(
        "--plot", metavar="FILE.png", help="draw live bytes over the schedule's ticks (default: no picture)"
    )
    group.add_argument(
        "--html", metavar="FILE.html", help="write a page to look around in, which needs nothing else (default: none)"
    )


def run(options: argparse.Namespace) -> tuple[dict[str, Any], list[str], int]:
    picture, page = new_file("--plot", options.plot, ".png"), new_file("--html", options.html, ".html")
    config, batch = chosen_config(options), chosen_batch(options)
    policy = chosen_policy(options)
    with measuring() as say:
        found = profile(
            config, batch, name=options.preset, policy=policy, lossy=options.lossy, backend=options.backend,
            cost=chosen_cost(options, policy, config, batch, options.lossy, say), workers=options.workers,
            dtype=options.dtype, seconds=options.seconds, rss=options.rss, say=say,
        )  # fmt: skip
    lines = found.lines()
    for path, save, what in ((picture, found.save_plot, "picture"), (page, found.save_page, "page")):
        if path:
            save(path)
            lines.append(f"{what + ':':<12}{path}")
    return found.to_json(), lines, 0
