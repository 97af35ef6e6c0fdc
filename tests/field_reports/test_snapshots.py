"""What went wrong for others when they saved and resumed, each with its public report."""

from __future__ import annotations

import errno
import os
import pickle
import re
import shutil
import stat
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import fastbp
from fastbp.base.errors import FastbpError, InputError, NonFinite
from fastbp.data.tokenizer import ByteTokenizer
from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import parameter_shapes
from fastbp.train.snapshot import Snapshot, list_snapshots, load_snapshot, rotate, save_snapshot

PACKAGE = Path(fastbp.__file__).parent
CONFIG = DecoderConfig(1, 8, 2, 16, 4, 256)

PREAMBLE = """
import errno, os, random, signal, sys, time
from pathlib import Path
import numpy as np
from fastbp.base.errors import InputError
from fastbp.data.tokenizer import ByteTokenizer
from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import parameter_shapes
from fastbp.train.snapshot import Snapshot, list_snapshots, load_snapshot, rotate, save_snapshot

folder = Path(sys.argv[1])
config = DecoderConfig(1, 32, 2, 64, 16, 256)

def make(update, value=None):
    value = update if value is None else value
    groups = [
        {name: np.full(shape, value, np.float32) for name, shape in parameter_shapes(config).items()} for _ in range(3)
    ]
    return Snapshot(config, ByteTokenizer(), update, {}, {}, *groups)

def whole():
    "The newest snapshot's update and value; any damage, and any warning of it, ends the script."
    snapshot = load_snapshot(folder, warn=sys.exit)
    values = {
        float(array.flat[k])
        for group in (snapshot.parameters, snapshot.first_moments, snapshot.second_moments)
        for array in group.values() for k in range(array.size)
    }
    assert len(values) == 1, values
    return snapshot.update, values.pop()
"""

KILLED_AT_RANDOM = """
rounds, random_state, start = int(sys.argv[2]), random.Random(int(sys.argv[3])), 0
for _ in range(rounds):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        update = start
        while True:
            update += 1
            rotate(folder, 2, save_snapshot(folder, make(update)))
            os.write(write, update.to_bytes(8, "little"))
    os.close(write)
    reported = os.read(read, 8)
    time.sleep(random_state.uniform(0, 0.03))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(read, 8):
        reported = more
    os.close(read)
    last = int.from_bytes(reported, "little")
    start, value = whole()
    assert start == value and last <= start <= last + 1, (last, start, value)
    print("round", flush=True)
save_snapshot(folder, make(start + 1))
assert not [name for name in os.listdir(folder) if name.startswith(".")]
"""

KILLED_AT_EVERY_CALL = """
old, new = (1, 1), (int(sys.argv[2]), 9)
results = []
for call in range(1000):
    save_snapshot(folder, make(*old))
    rotate(folder, 1, save_snapshot(folder, make(0, 5)))
    child = os.fork()
    if child == 0:
        seen = 0
        def kill_at(event, arguments):
            global seen
            if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"):
                seen += 1
                if seen > call:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(kill_at)
        rotate(folder, 1, save_snapshot(folder, make(*new)))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    results.append(whole())
    for path in list_snapshots(folder):
        load_snapshot(path)
    save_snapshot(folder, make(0, 5))
    assert whole() == results[-1], "the next save changed what the killed one left"
    assert not [name for name in os.listdir(folder) if name.startswith(".")]
    if status == 0:
        break
    for path in list_snapshots(folder):
        os.system(f"rm -r '{path}'")
changes = [k for k in range(1, len(results)) if results[k] != results[k - 1]]
assert results[0] == old and results[-1] == new and len(changes) == 1, results
print(len(results), changes)
"""

FULL_DISK = """
save_snapshot(folder, make(1))
free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
size = sum(file.stat().st_size for file in (folder / "snapshot-00000001").iterdir())
(folder / "ballast").write_bytes(b"x" * (free - size // 2))

def refused():
    try:
        save_snapshot(folder, make(2))
    except InputError as error:
        print(error)
    else:
        sys.exit("it was saved after all")
    assert sorted(os.listdir(folder)) == ["ballast", "snapshot-00000001"], os.listdir(folder)
    assert whole() == (1, 1)

refused()
import shutil
from types import SimpleNamespace
shutil.disk_usage = lambda folder: SimpleNamespace(total=10**12, used=0, free=10**12)
refused()
(folder / "ballast").unlink()
save_snapshot(folder, make(2))
assert whole() == (2, 2)
"""


