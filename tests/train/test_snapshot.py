"""Snapshots: what is saved comes back, and whatever is damaged or forged is refused in one line."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastbp.base.errors import FastbpError, InputError, NonFinite
from fastbp.data.tokenizer import ByteTokenizer, CharTokenizer
from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import parameter_shapes
from fastbp.memory.flat import Flat, FlatShapes
from fastbp.train import snapshot as module
from fastbp.train.snapshot import (
    MANIFEST,
    TENSORS,
    Snapshot,
    list_snapshots,
    load_snapshot,
    require_same_shape,
    require_same_tokenizer,
    rotate,
    save_snapshot,
)

CONFIG = DecoderConfig(2, 4, 2, 6, 5, 7)
TOKENIZER = CharTokenizer.from_text("abc é\n")
GROUPS = ("parameters", "first_moments", "second_moments")

Manifest = dict[str, Any]


def tensors(seed: int = 0, dtype: str = "float32", config: DecoderConfig = CONFIG) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in parameter_shapes(config).items()}


def make(update: int = 200, seed: int = 0, **changes: Any) -> Snapshot:
    snapshot = Snapshot(
        CONFIG, TOKENIZER, update, {"lr": 1e-3, "text": ["a.txt"], "keep": None}, {"valid_loss": 1.88},
        tensors(seed), tensors(seed + 1), tensors(seed + 2),
    )  # fmt: skip
    return replace(snapshot, **changes)


def assert_same(found: Snapshot, expected: Snapshot) -> None:
    for name in ("config", "tokenizer", "update", "settings", "metrics"):
        assert getattr(found, name) == getattr(expected, name)
    for group in GROUPS:
        there, here = getattr(found, group), getattr(expected, group)
        if here is None:
            assert there is None
            continue
        assert list(there) == list(parameter_shapes(expected.config))
        for name, values in here.items():
            assert there[name].dtype == values.dtype.newbyteorder("=")
            assert there[name].flags.c_contiguous
            assert there[name].flags.writeable
            np.testing.assert_array_equal(there[name], values)


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def forge(path: Path, change: Callable[[Manifest], Any]) -> None:
    """Change the manifest and give it the hash that belongs to it, as someone would who knows the format."""
    manifest = json.loads((path / MANIFEST).read_text())
    change(manifest)
    del manifest["sha256"]
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    (path / MANIFEST).write_text(json.dumps(manifest | {"sha256": hashlib.sha256(text.encode()).hexdigest()}))


def forge_tensors(path: Path, data: bytes) -> None:
    """Put other tensors in, with a manifest that vouches for them."""
    (path / TENSORS).write_bytes(data)
    there = {"file": TENSORS, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    forge(path, lambda manifest: manifest.update(tensors=there))


# --- what is saved comes back


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("moments", [True, False])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
@pytest.mark.parametrize("biases", [True, False])
def test_what_is_saved_comes_back(tmp_path: Path, dtype: str, moments: bool, positions: str, biases: bool) -> None:
    config = replace(CONFIG, positions=positions, attention_bias=biases, feed_forward_bias=biases, vocab=256, eps=1)
    groups = [tensors(seed, dtype, config) for seed in range(3)]
    saved = Snapshot(config, ByteTokenizer(), 0, {}, {"losses": [1.5, {"x": -2}]}, *groups[: 3 if moments else 1])
    path = save_snapshot(tmp_path / "deep" / "run", saved)
    assert path == tmp_path / "deep" / "run" / "snapshot-00000000"
    assert sorted(os.listdir(path)) == [MANIFEST, TENSORS]
    assert os.listdir(path.parent) == [path.name]
    assert_same(load_snapshot(path), saved)
    assert_same(load_snapshot(path.parent), saved)


def test_the_views_of_a_flat_buffer_come_back(tmp_path: Path) -> None:
    flats = [Flat(FlatShapes(parameter_shapes(CONFIG)), "float32") for _ in GROUPS]
    for k, flat in enumerate(flats):
        flat.flat[:] = np.arange(flat.flat.size) * (k + 1)
    saved = make(parameters=flats[0], first_moments=flats[1], second_moments=flats[2])
    assert_same(load_snapshot(save_snapshot(tmp_path, saved)), saved)


def test_arrays_in_any_order_and_layout_are_saved_as_they_read(tmp_path: Path) -> None:
    whole = tensors()
    odd = dict(reversed(whole.items()))
    odd["wte"] = np.asfortranarray(odd["wte"])
    odd["wpe"] = odd["wpe"][::-1]
    odd["blocks.0.mlp.w1"] = np.repeat(odd["blocks.0.mlp.w1"], 2, axis=1)[:, ::2]
    odd["blocks.0.attn.wq"] = odd["blocks.0.attn.wq"].T
    assert not any(odd[name].flags.c_contiguous for name in ("wte", "wpe", "blocks.0.mlp.w1", "blocks.0.attn.wq"))
    saved = make(parameters=odd, first_moments=None, second_moments=None)
    assert_same(load_snapshot(save_snapshot(tmp_path, saved)), saved)
    swapped = make(
        **{group: {name: a.astype(">f4") for name, a in tensors(k).items()} for k, group in enumerate(GROUPS)}
    )
    assert_same(load_snapshot(save_snapshot(tmp_path, swapped)), make())


def test_modes_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        path = save_snapshot(tmp_path, make())
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o750
    assert [stat.S_IMODE((path / name).stat().st_mode) for name in (MANIFEST, TENSORS)] == [0o640, 0o640]


@pytest.mark.parametrize(
    "settings", [{"lr": math.nan}, {"path": Path("x")}, {"x": np.float32(1)}, {1: "a", "1": "b"}, {(1, 2): 3}]
)
def test_settings_that_json_cannot_hold_are_refused(tmp_path: Path, settings: dict[Any, Any]) -> None:
    with pytest.raises(InputError, match="settings and metrics cannot be saved as JSON"):
        save_snapshot(tmp_path, make(settings=settings))
    assert os.listdir(tmp_path) == []


# --- what is not saved


def broken(group: str, name: str, value: Any) -> Snapshot:
    arrays = {**getattr(make(), group)}
    if value is None:
        del arrays[name]
    else:
        arrays[name] = value(arrays[name]) if callable(value) else value
    return make(**{group: arrays})


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused_by_name(tmp_path: Path, group: str, value: float) -> None:
    def spoil(array: np.ndarray) -> np.ndarray:
        spoilt = array.copy()
        spoilt[1, 2] = spoilt[3, 0] = value
        return spoilt

    with pytest.raises(NonFinite) as caught:
        save_snapshot(tmp_path, broken(group, "blocks.1.attn.wo", spoil))
    for part in (f"{group}/blocks.1.attn.wo", str(value), "(1, 2)", "one of 2"):
        assert part in str(caught.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"update": -1}, "update is -1"),
        ({"first_moments": None}, "both moments or none"),
        ({"second_moments": None}, "both moments or none"),
        ({"tokenizer": ByteTokenizer()}, "256 ids, the decoder only 7"),
    ],
)
def test_a_snapshot_that_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make(**changes)


# --- saving survives


def test_files_are_on_the_disk_before_the_folder_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, rename = os.fsync, os.rename

    def noting_fsync(descriptor: int) -> None:
        done.append("sync " + Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def noting_rename(source: Any, target: Any) -> None:
        done.append(f"rename {Path(source).name} {Path(target).name}")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(os, "rename", noting_rename)
    new, name, old = ".snapshot-00000200.new.tmp", "snapshot-00000200", ".snapshot-00000200.old.tmp"
    written = [f"sync {TENSORS}", f"sync {MANIFEST}", f"sync {new}"]
    save_snapshot(tmp_path / "run", make())
    assert done == [f"sync {tmp_path.name}", *written, f"rename {new} {name}", "sync run"]
    done.clear()
    save_snapshot(tmp_path / "run", make())
    assert done == [*written, f"rename {name} {old}", f"rename {new} {name}", "sync run"]


def test_the_same_update_saved_again_replaces_the_first(tmp_path: Path) -> None:
    save_snapshot(tmp_path, make(100, seed=5))
    save_snapshot(tmp_path, make(seed=0))
    path = save_snapshot(tmp_path, make(seed=9))
    assert sorted(os.listdir(tmp_path)) == ["snapshot-00000100", "snapshot-00000200"]
    assert_same(load_snapshot(path), make(seed=9))


def test_a_full_disk_is_seen_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_snapshot(tmp_path, make(100))
    size = sum(file.stat().st_size for file in path.iterdir())
    usage = type(shutil.disk_usage("/"))
    free = 0
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(10**9, 10**9 - free, free))
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_tensors", lambda *_: pytest.fail("it was written after all"))
        for _ in range(2):
            with pytest.raises(InputError) as caught:
                save_snapshot(tmp_path, make())
            for part in ("snapshot-00000200", f"({free} bytes) available", "bytes) are needed", "--out"):
                assert part in str(caught.value)
            needed = int(re.findall(r"\((\d+) bytes\) are needed", str(caught.value))[0])
            free = needed - 1
    assert size < needed - module.SPARE_BYTES < size + 20_000
    assert os.listdir(tmp_path) == ["snapshot-00000100"]
    assert_same(load_snapshot(tmp_path), make(100))
    free = needed
    assert_same(load_snapshot(save_snapshot(tmp_path, make())), make())


def test_a_file_system_that_does_not_say_how_full_it_is_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type(shutil.disk_usage("/"))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(0, 0, 0))
    assert_same(load_snapshot(save_snapshot(tmp_path, make())), make())


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("function", ["fsync", "rename", "mkdir"])
@pytest.mark.parametrize("call", range(5))
def test_an_error_of_the_system_at_any_step_leaves_the_old_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool, function: str, call: int
) -> None:
    old, new = make(200 if again else 100, seed=5), make(seed=0)
    save_snapshot(tmp_path, old)
    real, calls = getattr(os, function), 0

    def failing(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call + 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments)

    monkeypatch.setattr(os, function, failing)
    try:
        save_snapshot(tmp_path, new)
    except InputError as error:
        assert "No space left on device" in str(error)
        assert "earlier snapshots are intact" in str(error)
        # The last call is the sync of the run's folder: the new snapshot has its name by then.
        expected = new if function == "fsync" and call == 3 else old
    else:
        assert calls <= call
        expected = new
    monkeypatch.undo()
    assert hidden(tmp_path) == []
    assert_same(load_snapshot(tmp_path), expected)


def test_an_interruption_cleans_up_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_snapshot(tmp_path, make(100))

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_snapshot(tmp_path, make())
    assert os.listdir(tmp_path) == ["snapshot-00000100"]


def test_a_file_in_the_place_of_the_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(InputError, match=r"run: File exists"):
        save_snapshot(tmp_path / "run", make())
    with pytest.raises(InputError, match="snapshot-00000200 was not saved"):
        save_snapshot(tmp_path / "run" / "deeper", make())


def test_the_next_save_removes_what_a_kill_left(tmp_path: Path) -> None:
    for name in (".snapshot-00000007.new.tmp", ".snapshot-00000008.gone.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / TENSORS).write_text("half")
    foreign = [".snapshot-7.new.tmp", ".snapshot-00000007.tmp", "snapshot-00000007.new.tmp", ".cache"]
    for name in foreign:
        (tmp_path / name).mkdir()
    (tmp_path / ".snapshot-00000009.new.tmp").write_text("a file")
    (tmp_path / ".snapshot-00000010.new.tmp").symlink_to(tmp_path / ".cache")
    save_snapshot(tmp_path, make())
    kept = [*foreign, ".snapshot-00000009.new.tmp", ".snapshot-00000010.new.tmp", "snapshot-00000200"]
    assert sorted(os.listdir(tmp_path)) == sorted(kept)


def test_a_snapshot_that_had_stepped_aside_still_counts_and_gets_its_name_back(tmp_path: Path) -> None:
    path = save_snapshot(tmp_path, make())
    aside = path.rename(tmp_path / ".snapshot-00000200.old.tmp")
    assert list_snapshots(tmp_path) == [aside]
    assert_same(load_snapshot(tmp_path), make())
    save_snapshot(tmp_path, make(300))
    assert [path.name for path in list_snapshots(tmp_path)] == ["snapshot-00000200", "snapshot-00000300"]
    assert_same(load_snapshot(path), make())
    assert hidden(tmp_path) == []


# --- finding and rotating


def test_snapshots_are_listed_by_number_and_nothing_else_is(tmp_path: Path) -> None:
    names = ["snapshot-99999999", "snapshot-100000000", "snapshot-00000200", "snapshot-00001000"]
    others = ["snapshot-000000200", "snapshot-200", "snapshot-0000020a", "snapshot-", "xsnapshot-00000200", "best"]
    for name in (*names, *others, "snapshot-٠٠٠٠٠٠٠١"):
        (tmp_path / name).mkdir()
    (tmp_path / "snapshot-00000300").write_text("a file")
    assert [path.name for path in list_snapshots(tmp_path)] == [names[2], names[3], names[0], names[1]]
    assert list_snapshots(tmp_path / "missing") == []


def saved_at(folder: Path, *updates: int) -> list[Path]:
    return [save_snapshot(folder, make(update)) for update in updates]


@pytest.mark.parametrize(("keep", "left"), [(1, [10000]), (2, [1000, 10000]), (3, [200, 1000, 10000]), (99, None)])
def test_rotation_keeps_the_newest_by_number(tmp_path: Path, keep: int, left: list[int] | None) -> None:
    everything = [100, 200, 1000, 10000]
    rotate(tmp_path, keep, saved_at(tmp_path, *everything)[-1])
    assert [int(path.name[9:]) for path in list_snapshots(tmp_path)] == (left or everything)
    assert hidden(tmp_path) == []


def test_rotation_never_deletes_what_was_just_written_nor_later_updates(tmp_path: Path) -> None:
    saved_at(tmp_path, 50, 1000, 2000)
    rotate(tmp_path, 1, saved_at(tmp_path, 100)[0])
    assert [int(path.name[9:]) for path in list_snapshots(tmp_path)] == [100, 1000, 2000]


def test_rotation_leaves_alone_what_is_not_a_snapshot(tmp_path: Path) -> None:
    paths = saved_at(tmp_path, 100, 200, 300)
    elsewhere = tmp_path / "elsewhere"
    shutil.move(paths[0], elsewhere)
    paths[0].symlink_to(elsewhere)
    others = ["best", "snapshot-100", "snapshot-00000100.bak"]
    for name in others:
        shutil.copytree(paths[1], tmp_path / name)
    rotate(tmp_path, 1, paths[2])
    assert sorted(os.listdir(tmp_path)) == sorted([*others, "elsewhere", "snapshot-00000100", "snapshot-00000300"])
    assert sorted(os.listdir(elsewhere)) == [MANIFEST, TENSORS]


@pytest.mark.parametrize("keep", [0, -1])
def test_rotation_to_none_is_refused(tmp_path: Path, keep: int) -> None:
    paths = saved_at(tmp_path, 100, 200)
    with pytest.raises(InputError, match=f"keep-last is {keep}"):
        rotate(tmp_path, keep, paths[1])
    assert list_snapshots(tmp_path) == paths


@pytest.mark.parametrize("name", [MANIFEST, TENSORS])
def test_rotation_deletes_nothing_when_the_new_snapshot_does_not_read_back(tmp_path: Path, name: str) -> None:
    paths = saved_at(tmp_path, 100, 200, 300)
    data = bytearray((paths[2] / name).read_bytes())
    data[-9] ^= 1
    (paths[2] / name).write_bytes(data)
    with pytest.raises(InputError, match=r"snapshot-00000300 does not read back: .*no older one was deleted"):
        rotate(tmp_path, 1, paths[2])
    (paths[2] / name).unlink()
    with pytest.raises(InputError, match=f"does not read back: {name}: No such file"):
        rotate(tmp_path, 1, paths[2])
    assert list_snapshots(tmp_path) == paths


def test_rotation_wants_a_snapshot_of_that_folder(tmp_path: Path) -> None:
    saved_at(tmp_path / "a", 100, 200)
    path = saved_at(tmp_path / "b", 200)[0]
    for wrong in (path, tmp_path / "a", tmp_path / "a" / "snapshot-00000300"):
        with pytest.raises(ValueError, match="is not a snapshot in"):
            rotate(tmp_path / "a", 1, wrong)
    assert len(list_snapshots(tmp_path / "a")) == 2


def test_an_old_snapshot_that_cannot_be_deleted_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = saved_at(tmp_path, 100, 200)

    def refuse(source: Any, target: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(source))

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(InputError, match=r"snapshot-00000100 cannot be deleted: snapshot-00000100: Permission denied"):
        rotate(tmp_path, 1, paths[1])


# --- loading what is damaged or forged


def test_what_is_no_snapshot_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for name, message in [
        ("missing", "missing is missing: give the --out folder"),
        ("file", "file is not a folder"),
        ("empty", "empty holds no snapshot"),
        ("\0", "is missing"),
    ]:
        with pytest.raises(InputError, match=message):
            load_snapshot(tmp_path / name)


def test_a_damaged_snapshot_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    paths = saved_at(tmp_path, 100, 900, 1000)
    os.truncate(paths[2] / TENSORS, 100)
    (paths[1] / MANIFEST).unlink()
    warnings: list[str] = []
    assert load_snapshot(tmp_path, warn=warnings.append).update == 100
    assert [("snapshot-00001000" in warnings[0]), ("snapshot-00000900" in warnings[1])] == [True, True]
    assert "falling back to snapshot-00000900" in warnings[0]
    with pytest.raises(InputError, match="snapshot-00001000 cannot be used"):
        load_snapshot(paths[2])
    with pytest.warns(UserWarning, match="falling back"):
        load_snapshot(tmp_path)
    (paths[0] / TENSORS).unlink()
    with pytest.raises(InputError, match=r"snapshot-00000100 cannot be used: .*No such file"):
        load_snapshot(tmp_path, warn=warnings.append)


def refused(path: Path) -> str:
    """The one line with which `path` is refused."""
    with pytest.raises(InputError) as caught:
        load_snapshot(path)
    message = str(caught.value)
    assert message.startswith(f"snapshot {path} cannot be used: ")
    assert len(message.splitlines()) == 1
    assert len(message) < 1000
    return message.removeprefix(f"snapshot {path} cannot be used: ")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return save_snapshot(tmp_path, make())


def test_every_length_but_its_own_is_refused(path: Path) -> None:
    data = (path / TENSORS).read_bytes()
    for length in [0, 1, 7, 8, 9, *range(10, len(data), 97), len(data) - 1]:
        (path / TENSORS).write_bytes(data[:length])
        assert f"has {length} bytes, not {len(data)}" in refused(path)
    (path / TENSORS).write_bytes(data + b"\0")
    assert f"has {len(data) + 1} bytes" in refused(path)
    text = (path / MANIFEST).read_bytes()
    (path / TENSORS).write_bytes(data)
    for length in range(0, len(text) - 1, 13):
        (path / MANIFEST).write_bytes(text[:length])
        refused(path)


def test_every_flipped_bit_of_the_tensors_is_refused(path: Path) -> None:
    data = bytearray((path / TENSORS).read_bytes())
    for place in range(0, len(data), 11):
        data[place] ^= 1 << place % 8
        (path / TENSORS).write_bytes(data)
        refused(path)
        data[place] ^= 1 << place % 8
    (path / TENSORS).write_bytes(data)
    assert_same(load_snapshot(path), make())


def test_tensors_of_another_snapshot_are_refused(path: Path) -> None:
    other = save_snapshot(path.parent, make(300, seed=9))
    shutil.copy(other / TENSORS, path / TENSORS)
    assert "does not have its hash" in refused(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"update": -1}, "update is -1"),
        ({"moments": False}, "tensor first_moments/"),
        ({"tokenizer": {"kind": "byte"}, "tokenizer_fingerprint": ByteTokenizer().fingerprint()}, "256 ids"),
        ({"tokenizer": {"kind": "char", "characters": [0]}}, ""),
    ],
)
def test_a_forged_manifest_is_refused(path: Path, change: Manifest, message: str) -> None:
    forge(path, lambda manifest: None)
    assert_same(load_snapshot(path), make())
    forge(path, lambda manifest: manifest.update(change))
    assert message in refused(path)


@pytest.mark.parametrize("data", [b"", b"short", b"\x80\x04" + b"pickle" * 1000])
def test_forged_tensors_are_refused(path: Path, data: bytes) -> None:
    forge_tensors(path, data)
    assert TENSORS in refused(path)


def test_forged_values_that_are_not_finite_are_refused(path: Path) -> None:
    forge_tensors(path, (path / TENSORS).read_bytes()[:-4] + struct.pack("<f", np.nan))
    assert "tensor second_moments/wte is nan at (6, 3)" in refused(path)


def test_the_files_may_not_be_folders(path: Path) -> None:
    (path / TENSORS).unlink()
    (path / TENSORS).mkdir()
    assert f"{TENSORS}: Is a directory" in refused(path)


# --- fitting a snapshot to a run


@pytest.mark.parametrize(
    "change",
    [
        {"blocks": 3}, {"width": 8}, {"heads": 4}, {"feed_forward": 8}, {"context": 6}, {"vocab": 8},
        {"positions": "sinusoidal"}, {"attention_bias": False}, {"feed_forward_bias": False}, {"eps": 1e-6},
        {"gelu": "erf"}, {"scaled_init": False},
    ],
)  # fmt: skip
def test_another_shape_is_named_by_its_first_field(change: dict[str, Any]) -> None:
    require_same_shape(make(), CONFIG)
    ((name, value),) = change.items()
    with pytest.raises(FastbpError) as caught:
        require_same_shape(make(), replace(CONFIG, **change))
    assert f"{name} is {getattr(CONFIG, name)} in the snapshot of update 200 and {value} here" in str(caught.value)


def test_another_tokenizer_is_refused() -> None:
    require_same_tokenizer(make(), CharTokenizer.from_text("abc é\n"))
    other = CharTokenizer.from_text("abc è\n")
    with pytest.raises(InputError, match=other.fingerprint()[:12]):
        require_same_tokenizer(make(), other)
