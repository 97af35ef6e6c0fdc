"""The tensors of a snapshot as one file of the safetensors library: parameters/wte, …, first_moments/wte, …

The library writes, checks that the tensors cover the file without gap or overlap, and reads. What it leaves to its
caller is here: contiguous arrays (of others it silently writes the wrong values), the mode that the umask asks for (it
leaves 0600, safetensors #782), the system's own error, a hash, a header no longer than the configuration explains, keys
that come once, and the names, shapes and dtype of the configuration. It reads with `pread`: a file that shrinks under a
memory map kills the process.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fastbp.base.errors import InputError, NonFinite
from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import ITEMSIZE, parameter_shapes
from fastbp.train.manifest import TENSORS, Manifest, parse_json

Array = NDArray[Any]
Tensors = Mapping[str, Array]

GROUPS = ("parameters", "first_moments", "second_moments")
_CODES = {"float32": "F32", "float64": "F64"}
_LONGEST_ENTRY_BYTES = 160
"""A tensor's entry in the header besides its name: 50 characters, and four numbers of 20 digits at most."""


def tensor_shapes(config: DecoderConfig, moments: bool) -> dict[str, tuple[int, ...]]:
    """Every tensor of the file with its shape."""
    groups = GROUPS if moments else GROUPS[:1]
    return {f"{group}/{name}": shape for group in groups for name, shape in parameter_shapes(config).items()}


def largest_bytes(config: DecoderConfig, moments: bool, dtype: str) -> int:
    """What the file takes at most."""
    values = sum(math.prod(shape) for shape in tensor_shapes(config, moments).values())
    return values * ITEMSIZE[dtype] + 8 + _longest_header_bytes(config)


def fitting_tensors(tensors: Tensors, config: DecoderConfig, moments: bool) -> dict[str, Array]:
    """`tensors` as they can be written: all that the configuration asks for, of one dtype, finite, contiguous."""
    shapes = tensor_shapes(config, moments)
    _require_names(tensors.keys() ^ shapes.keys(), shapes)
    dtype = tensors["parameters/wte"].dtype
    for name, shape in shapes.items():
        array = tensors[name]
        if array.shape != shape or array.dtype != dtype or dtype.name not in ITEMSIZE:
            raise InputError(
                f"tensor {name} is {array.dtype} {array.shape}; a snapshot takes one of "
                f"{', '.join(ITEMSIZE)} for all tensors, and here {shape}"
            )
        _require_finite(name, array)
    return {name: np.ascontiguousarray(tensors[name], dtype=dtype.name) for name in shapes}


def write_tensors(path: Path, tensors: Tensors) -> tuple[int, str]:
    """Write `fitting_tensors` to the new file `path`; the size in bytes and the SHA-256 of what is on the disk then.

    Raises OSError where the system refuses, also where the library wraps that.
    """
    with path.open("xb") as file:
        mode = os.fstat(file.fileno()).st_mode & 0o777
    try:
        save_file(dict(tensors), path)
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number:
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
        raise InputError(f"{TENSORS}: {error}") from error
    path.chmod(mode)
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()


def require_hash(path: Path, sha256: str) -> None:
    """Raise InputError unless the file `path` has the hash that was written down for it."""
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise InputError(f"{path.name} was changed after it was written: it does not have its hash")


def read_tensors(path: Path, manifest: Manifest) -> dict[str, Array]:
    """All tensors by name in the configuration's order, each an array of its own. Raises InputError for any other file.

    No tensor is allocated before the file's size and hash and the tensor's own shape are found to be the right ones.
    """
    _require_size(path, manifest)
    require_hash(path, manifest.sha256)
    shapes = tensor_shapes(manifest.config, manifest.moments)
    _require_header(path, shapes, _longest_header_bytes(manifest.config))
    try:
        with safe_open(path, framework="np", backend="pread") as file:
            for name, shape in shapes.items():
                there = file.get_slice(name)
                found, expected = [there.get_dtype(), there.get_shape()], [_CODES[manifest.dtype], list(shape)]
                if found != expected:
                    raise InputError(f"{TENSORS}: tensor {name} is {found!r:.80}, its configuration has {expected}")
            tensors = {name: file.get_tensor(name) for name in shapes}
    except SafetensorError as error:
        raise InputError(f"{TENSORS}: {error}") from error
    for name, array in tensors.items():
        _require_finite(name, array)
    return tensors


def _require_size(path: Path, manifest: Manifest) -> None:
    """Before the shapes are listed: a forged configuration may have 10¹² blocks."""
    config, C = manifest.config, manifest.config.width
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
    if size != manifest.size_bytes:
        raise InputError(f"{TENSORS} has {size} bytes, not {manifest.size_bytes}: it was cut or added to")
    # Fewer than any file of this configuration has: the largest tensors, and 600 bytes of header a block.
    values = C * (config.vocab + config.blocks * (4 * C + 2 * config.feed_forward))
    if ITEMSIZE[manifest.dtype] * values + 600 * config.blocks > size:
        raise InputError(f"{TENSORS} has {size} bytes, too few for a decoder of its configuration")


def _require_header(path: Path, shapes: Mapping[str, Any], limit: int) -> None:
    """The header's length (the first 8 bytes, little-endian) and names; one that comes twice the library takes once."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > limit:
            raise InputError(f"{TENSORS} has a header of {length} bytes, its configuration explains {limit}")
        _require_names(parse_json(file.read(length), TENSORS).keys() ^ shapes.keys(), shapes)


def _longest_header_bytes(config: DecoderConfig) -> int:
    return sum(len(name) + _LONGEST_ENTRY_BYTES for name in tensor_shapes(config, moments=True))


def _require_names(wrong: set[str], shapes: Mapping[str, Any]) -> None:
    for name in sorted(wrong):
        raise InputError(f"tensor {name:.80} is {'missing' if name in shapes else 'unknown'}")


def _require_finite(name: str, array: Array) -> None:
    finite = np.isfinite(array)
    if not finite.all():
        first = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise NonFinite(f"tensor {name} is {array[first]} at {first}, one of {int((~finite).sum())} values not finite")