def script(text: str, *arguments: str, command: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    # One thread of BLAS: a process with several must not fork.
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent), "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, sys.executable, "-c", PREAMBLE + text, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )


def tensors(value: float = 1.0) -> dict[str, np.ndarray]:
    return {name: np.full(shape, value, np.float32) for name, shape in parameter_shapes(CONFIG).items()}


def make(update: int) -> Snapshot:
    return Snapshot(CONFIG, ByteTokenizer(), update, {}, {}, tensors(update), tensors(), tensors())


@pytest.mark.parametrize("rounds", [10, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_at_any_moment_of_a_save(tmp_path: Path, rounds: int) -> None:
    """pytorch-lightning #688 and its return #19970: a kill during the save, then "unexpected EOF" for ever."""
    done = script(KILLED_AT_RANDOM, str(tmp_path), str(rounds), "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["round"] * rounds


@pytest.mark.parametrize("update", [1, 2], ids=["the same update again", "the next update"])
def test_killed_before_every_change_of_the_folder(tmp_path: Path, update: int) -> None:
    """The same, and CanReader/FastNN #13, without chance: before each call that opens, makes, renames or removes."""
    done = script(KILLED_AT_EVERY_CALL, str(tmp_path), str(update))
    assert (done.returncode, done.stderr) == (0, "")
    points, changes = re.fullmatch(r"(\d+) \[(\d+)\]\n", done.stdout).groups()  # type: ignore[union-attr]
    assert 3 < int(changes) < int(points) - 3


def test_a_name_alone_is_not_trusted(tmp_path: Path) -> None:
    """vllm-project/speculators #739, nyu-mll/jiant #169: a folder half written was resumed, since its name parsed."""
    good = save_snapshot(tmp_path, make(100))
    (tmp_path / "snapshot-00000200").mkdir()
    half = tmp_path / "snapshot-00000300"
    half.mkdir()
    shutil.copy(good / "tensors.safetensors", half)
    warnings: list[str] = []
    assert load_snapshot(tmp_path, warn=warnings.append).update == 100
    assert len(warnings) == 2


def test_the_only_copy_is_not_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """harvard-edge/cs249r_book #2068 (TinyTorch), CanReader/FastNN #13: the save opened its only copy for writing."""
    path = save_snapshot(tmp_path, make(100))
    before = {file.name: (file.stat().st_ino, file.read_bytes()) for file in path.iterdir()}

    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(InputError, match="Input/output error"):
        save_snapshot(tmp_path, make(100))
    assert {file.name: (file.stat().st_ino, file.read_bytes()) for file in path.iterdir()} == before


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_a_failed_save_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """facebookresearch/ClassyVision #528: training went on after a failed save, and said so nowhere."""

    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(FastbpError) as caught:
        save_snapshot(tmp_path, make(100))
    assert caught.value.exit_code != 0
    assert os.strerror(number) in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_rotation_never_deletes_the_newest(tmp_path: Path) -> None:
    """transformers #25129 (a limit of 1 deleted all), #11769, #11748 (sorted as text), #27138, #37260 (a new run's)."""
    for update in (90, 100, 1000, 9):
        rotate(tmp_path, 1, save_snapshot(tmp_path, make(update)))
        assert load_snapshot(tmp_path / f"snapshot-{update:08d}").update == update
    assert [path.name for path in list_snapshots(tmp_path)] == ["snapshot-00000009", "snapshot-00001000"]


def test_nothing_is_deleted_before_the_new_snapshot_is_whole(tmp_path: Path) -> None:
    """bghira/SimpleTuner #2989: rotated before the save, and a limit of 0 deleted all."""
    paths = [save_snapshot(tmp_path, make(update)) for update in (100, 200)]
    with pytest.raises(InputError, match="keep at least 1"):
        rotate(tmp_path, 0, paths[1])
    os.truncate(paths[1] / "tensors.safetensors", 1000)
    with pytest.raises(InputError, match="does not read back"):
        rotate(tmp_path, 1, paths[1])
    assert list_snapshots(tmp_path) == paths


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_do_not_push_out_good_ones(tmp_path: Path, value: float) -> None:
    """kyutai-labs/pocket-tts #262, habitat-lab #2226, m2lines/Samudra #806: NaN in all weights, good ones deleted."""
    rotate(tmp_path, 1, save_snapshot(tmp_path, make(100)))
    bad = Snapshot(CONFIG, ByteTokenizer(), 200, {}, {}, {**tensors(), "wte": tensors(value)["wte"]})
    with pytest.raises(NonFinite, match="parameters/wte"):
        save_snapshot(tmp_path, bad)
    assert load_snapshot(tmp_path).update == 100


class Trap:
    """Runs code wherever it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(TRAPPED),))


TRAPPED = Path("must-not-appear")


def test_a_pickle_in_any_file_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ecmwf/anemoi-core #1416, ecgtizer #5, flash-attention #2585: a file of weights ran code when it was loaded."""
    monkeypatch.chdir(tmp_path)
    for name in ("tensors.safetensors", "snapshot.json"):
        path = save_snapshot(tmp_path / "run", make(100))
        (path / name).write_bytes(pickle.dumps(Trap()))
        with pytest.raises(InputError, match="cannot be used"):
            load_snapshot(path)
    assert not TRAPPED.exists()


def test_no_source_file_can_read_a_pickle() -> None:
    """The same, CVE-2025-32434 and CVE-2026-24747: also the loaders that were said to be safe were not."""
    forbidden = re.compile(
        r"\b(import pickle|from pickle|np\.load\(|torch\.load\(|joblib|shelve|marshal|exec\(|eval\()"
    )
    for path in PACKAGE.rglob("*.py"):
        assert not forbidden.search(path.read_text("utf-8")), path


def test_a_file_cut_short_is_not_read_as_zeros(tmp_path: Path) -> None:
    """osaurus-ai/vmlx-swift #217: a shard cut short was mapped, and a fifth of all launches wrote gibberish."""
    path = save_snapshot(tmp_path, make(100))
    size = (path / "tensors.safetensors").stat().st_size
    for length in (size - 1, size // 2, 100, 0):
        os.truncate(path / "tensors.safetensors", length)
        with pytest.raises(InputError, match=f"has {length} bytes, not {size}"):
            load_snapshot(path)
    # As long as before, the end a hole: what a file system may leave after a power cut.
    os.truncate(path / "tensors.safetensors", size)
    with pytest.raises(InputError, match=r"tensors\.safetensors"):
        load_snapshot(path)


def test_a_shape_that_is_larger_than_the_data(tmp_path: Path) -> None:
    """ml-explore/mlx #3363, LiteRT #9255, openasr #73: a shape, a key twice or a length read out of bounds."""
    path = save_snapshot(tmp_path, make(100))
    whole = (path / "tensors.safetensors").read_bytes()
    for old, new in [
        (b'"shape":[256,8]', b'"shape":[999,8]'),
        (b'"data_offsets":[0,32]', b'"data_offsets":[0,64]'),
        (b'"parameters/wpe"', b'"parameters/wte"'),
        (whole[:8], struct.pack("<Q", 2**62)),
    ]:
        assert old in whole
        (path / "tensors.safetensors").write_bytes(whole.replace(old, new, 1))
        with pytest.raises(InputError, match=r"tensors\.safetensors"):
            load_snapshot(path)


def test_views_are_saved_as_they_read_and_others_may_read_them(tmp_path: Path) -> None:
    """safetensors #825 (views in another order), #782 (mode 0600), #762 and #764 (zeros), model2vec #341."""
    odd = tensors()
    odd["blocks.0.attn.wq"] = np.arange(64, dtype=np.float32).reshape(8, 8).T
    odd["wpe"] = np.arange(64, dtype=np.float32).reshape(8, 8)[::-2]
    path = save_snapshot(tmp_path, Snapshot(CONFIG, ByteTokenizer(), 1, {}, {}, odd))
    for found in (
        load_snapshot(path).parameters,
        {
            name.removeprefix("parameters/"): array
            for name, array in safetensors.numpy.load_file(path / "tensors.safetensors").items()
        },
    ):
        for name, array in odd.items():
            np.testing.assert_array_equal(found[name], array)
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((path / "tensors.safetensors").stat().st_mode) == 0o666 & ~umask


def own_mounts() -> bool:
    """Whether a process may have mounts of its own here, without being anyone special."""
    try:
        done = subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


@pytest.mark.skipif(not own_mounts(), reason="needs Linux with user namespaces, for a small disk to fill")
def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """harvard-edge/cs249r_book #2068 and many others: the disk full in the midst of a save, and the old one gone."""
    mount = f'mount -t tmpfs -o size=1536k tmpfs "{tmp_path}" && exec "$@"'
    done = script(FULL_DISK, str(tmp_path), command=("unshare", "-rm", "sh", "-c", mount, "sh"))
    assert (done.returncode, done.stderr) == (0, "")
    before, during = done.stdout.splitlines()
    assert "bytes) available" in before
    assert "bytes) are needed" in before
    assert "No space left on device; free some space" in during
