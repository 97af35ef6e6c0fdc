"""Compiles and caches the kernels, so that the next run starts at once."""

from __future__ import annotations

import argparse
import time
from typing import Any

from fastbp.base.units import format_seconds
from fastbp.commands.options import add_dtype
from fastbp.commands.terminal import compiling
from fastbp.ops.registry import OPS
from fastbp.report.columns import wrapped
from fastbp.run.numba_backend import address, cache_folder


def add_options(parser: argparse.ArgumentParser) -> None:
    add_dtype(parser)


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
    line = f"{len(kernels)} kernels ready in {format_seconds(seconds)}, kept in {where}"
    return {"seconds": seconds}, wrapped(line, 2), 0
