"""Snapshots: all that it takes to sample from a run or to go on with it, as a folder on disk.

    RUN/snapshot-00000200/tensors.safetensors     parameters/wte, …, first_moments/wte, …, second_moments/wte, …
                          snapshot.json           configuration, tokenizer, update, settings, metrics, the tensors' hash

Saving: everything goes into RUN/.snapshot-00000200.new.tmp, the manifest last; files and folder are fsynced; then the
folder gets its name, so a name stands for a whole snapshot whenever the process is killed. An older snapshot of the
same update steps aside as .snapshot-00000200.old.tmp until the new one has its name, and counts as long as it has not.

Loading: the configuration fixes every name, shape and offset, so the header of the tensors' file is computed and
compared with what is there; nothing in the file decides how much is allocated or where it is read. There is a hash over
each file, no pickle, and no memory map (a file that shrinks under its map kills the process). The tensors are written
and read here, and not by the safetensors library, to hash them in the same pass and to get the system's own errors; any
reader of safetensors opens them.
One run at a time may write to a folder.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fastbp.base.errors import FastbpError, InputError, NonFinite
from fastbp.base.units import format_bytes
from fastbp.data.tokenizer import Tokenizer, tokenizer_from_json
from fastbp.graph.config import PRESETS, DecoderConfig
from fastbp.graph.decoder import ITEMSIZE, parameter_shapes

Array = NDArray[Any]
Tensors = Mapping[str, Array]
Layout = dict[str, tuple[int, ...]]
"""Every tensor of a file with its shape, in the order of the file."""

FORMAT, VERSION = "fastbp snapshot", 1
MANIFEST, TENSORS = "snapshot.json", "tensors.safetensors"
GROUPS = ("parameters", "first_moments", "second_moments")
LARGEST_MANIFEST_BYTES = 1 << 26
"""A tokenizer of all of Unicode takes 13 MB; whatever is longer is no manifest."""
SPARE_BYTES = 1 << 16
"""Beyond the files' own sizes: folders and the file system's records."""

_CODES = {"float32": "F32", "float64": "F64"}
_FIELDS: dict[str, type] = {
    "format": str, "version": int, "update": int, "config": dict, "tokenizer": dict, "tokenizer_fingerprint": str,
    "dtype": str, "moments": bool, "tensors": dict, "settings": dict, "metrics": dict, "sha256": str,
}  # fmt: skip
_NUMBER = "([0-9]{8}|[1-9][0-9]{8,})"
_SNAPSHOT = re.compile(f"snapshot-{_NUMBER}")
_ASIDE = re.compile(rf"\.snapshot-{_NUMBER}\.old\.tmp")
_TEMPORARY = re.compile(rf"\.(snapshot-{_NUMBER})\.(new|old|gone)\.tmp")


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A run after `update` updates. Without moments it can be sampled from, not resumed.

    `settings` and `metrics` are JSON objects; in metrics a number that is not finite (not measured) comes back as None.
    """

    config: DecoderConfig
    tokenizer: Tokenizer
    update: int
    settings: dict[str, Any]
    metrics: dict[str, Any]
    parameters: Tensors
    first_moments: Tensors | None = None
    second_moments: Tensors | None = None

    def __post_init__(self) -> None:
        if self.update < 0:
            raise InputError(f"update is {self.update}: a snapshot counts the updates done, from 0")
        if (self.first_moments is None) != (self.second_moments is None):
            raise InputError("a snapshot holds both moments or none")
        if self.tokenizer.vocab > self.config.vocab:
            raise InputError(f"the tokenizer has {self.tokenizer.vocab} ids, the decoder only {self.config.vocab}")


# --- saving ---------------------------------------------------------------------------------------------------------


