"""Checks this build on the seed's decoder in float64: every gradient against
autograd (where torch is installed) and central differences, and what the
mathematics demands of softmax, LayerNorm and the residual."""

from __future__ import annotations

import argparse
from typing import Any

from fastbp.check.report import check
from fastbp.commands.options import add_backend, add_seed
from fastbp.commands.terminal import compiling


def add_options(parser: argparse.ArgumentParser) -> None:
    add_backend(parser)
    add_seed(parser)


def run(options: argparse.Namespace) -> tuple[dict[str, Any], list[str], int]:
    with compiling() as progress:
        report = check(options.backend, seed=options.seed, progress=progress)
    return report.to_json(), report.lines(), 0 if report.passed else 1
