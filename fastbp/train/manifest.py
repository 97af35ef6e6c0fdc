"""The manifest of a snapshot, snapshot.json: all but the tensors, the tensors' size and hash, and its own hash.

Reading it believes nothing: every field has its type, no key comes twice, numbers are numbers, and the SHA-256 over the
sorted JSON is the one that was written.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastbp.base.errors import InputError
from fastbp.base.units import format_bytes
from fastbp.data.tokenizer import Tokenizer, tokenizer_from_json
from fastbp.graph.config import PRESETS, DecoderConfig
from fastbp.graph.decoder import ITEMSIZE

MANIFEST, TENSORS = "snapshot.json", "tensors.safetensors"
FORMAT, VERSION = "fastbp snapshot", 1
LARGEST_MANIFEST_BYTES = 1 << 26
"""A tokenizer of all of Unicode takes 13 MB; whatever is longer is no manifest."""

_FIELDS: dict[str, type] = {
    "format": str, "version": int, "update": int, "config": dict, "tokenizer": dict, "tokenizer_fingerprint": str,
    "dtype": str, "moments": bool, "tensors": dict, "settings": dict, "metrics": dict, "sha256": str,
}  # fmt: skip
_TENSORS_FIELDS: dict[str, type] = {"file": str, "bytes": int, "sha256": str}


@dataclass(frozen=True)
class Manifest:
    """What snapshot.json says. `size_bytes` and `sha256` are those of the tensors' file."""

    config: DecoderConfig
    tokenizer: Tokenizer
    update: int
    settings: dict[str, Any]
    metrics: dict[str, Any]
    dtype: str
    moments: bool
    size_bytes: int
    sha256: str

    def to_bytes(self) -> bytes:
        """The file's text. Metrics that are not finite become null; InputError for what JSON cannot hold."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            "update": self.update,
            "config": self.config.to_json(),
            "tokenizer": self.tokenizer.to_json(),
            "tokenizer_fingerprint": self.tokenizer.fingerprint(),
            "dtype": self.dtype,
            "moments": self.moments,
            "tensors": {"file": TENSORS, "bytes": self.size_bytes, "sha256": self.sha256},
            "settings": self.settings,
            "metrics": _measured(self.metrics),
        }
        try:
            # Read back, since a dictionary can have keys that are different in Python and equal in JSON.
            content = parse_json(json.dumps(content, allow_nan=False).encode(), MANIFEST)
        except (TypeError, ValueError, RecursionError, InputError) as error:
            raise InputError(f"settings and metrics cannot be saved as JSON: {error}") from error
        return json.dumps(content | {"sha256": _hash(content)}, indent=1).encode() + b"\n"


def read_manifest(path: Path) -> Manifest:
    """The manifest in the file `path`. Raises InputError for anything that `Manifest.to_bytes` did not write."""
    with path.open("rb") as file:
        data = file.read(LARGEST_MANIFEST_BYTES + 1)
    if len(data) > LARGEST_MANIFEST_BYTES:
        raise InputError(f"{MANIFEST} is over {format_bytes(LARGEST_MANIFEST_BYTES)}")
    values = parse_json(data, MANIFEST)
    if values.get("format") != FORMAT:
        raise InputError(f"{MANIFEST} is not that of a {FORMAT}")
    if values.get("version") != VERSION:
        raise InputError(f"it has format version {values.get('version')!r:.40}, this fastbp reads {VERSION}")
    _require_fields(values, _FIELDS)
    declared = values.pop("sha256")
    if _hash(values) != declared:
        raise InputError(f"{MANIFEST} was changed after it was written: it does not have its hash")
    if values["dtype"] not in ITEMSIZE:
        raise InputError(f"{MANIFEST} has the dtype {values['dtype']!r:.40}: known are {', '.join(ITEMSIZE)}")
    _require_fields(values["tensors"], _TENSORS_FIELDS)
    return Manifest(
        config=_config(values["config"]),
        tokenizer=_tokenizer(values["tokenizer"], values["tokenizer_fingerprint"]),
        size_bytes=values["tensors"]["bytes"],
        sha256=values["tensors"]["sha256"],
        **{name: values[name] for name in ("update", "settings", "metrics", "dtype", "moments")},
    )


def parse_json(data: bytes, name: str) -> dict[str, Any]:
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


def _require_fields(values: dict[str, Any], kinds: dict[str, type]) -> None:
    wrong = sorted(values.keys() ^ kinds.keys()) or [
        name for name, kind in kinds.items() if type(values[name]) is not kind
    ]
    if wrong:
        raise InputError(f"{MANIFEST} has a missing, unknown or mistyped field {wrong[0]!r:.40}")


def _config(values: dict[str, Any]) -> DecoderConfig:
    for name, example in PRESETS["seed"].to_json().items():
        kinds = (int, float) if isinstance(example, float) else (type(example),)
        if name in values and type(values[name]) not in kinds:
            raise InputError(f"its configuration has {name} {values[name]!r:.40}")
    return DecoderConfig.from_json(values)


def _tokenizer(values: dict[str, Any], fingerprint: str) -> Tokenizer:
    tokenizer = tokenizer_from_json(values)
    if tokenizer.fingerprint() != fingerprint:
        raise InputError("its tokenizer is not the one that it was trained with: their fingerprints differ")
    return tokenizer


def _measured(value: Any) -> Any:
    """`value` with None for every float that JSON cannot write."""
    if isinstance(value, dict):
        return {key: _measured(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_measured(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _hash(content: dict[str, Any]) -> str:
    """SHA-256 of the JSON form with sorted keys and no spaces."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