def save_snapshot(folder: Path, snapshot: Snapshot) -> Path:
    """Write `snapshot` to its own folder in `folder` (a run's) and return that; it is on the disk when this returns.

    Raises NonFinite for a tensor with NaN or infinity and InputError for tensors that do not fit the configuration, a
    full disk or any other error of the system. Nothing is left behind then, and earlier snapshots stay as they were.
    """
    tensors = _tensors_of(snapshot)
    target = folder / f"snapshot-{snapshot.update:08d}"
    temporary = folder / f".{target.name}.new.tmp"
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True)
            _sync(folder.parent)
        _tidy(folder)
        _require_space(folder, _size_bytes(tensors) + len(_manifest(snapshot, tensors, "0" * 64)) + SPARE_BYTES)
        temporary.mkdir()
        sha256 = _write_tensors(temporary / TENSORS, tensors)
        _write_file(temporary / MANIFEST, _manifest(snapshot, tensors, sha256))
        _sync(temporary)
        if os.path.lexists(target):
            os.rename(target, folder / f".{target.name}.old.tmp")
        os.rename(temporary, target)
        _sync(folder)
    except OSError as error:
        advice = "free some space or give another --out" if error.errno == errno.ENOSPC else "see to it and go on"
        raise InputError(
            f"snapshot {target} was not saved: {_reason(error)}; {advice}, earlier snapshots are intact"
        ) from error
    finally:
        with suppress(OSError):
            _tidy(folder)
    return target


def rotate(folder: Path, keep_last: int, just_written: Path) -> None:
    """Delete the oldest snapshots of `folder` so that `keep_last` are left, `just_written` among them.

    First the new one is read back and must have its hash. Snapshots of later updates (from another branch of the run)
    and whatever is not a snapshot's folder are left alone. Raises InputError where an old one cannot be deleted, and
    before any is deleted for a `keep_last` below 1 or a new one that does not read back.
    """
    if keep_last < 1:
        raise InputError(f"keep-last is {keep_last}: keep at least 1 snapshot")
    found = _numbered(folder, _SNAPSHOT)
    newest = next((number for number, path in found.items() if path.name == just_written.name), None)
    if newest is None or not just_written.samefile(found[newest]):
        raise ValueError(f"{just_written} is not a snapshot in {folder}")
    _verify(just_written)
    older = [path for number, path in found.items() if number < newest and not path.is_symlink()]
    for path in older[: max(0, len(older) - (keep_last - 1))]:
        try:
            # Under its new name it no longer counts, however little of it is deleted before a kill.
            gone = folder / f".{path.name}.gone.tmp"
            os.rename(path, gone)
            shutil.rmtree(gone)
        except OSError as error:
            raise InputError(f"old snapshot {path} cannot be deleted: {_reason(error)}") from error


def _tensors_of(snapshot: Snapshot) -> dict[str, Array]:
    """Every tensor by its name in the file, checked, contiguous, little-endian."""
    groups = {group: getattr(snapshot, group) or {} for group in GROUPS}
    layout = _layout(snapshot.config, moments=snapshot.first_moments is not None)
    arrays = {f"{group}/{name}": array for group, tensors in groups.items() for name, array in tensors.items()}
    wrong = sorted(arrays.keys() ^ layout.keys())
    if wrong:
        raise InputError(f"tensor {wrong[0]} is {'unknown' if wrong[0] in arrays else 'missing'} here")
    dtype = arrays["parameters/wte"].dtype
    for name, shape in layout.items():
        array = arrays[name]
        if array.shape != shape or array.dtype != dtype or dtype.name not in ITEMSIZE:
            raise InputError(
                f"tensor {name} is {array.dtype} {array.shape}; a snapshot takes one of "
                f"{', '.join(ITEMSIZE)} for all tensors, and here {shape}"
            )
        _require_finite(name, array)
    return {name: np.ascontiguousarray(arrays[name], dtype=dtype.newbyteorder("<")) for name in layout}


def _require_finite(name: str, array: Array) -> None:
    finite = np.isfinite(array)
    if not finite.all():
        first = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise NonFinite(f"tensor {name} is {array[first]} at {first}, one of {int((~finite).sum())} values not finite")


def _require_space(folder: Path, needed_bytes: int) -> None:
    usage = shutil.disk_usage(folder)
    # Some network file systems report nothing at all; there the write itself has to tell.
    if usage.total and usage.free < needed_bytes:
        raise OSError(
            errno.ENOSPC,
            f"the disk has {format_bytes(usage.free)} ({usage.free} bytes) available,"
            f" {format_bytes(needed_bytes)} ({needed_bytes} bytes) are needed",
        )


