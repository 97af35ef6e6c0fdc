"""The record of a run: what is appended, what a resumed run drops, what a damaged file gives."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fastbp.train.metrics import NAME, Metrics, read_metrics, tokens_per_second


def written(folder: Path, updates: int) -> Metrics:
    metrics = Metrics(folder, 0)
    metrics.add(update=0, train_loss=2.5, valid_loss=2.75)
    for update in range(1, updates + 1):
        metrics.add(update=update, loss=1 / 3 + update)
    return metrics


def test_lines_come_back_to_the_bit(tmp_path: Path) -> None:
    written(tmp_path, 2)
    assert read_metrics(tmp_path) == [
        {"update": 0, "train_loss": 2.5, "valid_loss": 2.75},
        {"update": 1, "loss": 1 / 3 + 1},
        {"update": 2, "loss": 1 / 3 + 2},
    ]


def test_a_new_run_begins_an_empty_record(tmp_path: Path) -> None:
    written(tmp_path, 2)
    Metrics(tmp_path, 0)
    assert read_metrics(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_a_resumed_run_drops_what_lies_beyond_its_snapshot(tmp_path: Path) -> None:
    written(tmp_path, 5)
    metrics = Metrics(tmp_path, 3)
    metrics.add(update=4, loss=9.0)
    assert [line["update"] for line in read_metrics(tmp_path)] == [0, 1, 2, 3, 4]
    assert read_metrics(tmp_path)[-1]["loss"] == 9.0


def test_a_resumed_run_knows_its_evaluations(tmp_path: Path) -> None:
    metrics = written(tmp_path, 5)
    metrics.add(update=5, train_loss=1.0, valid_loss=1.5)
    metrics.add(update=5, train_loss=None, valid_loss=None)
    again = Metrics(tmp_path, 5)
    assert again.evaluation(5) == {"update": 5, "train_loss": 1.0, "valid_loss": 1.5}
    assert again.evaluation(4) is None
    assert Metrics(tmp_path, 4).evaluation(5) is None


@pytest.mark.parametrize(
    "tail",
    [
        b'{"update": 3, "lo',
        b"\0\0\0\0\n",
        b"\xff\xfe\n",
        b'{"up\n{"update": 2, "loss": 1.0}\n',
        b"7\n",
        b"[1]\n",
        b'{"loss": 1.0}\n',
        b'{"update": "3"}\n',
    ],
)
def test_what_follows_a_damaged_line_is_left_out(tmp_path: Path, tail: bytes) -> None:
    written(tmp_path, 2)
    whole = read_metrics(tmp_path)
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes() + tail)
    assert read_metrics(tmp_path) == whole
    Metrics(tmp_path, 2).add(update=3, loss=1.0)
    assert read_metrics(tmp_path) == [*whole, {"update": 3, "loss": 1.0}]


def test_a_number_that_json_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        Metrics(tmp_path, 0).add(update=1, loss=math.nan)


def test_there_is_no_record_where_there_is_no_run(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "nowhere") == []


def test_a_mirror_hears_every_line_once(tmp_path: Path) -> None:
    written(tmp_path, 5)
    heard: list[dict[str, object]] = []
    metrics = Metrics(tmp_path, 3, heard.append)
    assert [line["update"] for line in heard] == [0, 1, 2, 3]
    metrics.add(update=4, loss=9.0)
    assert heard == read_metrics(tmp_path)


def test_the_speed_of_a_line() -> None:
    assert tokens_per_second({"update": 1, "loss": 1.0, "tokens": 768, "seconds": 0.02}) == 38400
    assert tokens_per_second({"update": 1, "valid_loss": 1.0}) is None
    assert tokens_per_second({"update": 1, "loss": 1.0, "seconds": 0.02}) is None  # as older versions wrote it
