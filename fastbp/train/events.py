"""A run's record for TensorBoard: an event file beside metrics.jsonl with the same numbers.

metrics.jsonl is what counts. A run that goes on writes the file anew from the lines that are kept, so that it never
holds an update twice, nor one that the resumed run has not made. Each line is in the file when `add` returns, which
tensorboard's EventFileWriter, with a thread of its own, leaves open. The only file that knows tensorboard.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from fastbp.train.metrics import tokens_per_second

NAME = "events.out.tfevents"
"""How the file's name must begin for TensorBoard to find it; seconds follow."""
VERSION = "brain.Event:2"
TAGS = {
    "loss": "loss/batch", "train_loss": "loss/training", "valid_loss": "loss/validation",
    "learning_rate": "learning_rate", "norm": "gradient_norm",
}  # fmt: skip
"""Key of a line: its name in TensorBoard, which groups by what stands before the slash."""


class Events:
    """Writes an event file into a run's folder, in place of those that are there."""

    def __init__(self, folder: Path) -> None:
        for path in folder.glob(f"{NAME}.*"):
            path.unlink()
        now = time.time()
        self._writer = RecordWriter((folder / f"{NAME}.{int(now):010d}.fastbp").open("wb"))
        self._write(Event(wall_time=now, file_version=VERSION))

    def add(self, line: dict[str, Any]) -> None:
        """One line of the record as one event."""
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(line)]
        self._write(Event(wall_time=time.time(), step=line["update"], summary=Summary(value=values)))

    def _write(self, event: Event) -> None:
        self._writer.write(event.SerializeToString())
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def scalars(line: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The names and numbers of a line."""
    named = {tag: line.get(key) for key, tag in TAGS.items()} | {"tokens_per_second": tokens_per_second(line)}
    named |= {f"update_ratio/{kind}": ratio for kind, ratio in line.get("update_ratio", {}).items()}
    yield from ((tag, value) for tag, value in named.items() if value is not None)
