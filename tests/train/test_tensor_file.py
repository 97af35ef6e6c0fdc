"""The tensors' file: what is written comes back, and no damaged or forged file is read."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from safetensors import SafetensorError

from fastbp.base.errors import InputError, NonFinite
from fastbp.data.tokenizer import CharTokenizer
from fastbp.graph.config import PRESETS, DecoderConfig
from fastbp.train import tensor_file
from fastbp.train.manifest import TENSORS, Manifest
from fastbp.train.tensor_file import (
    Array,
    fitting_tensors,
    largest_bytes,
    read_tensors,
    require_hash,
    tensor_shapes,
    write_tensors,
)

CONFIG = DecoderConfig(2, 4, 2, 6, 5, 7)


def tensors(dtype: str = "float32", moments: bool = True) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in tensor_shapes(CONFIG, moments).items()}


def manifest_of(path: Path, **changes: Any) -> Manifest:
    """The manifest that vouches for the file `path`, whatever is in it."""
    data = path.read_bytes()
    tokenizer, sha256 = CharTokenizer.from_text("ab"), hashlib.sha256(data).hexdigest()
    return replace(Manifest(CONFIG, tokenizer, 200, {}, {}, "float32", True, len(data), sha256), **changes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_tensors(tmp_path / TENSORS, tensors())
    return tmp_path / TENSORS


def refused(path: Path, manifest: Manifest) -> str:
    """The one line with which the file is refused."""
    with pytest.raises(InputError) as caught:
        read_tensors(path, manifest)
    assert len(str(caught.value)) < 500
    return str(caught.value)


def forge_header(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


# --- what is written comes back


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("moments", [True, False])
def test_what_is_written_comes_back(tmp_path: Path, dtype: str, moments: bool) -> None:
    path, written = tmp_path / TENSORS, tensors(dtype, moments)
    size, sha256 = write_tensors(path, written)
    manifest = manifest_of(path, dtype=dtype, moments=moments)
    assert (size, sha256) == (manifest.size_bytes, manifest.sha256)
    found = read_tensors(path, manifest)
    assert list(found) == list(tensor_shapes(CONFIG, moments))
    for name, array in found.items():
        np.testing.assert_array_equal(array, written[name], strict=True)
        assert array.flags.c_contiguous
        assert array.flags.writeable
    assert os.listdir(tmp_path) == [TENSORS]


@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, blocks=50), PRESETS["seed"]])
def test_the_size_is_bounded_before_and_the_bound_is_near(tmp_path: Path, config: DecoderConfig) -> None:
    arrays = {name: np.zeros(shape, np.float32) for name, shape in tensor_shapes(config, True).items()}
    size, _ = write_tensors(tmp_path / TENSORS, arrays)
    assert size < largest_bytes(config, True, "float32") < size + 200 * len(arrays)
    assert (
        len(f'"":{{"dtype":"F64","shape":[{2**64 - 1},{2**64 - 1}],"data_offsets":[{2**64 - 1},{2**64 - 1}]}},')
        <= tensor_file._LONGEST_ENTRY_BYTES
    )


def test_what_cannot_be_written_as_it_lies_is_made_to_fit(tmp_path: Path) -> None:
    odd = tensors(moments=False)
    odd["parameters/wte"] = np.asfortranarray(odd["parameters/wte"])
    odd["parameters/wpe"] = odd["parameters/wpe"][::-1]
    odd["parameters/blocks.0.attn.wq"] = odd["parameters/blocks.0.attn.wq"].T
    for given in (odd, {name: array.astype(">f4") for name, array in odd.items()}):
        path = tmp_path / TENSORS
        write_tensors(path, fitting_tensors(given, CONFIG, moments=False))
        for found in (read_tensors(path, manifest_of(path, moments=False)), safetensors.numpy.load_file(path)):
            assert set(found) == set(odd)
            for name, array in odd.items():
                np.testing.assert_array_equal(found[name], array, strict=True)
        path.unlink()


def test_the_mode_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_tensors(tmp_path / TENSORS, tensors())
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / TENSORS).stat().st_mode) == 0o640


def test_a_file_that_is_there_is_not_written_over(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        write_tensors(path, {name: array + 1 for name, array in tensors().items()})
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("message", "kind", "text"),
    [
        (f"I/O error: whatever (os error {errno.ENOSPC})", OSError, "No space left on device"),
        ("InvalidTensorView", InputError, f"{TENSORS}: InvalidTensorView"),
    ],
)
def test_an_error_of_the_library_is_the_systems_or_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str, kind: type[Exception], text: str
) -> None:
    def fail(*_: Any) -> None:
        raise SafetensorError(message)

    monkeypatch.setattr(tensor_file, "save_file", fail)
    with pytest.raises(kind, match=text) as caught:
        write_tensors(tmp_path / TENSORS, tensors())
    assert getattr(caught.value, "errno", errno.ENOSPC) == errno.ENOSPC


@pytest.mark.parametrize(
    ("name", "value", "parts"),
    [
        ("parameters/wte", None, ["parameters/wte", "missing"]),
        ("second_moments/wpe", None, ["second_moments/wpe", "missing"]),
        ("parameters/blocks.2.ln1.bias", lambda _: np.ones(4, np.float32), ["blocks.2.ln1.bias", "unknown"]),
        ("first_moments/wte", lambda a: a.T, ["first_moments/wte", "(4, 7)", "(7, 4)"]),
        ("parameters/wpe", lambda a: a.astype("f8"), ["parameters/wpe", "float64"]),
        ("parameters/wpe", lambda a: a.astype("i4"), ["parameters/wpe", "int32"]),
    ],
)
def test_tensors_that_do_not_fit_are_refused(name: str, value: Any, parts: list[str]) -> None:
    given = tensors()
    array = given.pop(name, None)
    if value is not None:
        given[name] = value(array)
    with pytest.raises(InputError) as caught:
        fitting_tensors(given, CONFIG, moments=True)
    for part in parts:
        assert part in str(caught.value)


def test_half_precision_is_refused() -> None:
    with pytest.raises(InputError, match="float16"):
        fitting_tensors(tensors("float16"), CONFIG, moments=True)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused_by_name(value: float) -> None:
    given = tensors()
    given["first_moments/blocks.1.attn.wo"][1, 2] = given["first_moments/blocks.1.attn.wo"][3, 0] = value
    with pytest.raises(NonFinite) as caught:
        fitting_tensors(given, CONFIG, moments=True)
    for part in ("first_moments/blocks.1.attn.wo", str(value), "(1, 2)", "one of 2"):
        assert part in str(caught.value)


# --- reading what is damaged or forged


def test_another_length_or_another_hash_is_refused(path: Path) -> None:
    data, manifest = bytearray(path.read_bytes()), manifest_of(path)
    path.write_bytes(data[:-1])
    assert f"has {len(data) - 1} bytes, not {len(data)}" in refused(path, manifest)
    data[-1] ^= 1
    path.write_bytes(data)
    assert "does not have its hash" in refused(path, manifest)
    with pytest.raises(InputError, match="does not have its hash"):
        require_hash(path, manifest.sha256)
    data[-1] ^= 1
    path.write_bytes(data)
    require_hash(path, manifest.sha256)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"context": 6}, "parameters/wpe is ['F32', [5, 4]], its configuration has ['F32', [6, 4]]"),
        ({"context": 10**15}, "parameters/wpe is"),
        ({"blocks": 3}, "tensor first_moments/blocks.2.attn.bk is missing"),
        ({"attention_bias": False}, "unknown"),
        ({"blocks": 10**12}, "too few for a decoder of its configuration"),
        ({"width": 2 * 10**9}, "too few for a decoder of its configuration"),
        ({"vocab": 10**12}, "too few for a decoder of its configuration"),
        ({"feed_forward": 10**30}, "too few for a decoder of its configuration"),
    ],
)
def test_a_file_of_another_configuration_is_refused(path: Path, config: dict[str, Any], message: str) -> None:
    assert message in refused(path, manifest_of(path, config=replace(CONFIG, **config)))


def test_a_file_of_another_dtype_or_without_moments_is_refused(path: Path) -> None:
    message = refused(path, manifest_of(path, dtype="float64"))
    assert "parameters/wte is ['F32', [7, 4]], its configuration has ['F64', [7, 4]]" in message
    assert "tensor first_moments/" in refused(path, manifest_of(path, moments=False))


FIRST = "first_moments/blocks.0.attn.bk"
"""The library sorts by name."""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda h: h["parameters/wte"]["shape"].reverse(),
            "tensor parameters/wte is ['F32', [4, 7]], its configuration has ['F32', [7, 4]]",
        ),
        (lambda h: h["parameters/wte"].update(dtype="I32"), "tensor parameters/wte is ['I32', [7, 4]]"),
        (lambda h: h["parameters/wte"].update(shape=[10**6, 4]), "invalid shape"),
        (lambda h: h["parameters/wte"].update(shape=[2**63, 2**63]), "overflow"),
        (lambda h: h["parameters/wte"].update(dtype="BF16"), "invalid shape, data type"),
        (lambda h: h["parameters/wte"].pop("shape"), "missing field `shape`"),
        (lambda h: h.update({"parameters/wte": 3}), "invalid JSON in header"),
        (lambda h: h.pop("second_moments/final.ln.bias"), "tensor second_moments/final.ln.bias is missing"),
        (lambda h: h.update(x=h["parameters/wte"]), "tensor x is unknown"),
        (lambda h: h.update(__metadata__={"format": "pt"}), "tensor __metadata__ is unknown"),
        (lambda h: h["parameters/wpe"].update(data_offsets=h[FIRST]["data_offsets"]), "invalid"),
    ],
)
def test_a_forged_header_is_refused(path: Path, change: Callable[[dict[str, Any]], Any], message: str) -> None:
    forge_header(path, lambda header: None)
    read_tensors(path, manifest_of(path))
    forge_header(path, change)
    assert message in refused(path, manifest_of(path))


def test_a_key_that_comes_twice_in_the_header_is_refused(path: Path) -> None:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    text = b'{"parameters/wpe":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},' + data[9 : 8 + length].rstrip()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    assert "key 'parameters/wpe' comes twice" in refused(path, manifest_of(path))


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 2**40, 30_000])
def test_a_header_that_is_longer_than_explained_is_not_read(path: Path, length: int) -> None:
    path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:] + b" " * 30_000)
    assert f"a header of {length} bytes, its configuration explains" in refused(path, manifest_of(path))


@pytest.mark.parametrize("data", [b"", b"short", b"\0" * 8000, b"\x80\x04" + b"pickle" * 1000])
def test_what_is_no_safetensors_file_is_refused(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    assert TENSORS in refused(path, manifest_of(path))


def test_a_file_with_more_or_less_than_its_tensors_is_refused(path: Path) -> None:
    data = path.read_bytes()
    for changed in (data[:-8], data + b"\0" * 8):
        path.write_bytes(changed)
        assert "file not fully covered" in refused(path, manifest_of(path))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_file_with_values_that_are_not_finite_is_refused_by_name(path: Path, value: float) -> None:
    path.write_bytes(path.read_bytes()[:-4] + struct.pack("<f", value))
    with pytest.raises(NonFinite, match=rf"tensor second_moments/wte is {value} at \(6, 3\)"):
        read_tensors(path, manifest_of(path))
