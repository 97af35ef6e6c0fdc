"""Shows what fastbp finds: the CPU, the backends and why each was chosen,
threads, caches and memory."""

from __future__ import annotations

import argparse
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import psutil

from fastbp import __version__
from fastbp.base.units import format_bytes
from fastbp.check.torch_available import torch_version
from fastbp.run.backend import WHY_AUTO, choose_backend
from fastbp.run.cython_backend import instruction_set
from fastbp.run.fit import available_bytes
from fastbp.run.numba_backend import cache_folder
from fastbp.run.workers import physical_cores
from fastbp.simd.target import TARGET

PACKAGES = ("numpy", "numba", "llvmlite", "scipy", "safetensors", "rich", "matplotlib", "psutil", "memory-profiler")


def add_options(parser: argparse.ArgumentParser) -> None:
    """None."""


def run(options: argparse.Namespace) -> tuple[dict[str, Any], list[str], int]:
    folder = cache_folder()
    result: dict[str, Any] = {
        "fastbp": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_name(),
        "vector_unit": {"name": TARGET.name, "bytes": TARGET.vector_bytes, "tile_rows": TARGET.tile_rows[0]},
        "cores": {"physical": physical_cores(), "logical": os.cpu_count()},
        "backends": {
            "auto": choose_backend("auto").name,
            "numba": WHY_AUTO,
            "cython": f"built for {instruction_set()}: starts at once, needs no compiling",
            "numpy": "defines every op; not fast",
        },
        "kernel_cache": {"folder": str(folder or ""), "compiled": _compiled(folder), "writable": folder is not None},
        "memory": {"total_bytes": psutil.virtual_memory().total, "available_bytes": available_bytes()},
        "torch": torch_version(),
        "packages": {name: _version(name) for name in PACKAGES},
    }
    return result, _lines(result), 0


def _compiled(folder: Any) -> int:
    return len(list(folder.rglob("*.nbc"))) if folder else 0


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _lines(result: dict[str, Any]) -> list[str]:
    cache, memory, cores = result["kernel_cache"], result["memory"], result["cores"]
    unit = result["vector_unit"]
    kept = f"{cache['folder']} ({cache['compiled']} kernels)" if cache["writable"] else "not writable: every start compiles anew"
    packages = ", ".join(f"{name} {number}" for name, number in result["packages"].items() if number)
    return [
        f"fastbp       {result['fastbp']}, Python {result['python']}, {result['system']}",
        f"CPU          {result['cpu']}",
        f"vector unit  {unit['name']}, {unit['bytes']} bytes wide",
        f"cores        {cores['physical']} physical, {cores['logical']} logical",
        f"memory       {format_bytes(memory['available_bytes'])} free of {format_bytes(memory['total_bytes'])}",
        f"auto         {result['backends']['auto']}",
        *(f"  {name:<9}  {result['backends'][name]}" for name in ("numba", "cython", "numpy")),
        f"kernels      {kept}",
        f"torch        {result['torch'] or 'not installed: `check` compares with finite differences alone'}",
        f"packages     {packages}",
    ]
