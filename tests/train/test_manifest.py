"""The manifest: what is written comes back, and whatever is damaged or forged is refused in one line."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastbp.base.errors import InputError
from fastbp.data.tokenizer import CharTokenizer
from fastbp.graph.config import DecoderConfig
from fastbp.train import manifest as module
from fastbp.train.manifest import MANIFEST, TENSORS, Manifest, parse_json, read_manifest

CONFIG = DecoderConfig(2, 4, 2, 6, 5, 7)
TOKENIZER = CharTokenizer.from_text("abc é\n")

Content = dict[str, Any]


def make(settings: Content | None = None, metrics: Content | None = None) -> Manifest:
    settings = {"lr": 1e-3, "text": ["a.txt"], "keep": None} if settings is None else settings
    return Manifest(CONFIG, TOKENIZER, 200, settings, metrics or {"valid_loss": 1.88}, "float32", True, 1234, "ab" * 32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / MANIFEST).write_bytes(make().to_bytes())
    return tmp_path / MANIFEST


def refused(path: Path) -> str:
    """The one line with which the manifest is refused."""
    with pytest.raises(InputError) as caught:
        read_manifest(path)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert len(message) < 500
    return message


def forge(path: Path, change: Callable[[Content], Any]) -> None:
    """Change the manifest and give it the hash that belongs to it, as someone would who knows the format."""
    content = json.loads(path.read_text())
    change(content)
    del content["sha256"]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps(content | {"sha256": hashlib.sha256(text.encode()).hexdigest()}))


def test_what_is_written_comes_back(path: Path) -> None:
    assert read_manifest(path) == make()


def test_a_manifest_from_before_there_was_dropout_is_read(path: Path) -> None:
    forge(path, lambda content: content["config"].pop("dropout"))
    assert read_manifest(path) == make()


def test_the_text_is_json_in_ascii_that_says_what_there_is(path: Path) -> None:
    content = json.loads(path.read_text("ascii"))
    assert content["version"] == 1
    assert content["config"] == CONFIG.to_json()
    assert content["tokenizer"] == TOKENIZER.to_json()
    assert content["tokenizer_fingerprint"] == TOKENIZER.fingerprint()
    assert content["tensors"] == {"file": TENSORS, "bytes": 1234, "sha256": "ab" * 32}


def test_metrics_that_were_not_measured_come_back_as_none(path: Path) -> None:
    metrics = {"train_loss": math.nan, "best": [math.inf, {"x": -math.inf}, 1.5], "n": 3}
    path.write_bytes(make(metrics=metrics).to_bytes())
    assert read_manifest(path).metrics == {"train_loss": None, "best": [None, {"x": None}, 1.5], "n": 3}


@pytest.mark.parametrize(
    "settings", [{"lr": math.nan}, {"path": Path("x")}, {"x": np.float32(1)}, {1: "a", "1": "b"}, {(1, 2): 3}]
)
def test_settings_that_json_cannot_hold_are_refused(settings: Any) -> None:
    with pytest.raises(InputError, match="settings and metrics cannot be saved as JSON"):
        make(settings).to_bytes()


def test_text_that_is_no_unicode_survives_in_settings(path: Path) -> None:
    settings = {"text": [os.fsdecode(b"\xff.txt"), "é\u2028\0"]}
    path.write_bytes(make(settings).to_bytes())
    assert read_manifest(path).settings == settings


def test_every_length_but_its_own_is_refused(path: Path) -> None:
    text = path.read_bytes()
    for length in range(0, len(text) - 1, 13):
        path.write_bytes(text[:length])
        refused(path)


def test_a_flipped_bit_never_gives_another_manifest(path: Path) -> None:
    data = bytearray(path.read_bytes())
    refusals = 0
    for place in range(len(data)):
        data[place] ^= 1 << place % 8
        path.write_bytes(data)
        try:
            assert read_manifest(path) == make()  # 1e-05 and 1E-05 are the same
        except InputError:
            refusals += 1
        data[place] ^= 1 << place % 8
    assert refusals > 0.99 * len(data)


def test_a_manifest_that_was_edited_is_refused(path: Path) -> None:
    text = path.read_text()
    assert '"lr": 0.001' in text
    path.write_text(text.replace('"lr": 0.001', '"lr": 0.002'))
    assert "snapshot.json was changed after it was written" in refused(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "snapshot.json: not JSON"),
        (b"\xff\xfe", "snapshot.json: not JSON"),
        (b"[1, 2]", "not an object"),
        (b"[" * 100_000, "snapshot.json: not JSON"),
        (b'{"a": ' * 100_000, "snapshot.json: not JSON"),
        (b'{"a": NaN}', "NaN is not a number"),
        (b'{"a": -Infinity}', "-Infinity is not a number"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "key 'c' comes twice"),
        (b'{"x": ' + b"9" * 10_000 + b"}", "snapshot.json: not JSON"),
        (b'{"format": "pt"}', "not that of a fastbp snapshot"),
        (b'{"format": "fastbp snapshot", "version": 2}', "format version 2, this fastbp reads 1"),
        (b'{"format": "fastbp snapshot", "version": 1}', "missing, unknown or mistyped field 'config'"),
    ],
)
def test_a_manifest_that_is_none_is_refused(path: Path, content: bytes, message: str) -> None:
    path.write_bytes(content)
    assert message in refused(path)


def test_a_manifest_that_is_too_long_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST_MANIFEST_BYTES", 100)
    assert "snapshot.json is over 100 B" in refused(path)


def test_keys_that_come_twice_are_refused(path: Path) -> None:
    text = path.read_text()
    path.write_text(text.replace('"update": 200', '"update": 100, "update": 200'))
    assert "key 'update' comes twice" in refused(path)


def test_an_error_in_json_names_its_file() -> None:
    assert parse_json(b'{"a": [1]}', "x") == {"a": [1]}
    with pytest.raises(InputError, match=r"^header: not JSON"):
        parse_json(b"{", "header")


def put(**values: Any) -> Callable[[Content], Any]:
    return lambda content: content.update(values)


def put_config(**values: Any) -> Callable[[Content], Any]:
    return lambda content: content["config"].update(values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put(update=True), "mistyped field 'update'"),
        (put(update="200"), "mistyped field 'update'"),
        (put(settings=[]), "mistyped field 'settings'"),
        (put(extra=1), "unknown or mistyped field 'extra'"),
        (lambda content: content.pop("metrics"), "missing, unknown or mistyped field 'metrics'"),
        (put(dtype="float16"), "dtype 'float16'"),
        (put(tensors={}), "missing, unknown or mistyped field 'bytes'"),
        (lambda content: content["tensors"].update(bytes="many"), "mistyped field 'bytes'"),
        (lambda content: content["tensors"].update(sha256=None), "mistyped field 'sha256'"),
        (put(tokenizer={"kind": "char", "characters": "abcde"}), "fingerprints differ"),
        (put(tokenizer={"kind": "word"}), "unknown tokenizer 'word'"),
        (put(tokenizer_fingerprint="00"), "fingerprints differ"),
        (put_config(width=0), "width is 0"),
        (put_config(width="4"), "width '4'"),
        (put_config(width=4.0), "width 4.0"),
        (put_config(heads=3), "not divisible by 3 heads"),
        (put_config(blocks=True), "blocks True"),
        (put_config(attention_bias="no"), "attention_bias 'no'"),
        (put_config(attention_bias=0), "attention_bias 0"),
        (put_config(positions=["learned"]), "positions ['learned']"),
        (put_config(positions="rotary"), "'rotary'"),
        (put_config(eps="tiny"), "eps 'tiny'"),
        (put_config(droput=0.1), "unknown field 'droput'"),
        (put_config(dropout="half"), "dropout 'half'"),
        (put_config(dropout=1.0), "dropout is 1.0"),
        (lambda content: content["config"].pop("eps"), "field 'eps'"),
    ],
)
def test_a_forged_manifest_is_refused(path: Path, change: Callable[[Content], Any], message: str) -> None:
    forge(path, lambda content: None)
    assert read_manifest(path) == make()
    forge(path, change)
    assert message in refused(path)
