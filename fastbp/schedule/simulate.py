"""Schedule → bytes at every tick and extra FLOPs. The only memory model there is.

A tick is the index of an action. A buffer is live in [born, dies): from the first action that writes it to the one that
frees it. Scratch lives for its action alone. Every buffer is counted at its size rounded up to 64 bytes, a cache line,
which is how the arena places it. A schedule that reads what is not there, frees twice, walks rows twice or leaves
something behind is refused.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

from fastbp.graph.graph import Graph
from fastbp.schedule.actions import Action, Backward, Forward, Free, Recompute, Reduce, written
from fastbp.schedule.effects import Effects, sliced_dims
from fastbp.schedule.schedule import Schedule

ALIGNMENT = 64
CATEGORIES = ("kept", "working", "gradients", "logits", "scratch")


class IllegalSchedule(ValueError):
    """A schedule that would read or free what is not there; the message names the tick, the action and the tensor."""


def padded(nbytes: int) -> int:
    """Bytes that a buffer of `nbytes` takes in the arena."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Buffer:
    """Bytes with a lifetime: the tensors that hold it one after another, and [born, dies) in ticks."""

    names: tuple[str, ...]
    nbytes: int
    born: int
    dies: int
    category: str


@dataclass(frozen=True)
class Simulation:
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


@dataclass
class _Machine:
    """Runs a schedule on bytes instead of values."""

    graph: Graph
    keep: frozenset[str]
    live: dict[str, _Open] = field(default_factory=dict)
    closed: list[Buffer] = field(default_factory=list)
    now: int = 0
    parts: Counter[str] = field(default_factory=Counter)
    walked: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Rows that were walked forward and backward, by (letter, node)."""

    def refuse(self, action: Action, why: str) -> IllegalSchedule:
        return IllegalSchedule(f"tick {self.now}, {written(action)}: {why}")

    def nbytes(self, name: str) -> int:
        tensor = name.removeprefix("d:").split("+")[0] if name.startswith("d:") else name
        return padded(self.graph.bytes_of(tensor))

    def category(self, name: str, action: Action) -> str:
        if name.startswith("d:"):
            return "gradients"
        return "kept" if name in self.keep and not isinstance(action, Recompute) else "working"

    def close(self, opened: _Open, dies: int) -> None:
        self.closed.append(Buffer(tuple(opened.names), opened.nbytes, opened.born, dies, opened.category))

    def take(self, action: Action, new: str, old: str, effects: Effects) -> None:
        """`new` is written over `old`."""
        if old not in self.live or old not in effects.of(action).reads:
            raise self.refuse(action, f"{new} takes the buffer of {old}, which it does not read")
        if new in self.live:
            raise self.refuse(action, f"{new} is live already")
        if self.nbytes(new) != self.nbytes(old):
            raise self.refuse(action, f"{new} takes the buffer of {old}, which has another size")
        if (new, old) not in effects.in_place(action):
            raise self.refuse(action, f"{new} takes the buffer of {old}, over which its op cannot write it")
        opened = self.live.pop(old)
        if self.category(new, action) == "kept":
            opened.category = "kept"
        opened.names.append(new)
        self.live[new] = opened

    def walk(self, action: Forward | Backward) -> None:
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
        self.close(self.live.pop(action.tensor), self.now)


def simulate(schedule: Schedule) -> Simulation:
    """Runs a schedule on bytes. Raises IllegalSchedule where it does not hold together."""
    effects = Effects(schedule.graph)
    machine = _Machine(schedule.graph, schedule.plan.keep)
    live_bytes, recomputed = [], 0
    for tick, action in enumerate(schedule.actions):
        machine.now = tick
        if isinstance(action, Free):
            machine.free(action)
            live_bytes.append(sum(opened.nbytes for opened in machine.live.values()))
            continue
        scratch = _run(machine, effects, action)
        live_bytes.append(sum(opened.nbytes for opened in machine.live.values()) + scratch)
        if isinstance(action, Recompute):
            node = schedule.graph.by_name[action.node]
            recomputed += sum(f(sliced_dims(node, action.rows))[0] for f in (node.op.products, node.op.pointwise))
    machine.finish()
    return Simulation(schedule, tuple(machine.closed), tuple(live_bytes), recomputed)


def _run(machine: _Machine, effects: Effects, action: Action) -> int:
    """One action that computes; returns the bytes of its scratch."""
    effect = effects.of(action)
    for name in effect.reads:
        if name not in machine.live:
            raise machine.refuse(action, f"it reads {name}, which is not live")
    if isinstance(action, Forward | Backward) and not isinstance(action, Recompute):
        machine.walk(action)
    _check_parts(machine, effects, action)
    for new, old in getattr(action, "takes", ()):
        machine.take(action, new, old, effects)
    for name in effect.writes:
        if name not in machine.live:
            machine.live[name] = _Open([name], machine.nbytes(name), machine.now, machine.category(name, action))
    total = 0
    for port, size in effect.scratch:
        nbytes = padded(size * machine.graph.itemsize)
        category = "logits" if port == "z" else "scratch"
        machine.closed.append(Buffer((f"{port} of {written(action)}",), nbytes, machine.now, machine.now + 1, category))
        total += nbytes
    return total


def _check_parts(machine: _Machine, effects: Effects, action: Action) -> None:
    """A gradient that shares the stream's buffer must be read after all of its own parts and before the next one is
    added.
    """
    if isinstance(action, Reduce):
        machine.parts[action.into] += 1
    elif isinstance(action, Backward):
        node = machine.graph.by_name[action.node]
        for port in node.op.outputs:
            name = effects.buffer(f"d:{node.ports[port]}")
            if machine.parts[name] != effects.parts_before[node.name]:
                there, due = machine.parts[name], effects.parts_before[node.name]
                raise machine.refuse(action, f"{there} parts were added to {name}, {due} are due")
