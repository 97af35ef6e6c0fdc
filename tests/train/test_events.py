"""TensorBoard's event file has the numbers of the record, each update once, whatever was there before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fastbp.train.metrics import Metrics

events = pytest.importorskip("fastbp.train.events", exc_type=ImportError)
loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")

UPDATE = {
    "update": 10, "loss": 2.5, "learning_rate": 1e-3, "norm": 0.75, "seconds": 0.5, "tokens": 768,
    "update_ratio": {"all": 0.25, "mlp": None},
}  # fmt: skip
SCALARS = {
    "loss/batch": 2.5, "learning_rate": 1e-3, "gradient_norm": 0.75, "tokens_per_second": 1536,
    "update_ratio/all": 0.25,
}  # fmt: skip


def read_events(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """Every event of the folder's one file: update, name and number."""
    (path,) = folder.glob(f"{events.NAME}.*")
    found = list(loader.LegacyEventFileLoader(str(path)).Load())
    assert found[0].file_version == "brain.Event:2"
    return [(event.step, {value.tag: value.simple_value for value in event.summary.value}) for event in found[1:]]


def write(folder: Path, updates: int, lines: list[dict[str, Any]]) -> None:
    written = events.Events(folder)
    metrics = Metrics(folder, updates, written.add)
    for line in lines:
        metrics.add(**line)
    written.close()


def test_the_numbers_of_a_line(tmp_path: Path) -> None:
    write(tmp_path, 0, [{"update": 0, "train_loss": 3.0, "valid_loss": 3.5}, UPDATE])
    first, second = read_events(tmp_path)
    assert first == (0, {"loss/training": 3.0, "loss/validation": 3.5})
    assert second == (10, pytest.approx(SCALARS))


def test_a_run_that_goes_on_has_every_update_once(tmp_path: Path) -> None:
    lines = [UPDATE | {"update": update} for update in range(1, 6)]
    write(tmp_path, 0, lines)
    write(tmp_path, 3, lines[3:4])
    assert [update for update, _ in read_events(tmp_path)] == [1, 2, 3, 4]


def test_a_run_may_begin_to_write_events_later(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path, 0)
    metrics.add(**UPDATE)
    write(tmp_path, 10, [UPDATE | {"update": 20}])
    assert [update for update, _ in read_events(tmp_path)] == [10, 20]


def test_a_line_is_in_the_file_at_once(tmp_path: Path) -> None:
    written = events.Events(tmp_path)
    written.add(UPDATE)
    assert [update for update, _ in read_events(tmp_path)] == [10]
    written.close()


def test_other_files_stay(tmp_path: Path) -> None:
    other = tmp_path / "events.txt"
    other.write_text("mine")
    write(tmp_path, 0, [UPDATE])
    assert other.read_text() == "mine"
