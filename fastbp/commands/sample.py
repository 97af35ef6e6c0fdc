"""Generates text from a snapshot, or from the newest one in a run's folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fastbp.commands.options import whole
from fastbp.commands.terminal import warn
from fastbp.train.sample import sample_text
from fastbp.train.snapshot import load_snapshot


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="a run's folder or one snapshot's")
    parser.add_argument(
        "--prompt", default="", metavar="TEXT", help="what the text begins with (default: a line's start)"
    )
    parser.add_argument("--tokens", type=whole(), default=300, metavar="N", help="tokens to generate (default 300)")
    parser.add_argument(
        "--temperature", type=float, default=0.8, metavar="X", help="0: the likeliest token (default 0.8)"
    )
    parser.add_argument("--top-k", type=whole(), metavar="N", help="choose among the N likeliest tokens (default: all)")
    parser.add_argument(
        "--top-p", type=float, metavar="X", help="choose among the likeliest that sum up to X (default: all)"
    )
    parser.add_argument("--seed", type=whole(0), default=0, metavar="N", help="seed of the first sample (default 0)")
    parser.add_argument("--samples", type=whole(), default=1, metavar="N", help="texts to generate (default 1)")


def run(options: argparse.Namespace) -> tuple[dict[str, Any], list[str], int]:
    snapshot = load_snapshot(Path(options.folder), warn=warn)
    samples = [
        sample_text(
            snapshot.config, snapshot.parameters, snapshot.tokenizer, options.prompt, options.tokens,
            temperature=options.temperature, top_k=options.top_k, top_p=options.top_p, seed=options.seed + i,
        )
        for i in range(options.samples)
    ]  # fmt: skip
    lines = (
        samples if len(samples) == 1 else [line for i, text in enumerate(samples) for line in (f"--- {i + 1}", text)]
    )
    return {"samples": samples}, lines, 0
