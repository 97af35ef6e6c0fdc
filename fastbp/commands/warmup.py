"""Compiles and caches the kernels, so that the next run starts at once."""

from __future__ import annotations

import argparse
import time
from typing import Any

from fastbp.base.units import format_seconds
from fastbp.commands.terminal import compiling
from fastbp.ops.registry import OPS
from fastbp.run.numba_backend import address, cache_folder


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64"), help="default float32")


def run(options: argparse.Namespace) -> tuple[dict[str, Any], list[str], int]:
    start = time.perf_counter()
    kernels = [
        (op.name, direction)
        for op in OPS.values()
        for direction in ("forward", "backward")
        if op.numba_kernel(direction) is not None
    ]
    with compiling() as progress:
        for name, direction in kernels:
            address(name, direction, options.dtype, progress)
    seconds = time.perf_counter() - start
    where = cache_folder() or "nowhere: the cache folder cannot be written, every start compiles anew"
    lines = [f"{len(kernels)} kernels ready in {format_seconds(seconds)}, kept in {where}"]
    return {"seconds": seconds, "kernels": len(kernels), "cache": str(cache_folder() or "")}, lines, 0
