"""The loop: the same bits wherever a run stops, whatever is evaluated and saved between; what is left behind an
error.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastbp.base.errors import InputError, NonFinite, Stopped
from fastbp.data import CharTokenizer
from fastbp.train.loop import Cadence, TrainingLoop
from fastbp.train.metrics import read_metrics
from fastbp.train.snapshot import list_snapshots, load_snapshot
from fastbp.train.trainer import Trainer

MakeTrainer = Callable[..., Trainer]
MakeLoop = Callable[..., TrainingLoop]
CADENCE = Cadence(updates=12, eval_every=5, save_every=4, keep_last=3, log_every=1)


class Polls:
    """Stops at poll number `stop`, counted from 1; 0: never."""

    def __init__(self, stop: int = 0) -> None:
        self.stop, self.count = stop, 0

    def __call__(self) -> None:
        self.count += 1
        if self.count == self.stop:
            raise Stopped("stopped by Ctrl-C", 130)


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Durability is tested with snapshots; here it only takes time."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


@pytest.fixture
def make_loop(make_trainer: MakeTrainer, tokenizer: CharTokenizer, tmp_path: Path) -> MakeLoop:
    def make(
        folder: str = "run", *, cadence: Cadence = CADENCE, polls: Polls | None = None, trainer: Trainer | None = None
    ) -> TrainingLoop:
        path = tmp_path / folder
        path.mkdir(exist_ok=True)
        ignore: Callable[..., None] = lambda *_: None  # noqa: E731
        return TrainingLoop(trainer or make_trainer(), tokenizer, {}, cadence, path, polls or Polls(), ignore, ignore)

    return make


def resume(make_loop: MakeLoop, make_trainer: MakeTrainer, tmp_path: Path, folder: str = "run") -> TrainingLoop:
    snapshot = load_snapshot(tmp_path / folder)
    trainer = make_trainer()
    assert snapshot.first_moments is not None
    assert snapshot.second_moments is not None
    trainer.restore(snapshot.update, snapshot.parameters, snapshot.first_moments, snapshot.second_moments)
    return make_loop(folder, trainer=trainer)


def result(folder: Path) -> tuple[int, list[dict[str, Any]], dict[str, Any], list[bytes]]:
    """The newest snapshot and the record, all but the seconds."""
    snapshot = load_snapshot(folder)
    groups = (snapshot.parameters, snapshot.first_moments or {}, snapshot.second_moments or {})
    lines = [{key: value for key, value in line.items() if key != "seconds"} for line in read_metrics(folder)]
    return snapshot.update, lines, snapshot.metrics, [a.tobytes() for group in groups for a in group.values()]


def test_a_run_stopped_at_any_poll_goes_on_with_the_same_bits(
    make_loop: MakeLoop, make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    polls = Polls()
    outcome = make_loop("straight", polls=polls).run()
    expected = result(tmp_path / "straight")
    assert [line["update"] for line in expected[1]] == [0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10, 10, 11, 12, 12]
    assert polls.count == 12 + 4 * 4  # updates; evaluations at 0, 5, 10 and 12 of two parts with two batches each
    for stop in range(1, polls.count + 1):
        folder = f"stopped-{stop}"
        with pytest.raises(Stopped, match=rf"Ctrl-C after \d+ updates; saved in .*{folder}/snapshot-\d+: go on"):
            make_loop(folder, polls=Polls(stop)).run()
        again = resume(make_loop, make_trainer, tmp_path, folder)
        assert again.run() == replace(
            outcome, seconds=again.outcome.seconds, peak_bytes=again.outcome.peak_bytes, snapshot=again.outcome.snapshot
        )
        assert result(tmp_path / folder) == expected


def test_a_run_stopped_many_times_is_the_same_too(
    make_loop: MakeLoop, make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    expected = make_loop("straight").run()
    stops, loop = 0, make_loop(polls=Polls(7))
    while True:
        try:
            assert loop.run().train_loss == expected.train_loss
            break
        except Stopped:
            stops += 1
            loop = resume(make_loop, make_trainer, tmp_path)
            loop.poll = Polls(5)  # an evaluation takes four
    assert stops > 3
    assert result(tmp_path / "run") == result(tmp_path / "straight")


@pytest.mark.parametrize(
    "change",
    [{"eval_every": 1}, {"eval_every": 100}, {"save_every": 1}, {"save_every": 0}, {"log_every": 7}, {"keep_last": 1}],
    ids=str,
)
def test_how_often_things_happen_changes_no_bit(make_loop: MakeLoop, tmp_path: Path, change: dict[str, int]) -> None:
    first = make_loop("first").run()
    second = make_loop("second", cadence=replace(CADENCE, **change)).run()
    assert result(tmp_path / "first")[2:] == result(tmp_path / "second")[2:]
    assert (first.train_loss, first.valid_loss) == (second.train_loss, second.valid_loss)


@pytest.mark.parametrize(
    ("log_every", "updates"),
    [(1, [1, 21, 41]), (3, [3, 24, 45]), (10, [10, 30, 50]), (20, [20, 40, 60]), (25, [25, 50])],
)
def test_the_ratio_is_measured_seldom_however_often_is_logged(log_every: int, updates: list[int]) -> None:
    cadence = replace(CADENCE, log_every=log_every)
    logged = range(log_every, 61, log_every)
    assert [update for update in logged if cadence.tells_ratio(update)] == updates


def test_what_is_kept_and_what_is_logged(make_loop: MakeLoop, tmp_path: Path) -> None:
    make_loop(cadence=Cadence(updates=10, eval_every=4, save_every=2, keep_last=2, log_every=3)).run()
    folder = tmp_path / "run"
    assert [path.name for path in list_snapshots(folder)] == ["snapshot-00000008", "snapshot-00000010"]
    lines = read_metrics(folder)
    assert [line["update"] for line in lines if "loss" in line] == [3, 6, 9]
    assert [line["update"] for line in lines if "valid_loss" in line] == [0, 4, 8, 10]
    assert all(line["seconds"] > 0 and line["norm"] > 0 for line in lines if "loss" in line)
    assert all(line["tokens"] == 16 for line in lines if "loss" in line)
    assert [line["update"] for line in lines if "update_ratio" in line] == [3]
    assert load_snapshot(folder).metrics["valid_loss"] == lines[-1]["valid_loss"]


def test_a_run_that_is_over_says_so_again(make_loop: MakeLoop, make_trainer: MakeTrainer, tmp_path: Path) -> None:
    first = make_loop().run()
    before = result(tmp_path / "run")
    again = resume(make_loop, make_trainer, tmp_path).run()
    assert result(tmp_path / "run") == before
    assert (again.train_loss, again.valid_loss, again.snapshot) == (
        first.train_loss, first.valid_loss, first.snapshot,
    )  # fmt: skip
    assert (again.seconds, again.peak_bytes) == ([], None)


def test_the_message_names_the_snapshot_where_the_folder_holds_later_ones(
    make_loop: MakeLoop, make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    make_loop().run()
    folder = tmp_path / "run"
    older = load_snapshot(folder / "snapshot-00000004")
    trainer = make_trainer()
    trainer.restore(older.update, older.parameters, older.first_moments or {}, older.second_moments or {})
    with pytest.raises(Stopped, match=r"--resume \S+/run/snapshot-00000005$"):
        make_loop(trainer=trainer, polls=Polls(1)).run()


def test_a_folder_with_a_space_is_quoted(make_loop: MakeLoop) -> None:
    with pytest.raises(Stopped, match=r"--resume '\S+/my run'$"):
        make_loop("my run", polls=Polls(1)).run()


@pytest.mark.parametrize("policy", ["save_all", "full", "every(2)", "sqrt", "selective(mlp)", "save_only(qkv, mid)"])
@pytest.mark.parametrize("backend", ["numpy", "numba", "cython"])
def test_the_measured_peak_is_the_predicted_one(
    make_loop: MakeLoop, make_trainer: MakeTrainer, policy: str, backend: str
) -> None:
    trainer = make_trainer(backend, policy, accumulate=2)
    trainer.decoder.arena._memory[:] = 7  # what was written before the first update does not count
    cadence = replace(CADENCE, updates=2)
    assert make_loop(trainer=trainer, cadence=cadence).run().peak_bytes == trainer.decoder.peak_bytes_predicted


def test_the_measured_peak_is_measured(
    make_loop: MakeLoop, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer()
    monkeypatch.setattr(trainer.decoder, "peak_bytes_measured", lambda: 100 + trainer.update_count)
    assert make_loop(trainer=trainer).run().peak_bytes == 101  # after the first update, once


class Plants:
    """Reports nothing, but makes a parameter NaN after so many updates."""

    def __init__(self, trainer: Trainer, update: int) -> None:
        self.trainer, self.update = trainer, update

    def __call__(self, record: object, seconds: float) -> None:
        if self.trainer.update_count == self.update:
            self.trainer.decoder.parameters["blocks.0.ln2.bias"][2] = np.nan


@pytest.mark.parametrize(
    ("planted", "message"),
    [
        (6, "update 7: not finite first in parameter blocks.0.ln2.bias"),  # found by the next update
        (8, r"tensor parameters/blocks.0.ln2.bias is nan at \(2,\)"),  # by saving
        (10, "evaluation after 10 updates: not finite first in parameter blocks.0.ln2.bias"),
        (12, "evaluation after 12 updates: not finite first in parameter blocks.0.ln2.bias"),
    ],
)
def test_the_last_good_snapshot_survives_nan(make_loop: MakeLoop, tmp_path: Path, planted: int, message: str) -> None:
    loop = make_loop()
    loop.report = Plants(loop.trainer, planted)
    good = 4 if planted <= 8 else 8
    with pytest.raises(NonFinite, match=rf"{message}.*; the last good snapshot is \S+/run/snapshot-0000000{good}$"):
        loop.run()
    assert load_snapshot(tmp_path / "run").update == good


def test_nan_before_the_first_snapshot(make_loop: MakeLoop, tmp_path: Path) -> None:
    loop = make_loop()
    loop.report = Plants(loop.trainer, 1)
    with pytest.raises(NonFinite, match=r"; no snapshot was saved before$"):
        loop.run()
    assert not list_snapshots(tmp_path / "run")


def test_a_stop_does_not_save_nan(make_loop: MakeLoop, tmp_path: Path) -> None:
    loop = make_loop(polls=Polls(4 + 3))
    loop.report = Plants(loop.trainer, 3)
    with pytest.raises(NonFinite, match=r"parameters/blocks\.0\.ln2\.bias"):
        loop.run()
    assert not list_snapshots(tmp_path / "run")


def test_a_save_that_fails_ends_the_run(make_loop: MakeLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # ClassyVision #528: training went on after a failed save.
    loop = make_loop(cadence=replace(CADENCE, save_every=1))
    saved = list_snapshots(tmp_path / "run")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def report(record: object, seconds: float) -> None:
        if loop.trainer.update_count == 3:
            saved[:] = list_snapshots(tmp_path / "run")
            monkeypatch.setattr("os.fsync", full)

    loop.report = report
    with pytest.raises(InputError, match="No space left on device; free some space"):
        loop.run()
    assert loop.trainer.update_count == 3
    assert [path.name for path in saved] == ["snapshot-00000001", "snapshot-00000002"]
    assert list_snapshots(tmp_path / "run") == saved
    assert load_snapshot(tmp_path / "run").update == 2
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["metrics.jsonl", *(p.name for p in saved)]


def test_the_record_is_json_a_line(make_loop: MakeLoop, tmp_path: Path) -> None:
    make_loop().run()
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        assert set(json.loads(line)) in (
            {"update", "train_loss", "valid_loss"},
            {"update", "loss", "learning_rate", "norm", "seconds", "tokens"},
            {"update", "loss", "learning_rate", "norm", "seconds", "tokens", "update_ratio"},
        )
