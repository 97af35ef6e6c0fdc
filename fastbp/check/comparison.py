"""Policies side by side on one model: memory saved against extra compute, and whether the gradients are the same bits.

Every round runs each policy once, every other round backwards, since clock rates and neighbours come and go. A turn
builds the decoder, runs it and frees it, so that the memory of one policy alone is there at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np

from fastbp.base.errors import DoesNotFit
from fastbp.base.rng import stream
from fastbp.check.audit import Audit, audit
from fastbp.graph.config import DecoderConfig
from fastbp.graph.graph import Graph
from fastbp.policy.cost import COSTS, Cost, schedule_cost
from fastbp.policy.cost import Measured as MeasuredCost
from fastbp.policy.named import make_plan
from fastbp.run.backend import choose_backend
from fastbp.run.barrier import Barrier
from fastbp.run.decoder import Decoder
from fastbp.run.fit import require_memory
from fastbp.run.measure import Spread, seconds_of
from fastbp.run.needed import graph_to_run, least_bytes
from fastbp.run.resident import forget_rss_peak, rss_peak_bytes
from fastbp.schedule.plan import Plan
from fastbp.schedule.schedule import training_schedule

REFERENCE = "save_all"
"""The policy whose gradients the others must have."""
TURN_SECONDS = 0.3
"""A turn has as many timed passes as fit, at least one, behind one that is not timed."""
MOST_PASSES = 100
"""Of a turn, however short they are."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Model:
    """What is the same for every policy."""

    config: DecoderConfig
    batch: int
    backend: str
    workers: int | None
    dtype: str
    seed: int = 0

    def graph(self) -> Graph:
        """The graph that plans are made for. Raises DoesNotFit where no plan fits into this machine."""
        require_memory(
            least_bytes(self.config, self.batch, self.dtype), f"--batch {self.batch} at context {self.config.context}"
        )
        return graph_to_run(self.config, self.batch, choose_backend(self.backend), self.workers, self.dtype)

    def decoder(self, plan: Plan, progress: Callable[[str], None] | None) -> Decoder:
        """A decoder with the model's weights and tokens."""
        decoder = Decoder(
            self.config, self.batch, plan=plan, backend=self.backend, workers=self.workers, dtype=self.dtype,
            progress=progress,
        )  # fmt: skip
        decoder.initialise(self.seed)
        random = stream(self.seed, "tokens to compare policies with")
        decoder.tokens[:] = random.integers(0, self.config.vocab, decoder.tokens.shape)
        decoder.targets[:] = random.integers(0, self.config.vocab, decoder.targets.shape)
        return decoder


@dataclass
class Measured:
    """What the turns of one policy found, a list of `seconds` a turn; `failed` says why it had none."""

    policy: str
    failed: str | None = None
    figures: Row = field(default_factory=dict)
    seconds: list[list[float]] = field(default_factory=list)
    rss_peak_bytes: list[int] = field(default_factory=list)
    gradients: set[bytes] = field(default_factory=set)
    audit: Audit | None = None
    predicted_seconds: float | None = None
    """Of the blocks alone."""

    def row(self, reference: Measured) -> Row:
        """The policy's row; its gradients and its time are compared with those of `reference`."""
        if self.failed is not None:
            return {"policy": self.policy, "failed": self.failed}
        seconds = [second for turn in self.seconds for second in turn]
        spread = Spread.of(seconds)
        row = {
            "policy": self.policy,
            **self.figures,
            "rss_peak_bytes": max(self.rss_peak_bytes),
            "seconds": {"median": spread.median, "min": spread.low, "max": spread.high},
            "passes": len(seconds),
            "times_reference": self.times(reference),
            "times_predicted": self.times_predicted(reference),
            "gradients_bit_equal": len(self.gradients) == 1 and self.gradients == reference.gradients,
        }
        return row | ({"audit": self.audit.to_json()} if self.audit else {})

    def times_predicted(self, mark: Measured) -> float | None:
        """What `times` should be, from what every call was measured to take; None where it was not."""
        if self.predicted_seconds is None or mark.predicted_seconds is None:
            return None
        took = Spread.of([second for turn in mark.seconds for second in turn]).median
        return 1 + (self.predicted_seconds - mark.predicted_seconds) / took

    def times(self, mark: Measured) -> float:
        """Its median over the mark's in the same round; the median of rounds."""
        rounds = zip(self.seconds, mark.seconds, strict=True)
        return Spread.of([Spread.of(own).median / Spread.of(other).median for own, other in rounds]).median


