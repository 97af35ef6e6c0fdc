"""Follows the gradient from the loss back to the embedding, stop by stop, for a
window of text: what each op does to it, what it needs from the forward pass,
how large every row is, and which weights' gradients are finished there."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fastbp.base.late import Late
from fastbp.check.seed_window import TEXT
from fastbp.commands.options import add_seed, asked_policy, new_file, size, whole
from fastbp.commands.terminal import warn
from fastbp.policy.named import policy_names
from fastbp.report.walk import walk
from fastbp.report.walk_lines import walk_lines
from fastbp.report.walk_page import walk_page
from fastbp.train.snapshot import load_snapshot

walk_plot = Late("fastbp.report.walk_plot", "walk_plot")  # imports Matplotlib


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", nargs="?", default=TEXT, metavar="TEXT", help=f"the window (default '{TEXT}')")
    parser.add_argument(
        "--from", dest="folder", metavar="DIR",
        help="a run's folder or one snapshot's: its decoder and tokenizer; attention keeps its weights here, as the"
        " seed's does (default: the seed's decoder in float64)",
    )  # fmt: skip
    parser.add_argument("--block", type=whole(0), metavar="N", help="the stops of one block (default: all)")
    parser.add_argument("--head", type=whole(0), default=0, metavar="N", help="the head whose dS is shown (default 0)")
    add_seed(parser)
    parser.add_argument(
        "--policy", metavar="NAME", help=f"what is kept: {', '.join(policy_names())} (default save_all)"
    )
    parser.add_argument(
        "--memory-budget", type=size, metavar="SIZE",
        help="the cheapest plan whose activations fit into SIZE, such as 32KiB (default: no bound)",
    )  # fmt: skip
    group = parser.add_argument_group("what is made of it")
    group.add_argument(
        "--plot", metavar="FILE.png", help="a picture of the norms, stop by stop, and of dS (default: none)"
    )
    group.add_argument(
        "--html", metavar="FILE.html", help="a page that steps through the stops, with no network (default: none)"
    )


def run(options: argparse.Namespace) -> tuple[dict[str, Any], list[str], int]:
    picture = new_file("--plot", options.plot, ".png")
    page = new_file("--html", options.html, ".html")
    snapshot = load_snapshot(Path(options.folder), warn=warn) if options.folder else None
    found = walk(options.text, snapshot=snapshot, policy=asked_policy(options) or "save_all", seed=options.seed)
    result = found.to_json(options.block, options.head)
    lines = walk_lines(result)
    if picture:
        walk_plot(result, picture)
        lines.append(f"picture: {picture}")
    if page:
        page.write_text(walk_page(result), encoding="utf-8")
        lines.append(f"page: {page}")
    return result, lines, 0
