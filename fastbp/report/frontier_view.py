"""The planner's frontier as a value that shows itself: what `fastbp plan --frontier` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastbp.base.shown import Shown
from fastbp.graph.config import DecoderConfig
from fastbp.graph.graph import Graph
from fastbp.policy.cost import COSTS, Cost, Measured
from fastbp.policy.optimal import Found, Planner
from fastbp.policy.sweep import sweep
from fastbp.report.asked import Asked
from fastbp.report.explain import frontier_json, frontier_lines


@dataclass(frozen=True)
class Frontier(Shown):
    """The cheapest plans of a graph by rising peak. `measured`: their cost is in nanoseconds."""

    graph: Graph
    points: Sequence[Found]
    measured: bool

    def __iter__(self) -> Iterator[Found]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

    def to_json(self) -> dict[str, Any]:
        """The keys of `fastbp plan --frontier --json`."""
        return frontier_json(self.graph, self.points, self.measured)

    def lines(self) -> list[str]:
        return frontier_lines(self.graph, self.points, self.measured)

    def __repr__(self) -> str:
        return f"<Frontier: {len(self)} plans>"


def frontier_of(planner: Planner) -> Frontier:
    return Frontier(planner.graph, sweep(planner), isinstance(planner.cost, Measured))


def frontier(
    decoder: DecoderConfig | str = "small", batch: int | None = None, *, lossy: bool = False,
    cost: Cost = COSTS["roofline"], backend: str = "auto", workers: int | None = None, dtype: str = "float32",
) -> Frontier:  # fmt: skip
    """What every budget costs, from the smallest that has a plan. Arguments as in `plan`."""
    return frontier_of(Planner(Asked(decoder, batch, backend, workers, dtype).graph(), cost, lossy))
