"""Snapshots: all that it takes to sample from a run or to go on with it, as a folder on disk.

    RUN/snapshot-00000200/tensors.safetensors     parameters and moments, see tensor_file.py
                          snapshot.json           configuration, tokenizer, update, settings, metrics, see manifest.py

Saving: everything goes into RUN/.snapshot-00000200.new.tmp, the manifest last; files and folder are fsynced; then the
folder gets its name, so a name stands for a whole snapshot whenever the process is killed. An older snapshot of the
same update steps aside as .snapshot-00000200.old.tmp until the new one has its name, and counts as long as it has not.

Loading: there is a hash over each file, and nothing in a file decides how much is allocated or which code runs.
One run at a time may write to a folder.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fastbp.base.errors import FastbpError, InputError
from fastbp.base.units import format_bytes
from fastbp.data.tokenizer import Tokenizer
from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import parameter_shapes
from fastbp.train.manifest import MANIFEST, TENSORS, Manifest, read_manifest
from fastbp.train.tensor_file import (
    GROUPS,
    Tensors,
    fitting_tensors,
    largest_bytes,
    read_tensors,
    require_hash,
    write_tensors,
)

__all__ = [
    "MANIFEST",
    "TENSORS",
    "Snapshot",
    "list_snapshots",
    "load_snapshot",
    "require_same_shape",
    "require_same_tokenizer",
    "rotate",
    "save_snapshot",
]

SPARE_BYTES = 1 << 16
"""Beyond the files' own sizes: folders and the file system's records."""

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
    moments = snapshot.first_moments is not None
    groups = {group: getattr(snapshot, group) or {} for group in GROUPS}
    arrays = {f"{group}/{name}": array for group, named in groups.items() for name, array in named.items()}
    tensors = fitting_tensors(arrays, snapshot.config, moments)
    dtype = tensors["parameters/wte"].dtype.name
    run = {name: getattr(snapshot, name) for name in ("config", "tokenizer", "update", "settings", "metrics")}
    largest = largest_bytes(snapshot.config, moments, dtype)
    manifest = Manifest(**run, dtype=dtype, moments=moments, size_bytes=largest, sha256="0" * 64)
    target = folder / f"snapshot-{snapshot.update:08d}"
    temporary = folder / f".{target.name}.new.tmp"
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True)
            _sync(folder.parent)
        _tidy(folder)
        _require_space(folder, largest + len(manifest.to_bytes()) + SPARE_BYTES)
        temporary.mkdir()
        size_bytes, sha256 = write_tensors(temporary / TENSORS, tensors)
        _write_file(temporary / MANIFEST, replace(manifest, size_bytes=size_bytes, sha256=sha256).to_bytes())
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


def _require_space(folder: Path, needed_bytes: int) -> None:
    usage = shutil.disk_usage(folder)
    # Some network file systems report nothing at all; there the write itself has to tell.
    if usage.total and usage.free < needed_bytes:
        raise OSError(
            errno.ENOSPC,
            f"the disk has {format_bytes(usage.free)} ({usage.free} bytes) available,"
            f" {format_bytes(needed_bytes)} ({needed_bytes} bytes) are needed",
        )


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
        require_hash(path / TENSORS, read_manifest(path / MANIFEST).sha256)
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
    manifest = read_manifest(path / MANIFEST)
    tensors = read_tensors(path / TENSORS, manifest)
    run: dict[str, Any] = {field.name: getattr(manifest, field.name, None) for field in fields(Snapshot)}
    for group in GROUPS if manifest.moments else GROUPS[:1]:
        run[group] = {name: tensors[f"{group}/{name}"] for name in parameter_shapes(manifest.config)}
    return Snapshot(**run)
