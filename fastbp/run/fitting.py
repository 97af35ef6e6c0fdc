"""The largest batch or context that trains in so many bytes, and the planner's cheapest plan for it.

A size fits where parameters, gradients, two moments and the smallest of the planner's arenas do. What the process takes
besides, code and libraries, is not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from fastbp.base.errors import DoesNotFit
from fastbp.base.units import format_bytes
from fastbp.graph.config import DecoderConfig
from fastbp.graph.graph import Graph
from fastbp.memory.layout import require_plannable
from fastbp.policy.largest import largest
from fastbp.policy.optimal import Planner
from fastbp.run.backend import Backend
from fastbp.run.needed import graph_to_run, least_bytes, state_bytes
from fastbp.schedule.plan import Plan

MOST_TOKENS = 1 << 16
"""In a batch: the search ends here. A plan in the smallest slices for as many has 100,000 actions and takes minutes."""


@dataclass(frozen=True)
class Candidate:
    """A decoder at one batch and context."""

    config: DecoderConfig
    batch: int
    backend: Backend
    workers: int | None
    dtype: str

    @cached_property
    def graph(self) -> Graph:
        graph = graph_to_run(self.config, self.batch, self.backend, self.workers, self.dtype)
        require_plannable(graph)
        return graph

    @cached_property
    def planner(self) -> Planner:
        return Planner(self.graph)

    @property
    def state_bytes(self) -> int:
        return state_bytes(self.config, self.dtype)

    @property
    def smallest_bytes(self) -> int:
        """The state and the planner's smallest arena."""
        return self.state_bytes + self.planner.smallest_bytes

    def fits(self, memory_bytes: int) -> bool:
        """Whether some plan's live bytes fit. Its layout, which takes much longer, may need more; it seldom does."""
        if least_bytes(self.config, self.batch, self.dtype) > memory_bytes:
            return False
        return self.planner.search(memory_bytes - self.state_bytes) is not None

    def plan(self, memory_bytes: int) -> Plan:
        """The cheapest plan within what the state leaves. Raises DoesNotFit."""
        return self.planner.plan(memory_bytes - self.state_bytes)

    def sized(self, what: str, size: int) -> Candidate:
        """The same at another "batch" or "context"."""
        if what == "batch":
            return replace(self, batch=size)
        return replace(self, config=replace(self.config, context=size))


def most(candidate: Candidate, what: str) -> int:
    """Where the search ends."""
    return max(1, MOST_TOKENS // (candidate.config.context if what == "batch" else candidate.batch))


def fitted(candidate: Candidate, what: str, memory_bytes: int, say: Callable[[str], None]) -> tuple[Candidate, Plan]:
    """The candidate at the largest "batch" or "context" that fits, and its plan. Raises DoesNotFit where 1 does not,
    with the bytes that it would take.
    """

    def fits(size: int) -> bool:
        say(f"{what} {size}")
        return candidate.sized(what, size).fits(memory_bytes)

    size = largest(fits, most(candidate, what))
    while size:
        found = candidate.sized(what, size)
        say(f"the plan for {what} {size}")
        try:
            return found, found.plan(memory_bytes)
        except DoesNotFit:
            size -= 1  # live bytes fit, but no layout of theirs does
    least = candidate.sized(what, 1).smallest_bytes
    raise DoesNotFit(
        f"nothing fits into {format_bytes(memory_bytes)}: {what} 1 takes {least} bytes of parameters, gradients,"
        " moments and activations: give that much, or take a smaller decoder"
    )