@dataclass
class Comparison:
    """A comparison, run once. `rss_of` says whose peak of resident memory is measured: the "policy"'s, or the
    "process"'s up to then where the system cannot forget an earlier one.
    """

    model: Model
    rounds: int
    audited: bool
    say: Callable[[str], None]
    found: dict[str, Measured] = field(default_factory=dict)
    rss_of: str = "policy"
    backend: str = ""
    workers: int = 0
    meetings: list[float] = field(default_factory=list)
    """Seconds that workers took to meet, turn by turn."""
    cost: Cost = COSTS["roofline"]

    def run(self, policies: Iterable[str]) -> None:
        """Measures REFERENCE and the others, each once a round. Raises InputError for a policy that is none, DoesNotFit
        where none fits.
        """
        self.found = {policy: Measured(policy) for policy in (REFERENCE, *policies)}
        plans = self._plans()
        for i in range(self.rounds):
            for policy in list(plans) if i % 2 == 0 else list(reversed(plans)):
                if self.found[policy].failed is None:
                    self.say(f"round {i + 1} of {self.rounds}: {policy}")
                    self._attempt(plans[policy], self.found[policy])
        if all(each.failed is not None for each in self.found.values()):
            raise DoesNotFit(str(self.found[REFERENCE].failed))

    @property
    def reference(self) -> Measured:
        """Whose gradients the others must have: REFERENCE, or the first that fits."""
        return next(each for each in self.found.values() if each.failed is None)

    def rows(self) -> list[Row]:
        """A row for each policy by its peak, those that did not fit last."""
        rows = (each.row(self.reference) for each in self.found.values())
        return sorted(rows, key=lambda row: row.get("peak_bytes_measured", 1 << 63))

    def _plans(self) -> dict[str, Plan]:
        """The plans of those that have one."""
        graph, plans = self.model.graph(), {}
        for policy, each in self.found.items():
            self.say(f"plan of {policy}")
            try:
                plans[policy] = make_plan(graph, policy, self.cost)
            except DoesNotFit as error:
                each.failed = str(error)
        if isinstance(self.cost, MeasuredCost):
            for policy, plan in plans.items():
                self.found[policy].predicted_seconds = schedule_cost(training_schedule(graph, plan), self.cost) / 1e9
        return plans

    def _attempt(self, plan: Plan, found: Measured) -> None:
        try:
            self._turn(plan, found)
        except DoesNotFit as error:
            found.failed = str(error)
        except MemoryError:
            found.failed = "out of memory"

    def _turn(self, plan: Plan, found: Measured) -> None:
        if not forget_rss_peak():
            self.rss_of = "process"
        decoder = self.model.decoder(plan, self.say)
        self.backend, self.workers = decoder.backend.name, decoder.workers
        first_seconds = seconds_of(decoder.forward_backward)
        found.gradients.add(digest(decoder.gradients.flat))
        passes = max(1, min(MOST_PASSES, int(TURN_SECONDS / first_seconds)))
        found.seconds.append([seconds_of(decoder.forward_backward) for _ in range(passes)])
        found.rss_peak_bytes.append(rss_peak_bytes())
        if decoder.backend.compiled and self.workers > 1:
            self.meetings.append(Barrier(decoder.runner.workers).measure())
        if not found.figures:
            found.figures = figures(decoder)
            found.audit = audit(decoder) if self.audited else None


def figures(decoder: Decoder) -> Row:
    """What is the same in every turn. Costs a pass over a marked arena."""
    return {
        "peak_bytes_predicted": decoder.peak_bytes_predicted,
        "peak_bytes_measured": decoder.measure_peak_bytes(),
        "kept_bytes": decoder.simulation.kept_bytes,
        "extra_flops_share": decoder.simulation.extra_flops_share,
    }


def digest(gradients: np.ndarray) -> bytes:
    """A hash of their bytes."""
    return blake2b(gradients.data).digest()


def passed(row: Row) -> bool:
    """Whether nothing that can be checked came out wrong."""
    if "failed" in row:
        return True
    exact = row["peak_bytes_measured"] == row["peak_bytes_predicted"]
    return exact and row["gradients_bit_equal"] and not row.get("audit", {}).get("difference")
