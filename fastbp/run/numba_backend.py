"""The Numba backend: an op's kernel compiled for the very CPU it runs on, cached on disk.

The cache's folder is named after a hash of the package's source, since Numba itself notices a change in a kernel's own
file only. Where the folder cannot be written, kernels are compiled anew in every process.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection
from contextlib import contextmanager
from dataclasses import astuple
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba import cfunc

from fastbp.ops.registry import OPS
from fastbp.run.blocking import Blocking, remembered
from fastbp.run.cache import cache_root
from fastbp.run.compile_apart import APART, begin, wait
from fastbp.run.cores import physical_cores
from fastbp.simd.abi import KERNEL
from fastbp.simd.attention import register_strips
from fastbp.simd.block_sizes import set_block_sizes
from fastbp.simd.gemm import register_gemm
from fastbp.simd.product import numba_product

SOURCES = ("base", "ops", "kernels", "simd")
"""Folders whose files become kernels, or constants in them."""

Progress = Callable[[str], None]
_compiled: dict[tuple[str, str], Any] = {}


def source_hash() -> str:
    """A hash of every source file that a kernel may be compiled from and of Numba's version."""
    digest = hashlib.sha256(numba.__version__.encode())
    package = Path(__file__).parent.parent
    for path in sorted([path for folder in SOURCES for path in package.glob(f"{folder}/*.py")]):
        digest.update(path.parent.name.encode() + path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


# Taken at import: kernels from the source as it was then must not go by the hash of a later edit.
SOURCE_HASH = source_hash()


@cache
def cache_folder() -> Path | None:
    """The folder for this version's kernels, or None where it cannot be written."""
    folder = cache_root() / f"kernels-{SOURCE_HASH}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError:
        return None
    return folder


@contextmanager
def _numba_cache() -> Any:
    """Numba's cache folder is ours while a kernel is compiled; the caller's setting comes back afterwards."""
    settings: Any = numba.config
    before, folder = settings.CACHE_DIR, cache_folder()
    settings.CACHE_DIR = str(folder or "")
    try:
        yield folder is not None
    finally:
        settings.CACHE_DIR = before


def prepare(op_names: Collection[str], dtype: str, progress: Progress | None = None) -> None:
    """On an empty cache: compiles the kernels of these ops, the slowest in a second process meanwhile."""
    folder = cache_folder()
    if not folder or APART not in op_names or any(folder.rglob("*.nbi")) or physical_cores() < 2:
        return
    begin(dtype)
    for name in sorted(op_names, key=lambda name: (name == APART, name)):
        for direction in ("forward", "backward"):
            if OPS[name].numba_kernel(direction) is not None:
                address(name, direction, dtype, progress)


def address(op_name: str, direction: str, dtype: str, progress: Progress | None = None) -> int:
    """The address of an op's kernel, compiled or loaded where it is not there yet. `progress` hears its name before."""
    return kernel_address(f"{op_name} {direction}", OPS[op_name].numba_kernel(direction), dtype, progress)


def kernel_address(name: str, kernel: Any, dtype: str, progress: Progress | None = None) -> int:
    """The same of any function of the ABI; it stays compiled under its name."""
    key = (name, dtype)
    if key not in _compiled:
        if progress:
            progress(name)
        with _numba_cache() as keep:
            _use_remembered_blocking(dtype)
            if name.startswith(APART):
                wait(dtype)
                register_strips(dtype, cache=keep)
            else:
                register_gemm(dtype, cache=keep)
            _compiled[key] = cfunc(KERNEL[dtype], cache=keep)(kernel)
    return int(_compiled[key].address)


@cache
def _use_remembered_blocking(dtype: str) -> None:
    """Once: what is set later stays."""
    set_blocking(remembered("numba", dtype), dtype)


def set_blocking(blocking: Blocking, dtype: str) -> None:
    """Blocks of products in every later run."""
    set_block_sizes(dtype, *astuple(blocking))


def product_address(dtype: str) -> int:
    """The kernel that is one product, for measuring."""
    return kernel_address("product", numba_product, dtype)
