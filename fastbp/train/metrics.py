"""The run's record: one JSON object a line, appended as training goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAME = "metrics.jsonl"

Mirror = Callable[[dict[str, Any]], None]


class Metrics:
    """Appends to `folder/metrics.jsonl`.

    Opened for a run that has done `updates` updates, it drops what lies beyond them: lines that a run wrote after the
    snapshot from which it now resumes. `mirror` hears every line that there is, those that were there first.
    """

    def __init__(self, folder: Path, updates: int, mirror: Mirror | None = None) -> None:
        self.path = folder / NAME
        kept = [line for line in read_metrics(folder) if line["update"] <= updates] if updates else []
        self._evaluations = {line["update"]: line for line in kept if _is_evaluation(line)}
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        os.replace(temporary, self.path)
        self._mirror = mirror
        if mirror:
            for line in kept:
                mirror(line)

    def evaluation(self, update: int) -> dict[str, Any] | None:
        """The line of an evaluation after `update` updates that was there when this was opened."""
        return self._evaluations.get(update)

    def add(self, **values: Any) -> None:
        """Appends one line; `update` counts the updates done."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values, allow_nan=False) + "\n")
        if self._mirror:
            self._mirror(values)


def _is_evaluation(line: dict[str, Any]) -> bool:
    return all(isinstance(line.get(name), float) for name in ("train_loss", "valid_loss"))


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """All whole lines of a run's record; what follows a line damaged by a crash is left out."""
    path = folder / NAME
    lines: list[dict[str, Any]] = []
    if not path.exists():
        return lines
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            break
        if not isinstance(line, dict) or not isinstance(line.get("update"), int):
            break
        lines.append(line)
    return lines


def tokens_per_second(line: dict[str, Any]) -> float | None:
    """The speed of the update that a line is about; None where it is about none, and in older records."""
    return line["tokens"] / line["seconds"] if line.get("tokens") and line.get("seconds") else None
