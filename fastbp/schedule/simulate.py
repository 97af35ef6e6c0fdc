"""Schedule → bytes at every tick and extra FLOPs. The only memory model there is.

A tick is the index of an action. A buffer is live in [born, dies): from the first action that writes it to the one that
frees it. Scratch lives for its action alone. Every buffer is counted at its size rounded up to 64 bytes, a cache line,
which is how the arena places it. A schedule that reads what is not there, frees twice, walks rows twice or leaves
something behind is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fastbp.base.known import Known
from fastbp.base.shown import Fact, Shown
from fastbp.base.units import format_bytes, format_count
from fastbp.graph.graph import Graph
from fastbp.schedule.actions import Action, Backward, Converts, Free, Recompute, Reduce, RunsNode, written
from fastbp.schedule.effects import Effect, Effects, buffer_bytes, forward_flops
from fastbp.schedule.local import PACKED, Rows, parted
from fastbp.schedule.plan import Plan
from fastbp.schedule.schedule import Schedule

ALIGNMENT = 64
CATEGORIES = ("kept", "working", "gradients", "logits", "scratch")


class IllegalSchedule(ValueError):
    """A schedule that would read or free what is not there; the message names the tick, the action and the tensor."""


def padded(nbytes: int) -> int:
    """Bytes that a buffer of `nbytes` takes in the arena."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Buffer(NamedTuple):
    """Bytes with a lifetime: the tensors that hold it one after another, and [born, dies) in ticks. `taken` has the
    tick at which each but the first takes it over: the action that reads the one before and writes the next.
    """

    names: tuple[str, ...]
    nbytes: int
    born: int
    dies: int
    category: str
    taken: tuple[int, ...] = ()

    def holds(self) -> Iterator[tuple[str, int, int]]:
        """Every tensor with the ticks [from, until) at which an action finds it here."""
        for name, start, stop in zip(self.names, (self.born, *self.taken), (*self.taken, self.dies - 1), strict=True):
            yield name, start, stop + 1

    def name_at(self, tick: int) -> str:
        """The tensor that the buffer holds during an action, or gets from it."""
        return self.names[sum(taken <= tick for taken in self.taken)]


