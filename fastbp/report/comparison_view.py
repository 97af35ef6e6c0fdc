"""Policies side by side as a value that shows itself: what `fastbp compare` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastbp.base.shown import Shown
from fastbp.check.comparison import Comparison, Model, Row
from fastbp.graph.config import DecoderConfig
from fastbp.policy.cost import COSTS, Cost
from fastbp.report.asked import Asked
from fastbp.report.comparison import comparison_lines, knee_of


@dataclass(frozen=True)
class Compared(Shown):
    """What a comparison found: `result` has the keys of `fastbp compare --json`, its rows are what it consists of."""

    result: dict[str, Any]

    @property
    def rows(self) -> list[Row]:
        found: list[Row] = self.result["rows"]
        return found

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def lines(self) -> list[str]:
        return comparison_lines(self.result)

    def __repr__(self) -> str:
        return f"<Compared: {', '.join(row['policy'] for row in self)}>"


def comparison_json(comparison: Comparison, name: str) -> dict[str, Any]:
    """The keys of `fastbp compare --json`; `name` is the decoder's."""
    model, rows, meetings = comparison.model, comparison.rows(), comparison.meetings
    return {
        "preset": name, "batch": model.batch, "context": model.config.context, "dtype": model.dtype,
        "backend": comparison.backend, "workers": comparison.workers, "rounds": comparison.rounds,
        "reference": comparison.reference.policy, "rss_of": comparison.rss_of, "knee": knee_of(rows),
        "cost": next((name for name, cost in COSTS.items() if cost == comparison.cost), "measured"),
        "place": comparison.place, "passes_elsewhere": comparison.passes_elsewhere,
        "meeting_seconds": [min(meetings), max(meetings)] if meetings else None, "rows": rows,
    }  # fmt: skip


def compare(
    decoder: DecoderConfig | str = "small", batch: int | None = None, *, policies: Sequence[str] = ("full",),
    rounds: int = 3, audited: bool = False, cost: Cost = COSTS["roofline"], backend: str = "auto",
    workers: int | None = None, dtype: str = "float32", seed: int = 0,
) -> Compared:  # fmt: skip
    """Runs policies and save_all, each once a round, and compares memory, time and the gradients' bits.

    `decoder` and `batch` as in `plan`; a budget is the policy "optimal(64MiB)". Raises InputError for a policy that is
    unknown, DoesNotFit where none fits.
    """
    asked = Asked(decoder, batch)
    model = Model(asked.config, asked.sequences, backend, workers, dtype, seed)
    comparison = Comparison(model, rounds, audited, lambda what: None, cost=cost)
    comparison.run(policies)
    return Compared(comparison_json(comparison, asked.name))