def _manifest(snapshot: Snapshot, tensors: Tensors, sha256: str) -> bytes:
    content = {
        "format": FORMAT,
        "version": VERSION,
        "update": snapshot.update,
        "config": snapshot.config.to_json(),
        "tokenizer": snapshot.tokenizer.to_json(),
        "tokenizer_fingerprint": snapshot.tokenizer.fingerprint(),
        "dtype": tensors["parameters/wte"].dtype.name,
        "moments": snapshot.first_moments is not None,
        "tensors": {"file": TENSORS, "bytes": _size_bytes(tensors), "sha256": sha256},
        "settings": snapshot.settings,
        "metrics": _measured(snapshot.metrics),
    }
    try:
        # Read back, since a dictionary can have keys that are different in Python and equal in JSON.
        content = _parse(json.dumps(content, allow_nan=False).encode(), MANIFEST)
    except (TypeError, ValueError, RecursionError, InputError) as error:
        raise InputError(f"settings and metrics cannot be saved as JSON: {error}") from error
    return json.dumps(content | {"sha256": _hash(content)}, indent=1).encode() + b"\n"


def _measured(value: Any) -> Any:
    """`value` with None for every float that JSON cannot write."""
    if isinstance(value, dict):
        return {key: _measured(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_measured(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write_tensors(path: Path, tensors: Tensors) -> str:
    """Write the safetensors file and return its SHA-256."""
    header = _header({name: array.shape for name, array in tensors.items()}, tensors["parameters/wte"].dtype.name)
    digest = hashlib.sha256(header)
    with path.open("xb") as file:
        file.write(header)
        for array in tensors.values():
            file.write(array.data)
            digest.update(array.data)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _write_file(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Bring a folder's names to the disk; without it a power cut may take back a rename."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _tidy(folder: Path) -> None:
    """Undo what a killed save or rotation left: an old snapshot with no successor gets its name back, the rest goes."""
    with os.scandir(folder) as entries:
        found = [(entry, _TEMPORARY.fullmatch(entry.name)) for entry in entries if entry.is_dir(follow_symlinks=False)]
    for entry, match in found:
        if match and match[3] == "old" and not os.path.lexists(folder / match[1]):
            os.rename(entry.path, folder / match[1])
        elif match:
            shutil.rmtree(entry.path)


def _verify(path: Path) -> None:
    try:
        manifest = _read_manifest(path / MANIFEST)
        with (path / TENSORS).open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        if sha256 != manifest["tensors"]["sha256"]:
            raise InputError(f"{TENSORS} does not have the hash that was written")
    except Exception as error:
        raise InputError(f"snapshot {path} does not read back: {_reason(error)}; no older one was deleted") from error


# --- loading --------------------------------------------------------------------------------------------------------


def list_snapshots(folder: Path) -> list[Path]:
    """The snapshots in a run's folder by rising update, whole or not; none where there is no such folder."""
    found = _numbered(folder, _ASIDE) | _numbered(folder, _SNAPSHOT)
    return [found[number] for number in sorted(found)]


def load_snapshot(path: Path, warn: Callable[[str], None] = warnings.warn) -> Snapshot:
    """The snapshot in the folder `path`; where that is a run's folder, its newest one that is whole.

    `warn` is told of each damaged snapshot that is passed over. Raises InputError where none can be used.
    """
    if not os.path.isdir(path):
        what = "not a folder" if os.path.exists(path) else "missing"
        raise InputError(f"snapshot {path} is {what}: give the --out folder of a run")
    if _SNAPSHOT.fullmatch(path.name) or any(os.path.exists(path / name) for name in (MANIFEST, TENSORS)):
        return _load(path)
    candidates = list_snapshots(path)
    if not candidates:
        raise InputError(f"{path} holds no snapshot: give the --out folder of a run that saved one")
    while True:
        try:
            return _load(candidates.pop())
        except InputError as error:
            if not candidates:
                raise
            warn(f"{error}; falling back to {candidates[-1].name}")


def require_same_shape(snapshot: Snapshot, config: DecoderConfig) -> None:
    """Raise InputError, naming the first field that differs, unless the snapshot is of a decoder like `config`."""
    for field in fields(DecoderConfig):
        there, here = getattr(snapshot.config, field.name), getattr(config, field.name)
        if there != here:
            raise InputError(
                f"{field.name} is {there} in the snapshot of update {snapshot.update} and {here} here: "
                f"resume with {there}, or start afresh in another folder"
            )


def require_same_tokenizer(snapshot: Snapshot, tokenizer: Tokenizer) -> None:
    """Raise InputError unless the snapshot was trained with `tokenizer`: another one gives its ids other meanings."""
    there, here = snapshot.tokenizer, tokenizer
    if there.fingerprint() != here.fingerprint():
        raise InputError(
            f"the snapshot of update {snapshot.update} has another tokenizer ({there.kind}, {there.vocab} ids, "
            f"{there.fingerprint()[:12]}) than given here ({here.kind}, {here.vocab} ids, {here.fingerprint()[:12]}): "
            "use the snapshot's own"
        )


def _numbered(folder: Path, pattern: re.Pattern[str]) -> dict[int, Path]:
    """The subfolders whose name is `pattern`, by their number, rising."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputError(f"folder {folder} cannot be listed: {_reason(error)}") from error
    matches = [match for match in map(pattern.fullmatch, names) if match and os.path.isdir(folder / match[0])]
    return {int(match[1]): folder / match[0] for match in sorted(matches, key=lambda match: int(match[1]))}


def _load(path: Path) -> Snapshot:
    try:
        return _read(path)
    except Exception as error:  # whatever a damaged file provokes, its reader gets one line
        raise InputError(f"snapshot {path} cannot be used: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, FastbpError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{Path(error.filename).name}: {error.strerror}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}"


def _read(path: Path) -> Snapshot:
    manifest = _read_manifest(path / MANIFEST)
    config = _read_config(manifest["config"])
    tokenizer = tokenizer_from_json(manifest["tokenizer"])
    if tokenizer.fingerprint() != manifest["tokenizer_fingerprint"]:
        raise InputError("its tokenizer is not the one that it was trained with: their fingerprints differ")
    tensors = _read_tensors(path / TENSORS, config, manifest)
    groups = {
        group: {name: tensors[f"{group}/{name}"] for name in parameter_shapes(config)}
        for group in (GROUPS if manifest["moments"] else GROUPS[:1])
    }
    return Snapshot(config, tokenizer, manifest["update"], manifest["settings"], manifest["metrics"], **groups)


def _read_manifest(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        data = file.read(LARGEST_MANIFEST_BYTES + 1)
    if len(data) > LARGEST_MANIFEST_BYTES:
        raise InputError(f"{MANIFEST} is over {format_bytes(LARGEST_MANIFEST_BYTES)}")
    manifest = _parse(data, MANIFEST)
    if manifest.get("format") != FORMAT:
        raise InputError(f"{MANIFEST} is not that of a {FORMAT}")
    if manifest.get("version") != VERSION:
        raise InputError(f"it has format version {manifest.get('version')!r:.40}, this fastbp reads {VERSION}")
    wrong = sorted(manifest.keys() ^ _FIELDS.keys()) or [
        name for name, kind in _FIELDS.items() if type(manifest[name]) is not kind
    ]
    if wrong:
        raise InputError(f"{MANIFEST} has a missing, unknown or mistyped field {wrong[0]!r:.40}")
    declared = manifest.pop("sha256")
    if _hash(manifest) != declared:
        raise InputError(f"{MANIFEST} was changed after it was written: it does not have its hash")
    if manifest["dtype"] not in ITEMSIZE:
        raise InputError(f"{MANIFEST} has the dtype {manifest['dtype']!r:.40}: known are {', '.join(ITEMSIZE)}")
    return manifest


def _parse(data: bytes, name: str) -> dict[str, Any]:
    """The JSON object in file `name`. Raises InputError for anything else, keys that come twice, NaN and Infinity."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            keys = [key for key, _ in pairs]
            raise InputError(f"{name}: key {max(keys, key=keys.count)!r:.80} comes twice in one JSON object")
        return values

    def refuse(constant: str) -> Any:
        raise InputError(f"{name}: {constant} is not a number in JSON")

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}: not JSON where it should be, {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{name}: the JSON there is not an object")
    return value


def _hash(content: dict[str, Any]) -> str:
    """SHA-256 of the JSON form with sorted keys and no spaces."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _read_config(values: dict[str, Any]) -> DecoderConfig:
    for name, example in PRESETS["seed"].to_json().items():
        kinds = (int, float) if isinstance(example, float) else (type(example),)
        if name in values and type(values[name]) not in kinds:
            raise InputError(f"its configuration has {name} {values[name]!r:.40}")
    return DecoderConfig.from_json(values)


# --- the tensors' file ----------------------------------------------------------------------------------------------


def _layout(config: DecoderConfig, moments: bool) -> Layout:
    groups = GROUPS if moments else GROUPS[:1]
    return {f"{group}/{name}": shape for group in groups for name, shape in parameter_shapes(config).items()}


def _header(layout: Layout, dtype: str) -> bytes:
    """The start of a safetensors file: the length of the JSON (8 bytes, little-endian), the JSON, spaces to 8 bytes."""
    entries, end = {}, 0
    for name, shape in layout.items():
        start, end = end, end + math.prod(shape) * ITEMSIZE[dtype]
        entries[name] = {"dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _size_bytes(tensors: Tensors) -> int:
    layout = {name: array.shape for name, array in tensors.items()}
    return len(_header(layout, tensors["parameters/wte"].dtype.name)) + sum(array.nbytes for array in tensors.values())


def _read_tensors(path: Path, config: DecoderConfig, manifest: dict[str, Any]) -> dict[str, Array]:
    """All tensors by name. The file's size bounds what is allocated, and the configuration must explain every byte."""
    dtype, declared = manifest["dtype"], manifest["tensors"]
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size != declared.get("bytes"):
            raise InputError(f"{TENSORS} has {size} bytes, not {declared.get('bytes')!r:.40}: it was cut or added to")
        if _least_bytes(config) > size:
            raise InputError(f"{TENSORS} has {size} bytes, too few for a decoder of its configuration")
        layout = _layout(config, manifest["moments"])
        header = _header(layout, dtype)
        if file.read(len(header)) != header:
            raise InputError(_first_difference(file, layout, dtype, size))
        total = len(header) + sum(math.prod(shape) for shape in layout.values()) * ITEMSIZE[dtype]
        if size != total:
            raise InputError(f"{TENSORS} has {size} bytes, its configuration needs {total}")
        digest = hashlib.sha256(header)
        tensors = {name: _read_tensor(file, name, shape, dtype, digest) for name, shape in layout.items()}
    if digest.hexdigest() != declared.get("sha256"):
        raise InputError(f"{TENSORS} was changed after it was written: it does not have its hash")
    for name, array in tensors.items():
        _require_finite(name, array)
    return tensors


def _least_bytes(config: DecoderConfig) -> int:
    """Fewer than any file of this configuration has: the largest tensors, and 600 bytes of header a block."""
    C = config.width
    return 4 * C * (config.vocab + config.blocks * (4 * C + 2 * config.feed_forward)) + 600 * config.blocks


def _read_tensor(file: IO[bytes], name: str, shape: tuple[int, ...], dtype: str, digest: Any) -> Array:
    array = np.empty(shape, np.dtype(dtype).newbyteorder("<"))
    if file.readinto(array.data.cast("B")) != array.nbytes:  # type: ignore[attr-defined]
        raise InputError(f"{TENSORS} ends within tensor {name}")
    digest.update(array.data)
    return array.astype(dtype, copy=False)


def _first_difference(file: IO[bytes], layout: Layout, dtype: str, size: int) -> str:
    """What is wrong with a header that is not the one expected; the file may say anything."""
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if length > min(size - 8, LARGEST_MANIFEST_BYTES):
        return f"{TENSORS} has a header of {length} bytes in a file of {size}"
    entries = _parse(file.read(length), TENSORS)
    entries.pop("__metadata__", None)
    for name in sorted(layout.keys() ^ entries.keys()):
        return f"{TENSORS}: tensor {name:.80} is {'missing' if name in layout else 'unknown'}"
    for name, shape in layout.items():
        entry = entries[name] if isinstance(entries[name], dict) else {}
        found = [entry.get("dtype"), entry.get("shape")]
        if found != [_CODES[dtype], list(shape)]:
            return f"{TENSORS}: tensor {name} is {found!r:.80}, its configuration has {[_CODES[dtype], list(shape)]}"
    return f"{TENSORS}: its tensors do not lie one behind the other in the order of the configuration"