@dataclass(frozen=True)
class Simulation(Shown):
    """What a schedule needs. `live_bytes[t]` is the sum of all live buffers during action t."""

    schedule: Schedule
    buffers: tuple[Buffer, ...]
    live_bytes: tuple[int, ...]
    recomputed_flops: int

    @cached_property
    def peak_tick(self) -> int:
        return max(range(len(self.live_bytes)), key=self.live_bytes.__getitem__)

    @property
    def peak_bytes(self) -> int:
        return self.live_bytes[self.peak_tick]

    @property
    def extra_flops_share(self) -> float:
        """Recomputed FLOPs over those of one forward and backward pass."""
        return self.recomputed_flops / self.schedule.graph.flops_per_pass

    @property
    def kept_bytes(self) -> int:
        """Bytes that wait for backward when forward is over."""
        return sum(buffer.nbytes for buffer in self.buffers if buffer.category == "kept")

    def facts(self) -> list[Fact]:
        actions, peak = self.schedule.actions, self.peak_tick
        totals = self.bytes_by_category(peak).items()
        return [
            ("schedule", f"{format_count(len(actions))} actions of the plan {self.schedule.plan.policy}"),
            ("peak", f"{format_bytes(self.peak_bytes)} live ({self.peak_bytes} bytes), at tick {peak}:"
             f" {written(actions[peak])}"),
            ("of these", ", ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in totals if nbytes)),
            ("kept", f"{format_bytes(self.kept_bytes)} from forward to backward"),
            ("recomputed", f"{self.extra_flops_share:.1%} more FLOPs"),
        ]  # fmt: skip

    def live_at(self, tick: int) -> tuple[Buffer, ...]:
        """The buffers that are live during an action, the largest first."""
        live = (buffer for buffer in self.buffers if buffer.born <= tick < buffer.dies)
        return tuple(sorted(live, key=lambda buffer: -buffer.nbytes))

    def bytes_by_category(self, tick: int) -> dict[str, int]:
        totals = Counter({category: 0 for category in CATEGORIES})
        for buffer in self.live_at(tick):
            totals[buffer.category] += buffer.nbytes
        return dict(totals)


@dataclass
class _Open:
    """A buffer that is still live."""

    names: list[str]
    nbytes: int
    born: int
    category: str
    begin: int
    end: int
    """The rows that it holds, in tokens."""
    filled: int
    """Rows up to here were written."""
    taken: list[int] = field(default_factory=list)


@dataclass
class _Machine:
    """Runs a schedule on bytes instead of values."""

    graph: Graph
    plan: Plan
    live: dict[str, _Open] = field(default_factory=dict)
    live_bytes: int = 0
    closed: list[Buffer] = field(default_factory=list)
    now: int = 0
    parts: dict[str, np.ndarray] = field(default_factory=dict)
    """How many parts each row of a gradient has taken in."""
    walked: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Rows that were walked forward and backward, by (letter, node)."""

    def refuse(self, action: Action, why: str) -> IllegalSchedule:
        return IllegalSchedule(f"tick {self.now}, {written(action)}: {why}")

    @cached_property
    def everything(self) -> Rows:
        return 0, self.graph.tokens

    @cached_property
    def sizes(self) -> Known[tuple[str, int | None], int]:
        return Known(self._bytes_of)

    def _bytes_of(self, part: tuple[str, int | None]) -> int:
        """Of so many rows of a tensor or gradient; None for all."""
        return padded(buffer_bytes(self.graph, *part))

    def extent(self, name: str) -> tuple[Rows, int]:
        """The rows that a buffer holds, and its bytes."""
        tensor, rows = parted(name)
        return rows or self.everything, self.sizes[tensor, rows[1] - rows[0] if rows else None]

    def read(self, action: Action, name: str, rows: Rows) -> None:
        """Refuses what is not there, or not there yet."""
        if name not in self.live:
            raise self.refuse(action, f"it reads {name}, which is not live")
        opened = self.live[name]
        if rows[0] < opened.begin or rows[1] > opened.filled:
            raise self.refuse(action, f"it reads rows {rows} of {name}, which has {self._written(name)}")

    def write(self, action: Action, name: str, rows: Rows) -> None:
        """A buffer begins with its first row and grows without a gap."""
        opened = self.live.get(name)
        if opened is None:
            (begin, end), nbytes = self.extent(name)
            opened = _Open([name], nbytes, self.now, self.category(name, action), begin, end, begin)
            self.live[name] = opened
            self.live_bytes += opened.nbytes
        if not opened.begin <= rows[0] <= opened.filled or rows[1] > opened.end:
            raise self.refuse(action, f"it writes rows {rows} of {name}, which has {self._written(name)}")
        opened.filled = max(opened.filled, rows[1])

    def _written(self, name: str) -> Rows:
        return self.live[name].begin, self.live[name].filled

    def add_part(self, name: str, rows: Rows) -> None:
        if name not in self.parts:
            self.parts[name] = np.zeros(self.graph.tokens, np.int32)
        self.parts[name][slice(*rows)] += 1

    def parts_but(self, due: int, name: str, rows: Rows) -> int | None:
        """How many parts some row of a gradient has taken in, if not as many as are due."""
        if name not in self.parts:
            return 0 if due else None
        there = self.parts[name][slice(*rows)]
        wrong = there[there != due]
        return int(wrong[0]) if wrong.size else None

    def category(self, name: str, action: Action) -> str:
        if name.startswith("d:"):
            return "gradients"
        kept = name.startswith(PACKED) or (name in self.plan.exact and not isinstance(action, Recompute))
        return "kept" if kept else "working"

    def take(self, action: Action, effect: Effect, new: str, old: str) -> None:
        """`new` is written over `old`."""
        if old not in self.live or old not in effect.reads:
            raise self.refuse(action, f"{new} takes the buffer of {old}, which it does not read")
        if new in self.live:
            raise self.refuse(action, f"{new} is live already")
        rows, nbytes = self.extent(new)
        if nbytes != self.live[old].nbytes:
            raise self.refuse(action, f"{new} takes the buffer of {old}, which has another size")
        if (new, old) not in effect.in_place:
            raise self.refuse(action, f"{new} takes the buffer of {old}, over which its op cannot write it")
        opened = self.live.pop(old)
        if self.category(new, action) == "kept":
            opened.category = "kept"
        opened.names.append(new)
        opened.taken.append(self.now)
        opened.begin, opened.end = rows
        opened.filled = opened.begin
        self.live[new] = opened

    def walk(self, action: RunsNode) -> None:
        """Slices come in order, each row once: gradients of parameters accumulate."""
        node, key = self.graph.by_name[action.node], (action.letter, action.node)
        start, stop = action.rows or (0, node.rows)
        if start != self.walked[key]:
            raise self.refuse(action, f"it begins at row {start}, {self.walked[key]} is due")
        self.walked[key] = stop

    def finish(self) -> None:
        """Nothing is left, and whatever was begun was walked to its end."""
        if self.live:
            raise IllegalSchedule(f"at the end {', '.join(self.live)} is still live")
        if any(letter == Backward.letter for letter, _ in self.walked):
            self.walked.update({(Backward.letter, node.name): 0 for node in self.graph.nodes if node.op.backward})
        for (letter, name), rows in self.walked.items():
            due = self.graph.by_name[name].rows
            if rows != due:
                raise IllegalSchedule(f"at the end {letter} {name} has walked {rows} of {due} rows")

    def free(self, action: Free) -> None:
        if action.tensor not in self.live:
            raise self.refuse(action, "it is not live")
        opened = self.live.pop(action.tensor)
        self.live_bytes -= opened.nbytes
        self.closed.append(
            Buffer(tuple(opened.names), opened.nbytes, opened.born, self.now, opened.category, tuple(opened.taken))
        )


def simulate(schedule: Schedule, effects: Effects | None = None) -> Simulation:
    """Runs a schedule on bytes. `effects` are its graph's, where some are known. Raises IllegalSchedule where it does
    not hold together.
    """
    effects = effects or Effects(schedule.graph)
    machine = _Machine(schedule.graph, schedule.plan)
    live_bytes, recomputed = [], 0
    for tick, action in enumerate(schedule.actions):
        machine.now = tick
        if isinstance(action, Free):
            machine.free(action)
            live_bytes.append(machine.live_bytes)
            continue
        scratch = _run(machine, effects, action)
        live_bytes.append(machine.live_bytes + scratch)
        if isinstance(action, Recompute):
            recomputed += forward_flops(schedule.graph.by_name[action.node], action.rows)
    machine.finish()
    return Simulation(schedule, tuple(machine.closed), tuple(live_bytes), recomputed)


def _run(machine: _Machine, effects: Effects, action: Action) -> int:
    """One action that computes; returns the bytes of its scratch."""
    effect = effects.of(action)
    rows = effect.rows or machine.everything
    if isinstance(action, Converts) and action.tensor not in machine.plan.packed:
        raise machine.refuse(action, "its plan does not pack it")
    for name in effect.reads:
        machine.read(action, name, rows)
    if isinstance(action, RunsNode) and not isinstance(action, Recompute):
        machine.walk(action)
    _check_parts(machine, effects, action, rows)
    for new, old in getattr(action, "takes", ()):
        machine.take(action, effect, new, old)
    for name in effect.writes:
        machine.write(action, name, rows)
    total = 0
    call = written(action) if effect.scratch else ""
    for port, size in effect.scratch:
        nbytes = padded(size * machine.graph.itemsize)
        category = "logits" if port == "z" else "scratch"
        machine.closed.append(Buffer((f"{port} of {call}",), nbytes, machine.now, machine.now + 1, category))
        total += nbytes
    return total


def _check_parts(machine: _Machine, effects: Effects, action: Action, rows: Rows) -> None:
    """A gradient that shares the stream's buffer must be read after all of its own parts and before the next one is
    added, row by row.
    """
    if isinstance(action, Reduce):
        machine.add_part(action.into, rows)
    elif isinstance(action, Backward):
        due = effects.parts_before[action.node]
        for name in effects.gradients_read[action.node]:
            found = machine.parts_but(due, name, rows)
            if found is not None:
                raise machine.refuse(action, f"{found} parts were added to {name}, {due} are due")
