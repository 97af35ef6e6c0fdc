"""Shows what fastbp finds: the CPU, the backends and why each was chosen,
threads, caches and memory."""

from __future__ import annotations

import argparse
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import llvmlite.binding as llvm
import psutil

from fastbp import __version__
from fastbp.base.units import format_bytes, format_count
from fastbp.check.torch_available import torch_version
from fastbp.report.columns import wrapped
from fastbp.run.backend import auto_choice
from fastbp.run.cpu_caches import cpu_caches
from fastbp.run.cpu_name import cpu_name
from fastbp.run.cython_backend import instruction_set
from fastbp.run.fit import available_bytes
from fastbp.run.numba_backend import cache_folder
from fastbp.run.workers import TINY_FLOPS, physical_cores
from fastbp.simd.target import TARGET

PACKAGES = ("numpy", "numba", "llvmlite", "scipy", "safetensors", "rich", "matplotlib", "psutil", "memory-profiler")

FEATURES = ("sse2", "avx", "avx2", "fma", "avx512f", "avx512vl", "avx512dq", "avx512bw", "neon", "sve")

NUMBA = "compiled on this machine for its vector unit, cached"


def add_options(parser: argparse.ArgumentParser) -> None:
    """None."""


def run(options: argparse.Namespace) -> tuple[dict[str, Any], list[str], int]:
    folder = cache_folder()
    result: dict[str, Any] = {
        "fastbp": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cpu_features": _cpu_features(),
        "cpu_caches": cpu_caches(),
        "vector_unit": {"name": TARGET.name, "bytes": TARGET.vector_bytes, "tile_rows": TARGET.tile_rows[0]},
        "cores": {"physical": physical_cores(), "logical": os.cpu_count()},
        "threads": {"workers": physical_cores(), "workers_for_tiny_updates": 1, "tiny_update_flops": TINY_FLOPS},
        "backends": {
            "auto": ": ".join(auto_choice()),
            "numba": NUMBA,
            "cython": _cython(),
            "numpy": "defines every op; not fast",
        },
        "kernel_cache": {"folder": str(folder or ""), "compiled": _compiled(folder), "writable": folder is not None},
        "memory": {"total_bytes": psutil.virtual_memory().total, "available_bytes": available_bytes()},
        "torch": torch_version(),
        "packages": {name: _version(name) for name in PACKAGES},
    }
    return result, _lines(result), 0


def _cpu_features() -> list[str]:
    """What kernels may use, as LLVM names it, of the features that matter to them."""
    found = llvm.get_host_cpu_features()
    return [name for name in FEATURES if found.get(name)]


def _cython() -> str:
    try:
        return f"built ahead, here for {instruction_set()}: starts at once"
    except ImportError as error:
        return f"does not load: {error}; install fastbp again with a C compiler"


def _compiled(folder: Any) -> int:
    return len(list(folder.rglob("*.nbc"))) if folder else 0


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _lines(result: dict[str, Any]) -> list[str]:
    cache, memory, cores = result["kernel_cache"], result["memory"], result["cores"]
    unit, threads = result["vector_unit"], result["threads"]
    kept = (
        f"{cache['folder']} ({cache['compiled']} kernels)"
        if cache["writable"]
        else "not writable: every start compiles anew"
    )
    caches = ", ".join(f"{name} {format_bytes(size)}" for name, size in result["cpu_caches"].items())
    tiny = format_count(threads["tiny_update_flops"])
    packages = ", ".join(f"{name} {number}" for name, number in result["packages"].items() if number)
    lines = [
        f"fastbp       {result['fastbp']}, Python {result['python']}, {result['system']}",
        f"CPU          {result['cpu']}",
        f"features     {' '.join(result['cpu_features']) or 'none that kernels use'}",
        f"caches       {caches or 'unknown'}",
        f"vector unit  {unit['name']}, {unit['bytes']} bytes wide",
        f"cores        {cores['physical']} physical, {cores['logical']} logical",
        f"threads      {threads['workers']} workers, 1 for updates under {tiny} FLOP",
        f"memory       {format_bytes(memory['available_bytes'])} free of {format_bytes(memory['total_bytes'])}",
        f"auto         {result['backends']['auto']}",
        *(f"  {name:<9}  {result['backends'][name]}" for name in ("numba", "cython", "numpy")),
        f"kernels      {kept}",
        f"torch        {result['torch'] or 'not installed: `check` compares with finite differences alone'}",
        f"packages     {packages}",
    ]
    return [part for line in lines for part in wrapped(line, 13)]
