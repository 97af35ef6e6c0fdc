"""Policies side by side on one model: memory saved against extra compute, and whether the gradients are the same bits.

First each policy has a decoder of its own, so that its memory alone is there. Then all take turns in the memory of the
largest, so that nothing but the plan differs; every other round goes backwards, since clock rates and neighbours come
and go. Times count that were taken while the workers' cores were in one place (fastbp/run/places.py).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from fastbp.run.decoder import Decoder
from fastbp.run.fit import require_memory
from fastbp.run.measure import Spread, seconds_of, there_and_back, undisturbed
from fastbp.run.needed import graph_to_run, least_bytes
from fastbp.run.places import APART, NEAR, Moved, Places
from fastbp.run.program import Program
from fastbp.run.resident import forget_rss_peak, rss_peak_bytes
from fastbp.schedule.plan import Plan
from fastbp.schedule.schedule import training_schedule

REFERENCE = "save_all"
"""The policy whose gradients the others must have."""
TURN_SECONDS, MOST_PASSES = 0.1, 100
"""A turn has as many passes as fit, within bounds; two at least where they take less than LONG seconds."""
LONG = 2.0
BETWEEN = 3
"""The reference, on which all ratios depend, has a turn after every so many others."""
LEAST_ROUNDS, ROUNDS, ALL_SECONDS = 5, 30, 90.0
"""Where no number of rounds is asked for, as many as take so long, within bounds: noise that comes and goes in seconds
weighs on all passes of a turn.
"""
MOST_ROUNDS, DISTURBED = 4, 1.05
"""In multiples of the rounds, where none are asked for and cores are moved or others run on them; and how much longer
than the quickest a pass then takes.
"""
MOVED = "moved"
"""Where the cores were in a pass under which they were moved."""

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
    """What was found out about one policy; `failed` says why nothing was. `seconds` of passes are by the place in which
    the workers' cores were.
    """

    policy: str
    failed: str | None = None
    figures: Row = field(default_factory=dict)
    turn_passes: int = 1
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    rss_peak_bytes: int = 0
    gradients: set[bytes] = field(default_factory=set)
    audit: Audit | None = None
    predicted_seconds: float | None = None
    """Of the blocks and the head alone."""

    def passes(self, place: str | None) -> list[float]:
        """Seconds of the passes in a place, or of all."""
        return self.seconds[place] if place else [second for each in self.seconds.values() for second in each]

    def undisturbed_passes(self, place: str) -> int:
        seconds = self.seconds[place]
        return sum(second <= DISTURBED * min(seconds) for second in seconds)

    def row(self, reference: Measured, place: str | None) -> Row:
        """The policy's row; its gradients and its time are compared with those of `reference`."""
        if self.failed is not None:
            return {"policy": self.policy, "failed": self.failed}
        passes = self.passes(place)
        spread = Spread.of(passes)
        row = {
            "policy": self.policy,
            **self.figures,
            "rss_peak_bytes": self.rss_peak_bytes,
            "seconds": {"median": spread.median, "min": spread.low, "max": spread.high},
            "passes": len(passes),
            "times_reference": undisturbed(passes) / undisturbed(reference.passes(place)),
            "times_predicted": self.times_predicted(reference),
            "gradients_bit_equal": len(self.gradients) == 1 and self.gradients == reference.gradients,
        }
        return row | ({"audit": self.audit.to_json()} if self.audit else {})

    def times_predicted(self, mark: Measured) -> float | None:
        """What its time over that of `mark` should be, from what every call was measured to take; None where it was
        not.
        """
        if self.predicted_seconds is None or mark.predicted_seconds is None:
            return None
        return self.predicted_seconds / mark.predicted_seconds


@dataclass
class Comparison:
    """A comparison, run once, of so many rounds; 0 is as many as take ALL_SECONDS, more where cores are moved. `cost`
    is what plans are chosen by; where it was measured, `costs` gives it for another place of the cores. `rss_of` says
    whose peak of resident memory is measured: the "policy"'s, or the "process"'s up to then where the system cannot
    forget an earlier one. `place` is where the cores were in the passes that count; None where they were nowhere for a
    whole round's passes, and all do.
    """

    model: Model
    rounds: int
    audited: bool
    say: Callable[[str], None]
    cost: Cost = COSTS["roofline"]
    costs: Callable[[str | None], Cost] | None = None
    found: dict[str, Measured] = field(default_factory=dict)
    rss_of: str = "policy"
    backend: str = ""
    workers: int = 0
    place: str | None = None
    meetings: list[float] = field(default_factory=list)
    """Seconds that workers took to meet, before and after passes."""

    def run(self, policies: Iterable[str]) -> None:
        """Measures REFERENCE and the others. Raises InputError for a policy that is none, DoesNotFit where none
        fits.
        """
        self.found = {policy: Measured(policy) for policy in (REFERENCE, *policies)}
        plans = self._plans()
        for i, (policy, plan) in enumerate(plans.items()):
            self.say(f"memory of {policy}, {i + 1} of {len(plans)}")
            self._attempt(plan, self.found[policy])
        plans = {policy: plan for policy, plan in plans.items() if self.found[policy].failed is None}
        if not plans:
            raise DoesNotFit(str(self.found[REFERENCE].failed))
        self._time(plans)
        self._foretell(plans)

    @property
    def reference(self) -> Measured:
        """Whose gradients the others must have: REFERENCE, or the first that fits."""
        return self._fitting()[0]

    @property
    def passes_elsewhere(self) -> int:
        """Passes that do not count."""
        return sum(len(each.passes(None)) - len(each.passes(self.place)) for each in self._fitting())

    def rows(self) -> list[Row]:
        """A row for each policy by its peak, those that did not fit last."""
        rows = (each.row(self.reference, self.place) for each in self.found.values())
        return sorted(rows, key=lambda row: row.get("peak_bytes_measured", 1 << 63))

    def _fitting(self) -> list[Measured]:
        return [each for each in self.found.values() if each.failed is None]

    def _plans(self) -> dict[str, Plan]:
        """The plans of those that have one."""
        graph, plans = self.model.graph(), {}
        for policy, each in self.found.items():
            self.say(f"plan of {policy}")
            try:
                plans[policy] = make_plan(graph, policy, self.cost)
            except DoesNotFit as error:
                each.failed = str(error)
        return plans

    def _attempt(self, plan: Plan, found: Measured) -> None:
        try:
            self._remember(plan, found)
        except DoesNotFit as error:
            found.failed = str(error)
        except MemoryError:
            found.failed = "out of memory"

    def _remember(self, plan: Plan, found: Measured) -> None:
        """Builds the decoder, runs it and frees it."""
        if not forget_rss_peak():
            self.rss_of = "process"
        decoder = self.model.decoder(plan, self.say)
        self.backend, self.workers = decoder.backend.name, decoder.workers
        found.turn_passes = _passes(seconds_of(decoder.forward_backward))
        found.gradients.add(digest(decoder.gradients.flat))
        found.rss_peak_bytes = rss_peak_bytes()
        if found.turn_passes > 1:  # the first one's time is not of many
            found.turn_passes = _passes(seconds_of(decoder.forward_backward))
        found.figures = figures(decoder)
        found.audit = audit(decoder) if self.audited else None

    def _time(self, plans: Mapping[str, Plan]) -> None:
        """Turns in the memory of the largest plan: the rounds that were asked for, else as many as fill a while, and
        until each policy has an undisturbed pass a round in one place.
        """
        largest: str = max(plans, key=lambda policy: self.found[policy].figures["peak_bytes_predicted"])
        decoder = self.model.decoder(plans[largest], self.say)
        programs = {policy: decoder.under(plan)[1] for policy, plan in plans.items()}
        places = Places(decoder.runner.workers, decoder.backend.compiled)
        begin, made, asked = time.perf_counter(), 0, self.rounds
        self.rounds = asked or LEAST_ROUNDS
        while made < self.rounds or (not asked and made < MOST_ROUNDS * self.rounds and not self._enough()):
            for policy in _order(list(programs), made):
                self.say(f"round {made + 1}{f' of {self.rounds}' if made < self.rounds else ''}: {policy}")
                self._turn(decoder, programs[policy], places, self.found[policy])
            made += 1
            if made == 1 and not asked:
                self.rounds = max(LEAST_ROUNDS, min(ROUNDS, int(ALL_SECONDS / (time.perf_counter() - begin))))
        self.place = self._place() if self._counts(self._place()) else None
        self.meetings = places.meetings

    def _turn(self, decoder: Decoder, program: Program, places: Places, found: Measured) -> None:
        decoder.zero_gradients()
        place = places.look()
        for i in range(found.turn_passes):
            took, before, place = seconds_of(lambda: decoder.runner.run(program)), place, places.look()
            found.seconds[place if place == before else MOVED].append(took)
            if i == 0:
                found.gradients.add(digest(decoder.gradients.flat))
                place = places.look()

    def _enough(self) -> bool:
        return self._counts(self._place()) >= self.rounds

    def _counts(self, place: str) -> int:
        """The fewest undisturbed passes that a policy has in a place."""
        return min(each.undisturbed_passes(place) for each in self._fitting())

    def _place(self) -> str:
        """Where all policies have a pass a round, if the calls were measured there; else where they have the most."""
        ours = getattr(self.cost, "place", NEAR)
        return ours if self._counts(ours) >= self.rounds else max((ours, NEAR, APART), key=self._counts)

    def _foretell(self, plans: Mapping[str, Plan]) -> None:
        """From what calls take where the cores were, if that can be had."""
        cost = self.cost
        if isinstance(cost, MeasuredCost) and self.costs and self.place not in (None, cost.place):
            try:
                cost = self.costs(self.place)
            except Moved:
                return
        if isinstance(cost, MeasuredCost):
            graph = self.model.graph()
            for policy, plan in plans.items():
                nanoseconds = schedule_cost(training_schedule(graph, plan), cost.as_measured)
                self.found[policy].predicted_seconds = nanoseconds / 1e9


def _passes(seconds: float) -> int:
    """How many passes that take so long are a turn."""
    return max(2 if seconds < LONG else 1, min(MOST_PASSES, int(TURN_SECONDS / seconds)))


def _order(policies: Sequence[str], i: int) -> Iterator[str]:
    """The turns of a round, the first policy's after every few others."""
    first, others = policies[0], there_and_back(policies[1:], i)
    for start in range(0, max(1, len(others)), BETWEEN):
        yield from (first, *others[start : start + BETWEEN])


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
