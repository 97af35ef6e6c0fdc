"""What a picture of memory needs: every tick's action and live bytes, every buffer's place and life, and what it takes
to bring each tensor back. All integers are exact.

A tick's stage is that of its action: Recompute and Unpack bring back ("recompute"), Backward and Reduce go back
("backward"), Forward and Pack go on ("forward"). A Free has the stage of the action before it, behind which it tidies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from fastbp.graph.graph import Graph
from fastbp.memory.layout import Layout
from fastbp.schedule.actions import Action, Backward, Forward, Pack, Recompute, Reduce, Unpack, written
from fastbp.schedule.effects import Effects, forward_flops
from fastbp.schedule.local import parted, tensor_of
from fastbp.schedule.schedule import Schedule
from fastbp.schedule.simulate import CATEGORIES, Buffer, Simulation

STAGES = ("forward", "recompute", "backward")
STAGE_OF: dict[type[Action], str] = {
    Forward: "forward", Pack: "forward", Recompute: "recompute", Unpack: "recompute", Backward: "backward",
    Reduce: "backward",
}  # fmt: skip


@dataclass(frozen=True)
class Held:
    """A tensor in a buffer, in ticks [born, dies). `last_read` is the last tick at which an action reads it there,
    None where none does. `flops` are those of the op that makes it, for its rows; 0 for gradients and scratch.
    """

    tensor: str
    buffer: int
    born: int
    dies: int
    last_read: int | None
    flops: int


@dataclass(frozen=True)
class Peak:
    """The arena's bytes, and the tick at which the most are live: its action and its (tensor, bytes, category), the
    largest first.
    """

    arena_bytes: int
    tick: int
    action: str
    live: tuple[tuple[str, int, str], ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "bytes": self.arena_bytes, "tick": self.tick, "action": self.action,
            "live": [dict(zip(("tensor", "bytes", "category"), each, strict=True)) for each in self.live],
        }  # fmt: skip


@dataclass(frozen=True)
class Timeline:
    """A schedule's memory over its ticks. `live_bytes` has for every category its bytes at every tick; `offsets` the
    address of every buffer in the arena; `held` is sorted by buffer, then by tick.
    """

    actions: tuple[str, ...]
    stages: tuple[str, ...]
    live_bytes: Mapping[str, tuple[int, ...]]
    buffers: tuple[Buffer, ...]
    offsets: tuple[int, ...]
    held: tuple[Held, ...]
    peak: Peak
    budget_bytes: int | None

    def to_json(self) -> dict[str, Any]:
        """Columns instead of rows, the ticks' stages as runs: "stages" has [first tick, stage] wherever it changes."""
        changes = [tick for tick, stage in enumerate(self.stages) if tick == 0 or stage != self.stages[tick - 1]]
        return {
            "actions": list(self.actions),
            "stages": [[tick, self.stages[tick]] for tick in changes],
            "live_bytes": {category: list(column) for category, column in self.live_bytes.items()},
            "buffers": {
                "offset": list(self.offsets),
                "bytes": [buffer.nbytes for buffer in self.buffers],
                "born": [buffer.born for buffer in self.buffers],
                "dies": [buffer.dies for buffer in self.buffers],
                "category": [CATEGORIES.index(buffer.category) for buffer in self.buffers],
            },
            "held": {key: [getattr(each, key) for each in self.held] for key in Held.__dataclass_fields__},
            "categories": list(CATEGORIES),
            "arena_bytes": self.peak.arena_bytes,
            "peak_tick": self.peak.tick,
            "budget_bytes": self.budget_bytes,
        }


def timeline(simulation: Simulation, layout: Layout) -> Timeline:
    """The timeline of a schedule that was simulated and laid out."""
    schedule = simulation.schedule
    return Timeline(
        tuple(map(written, schedule.actions)),
        _stages(schedule),
        _live_bytes(simulation),
        simulation.buffers,
        layout.offsets,
        _held(simulation),
        _peak(simulation, layout),
        schedule.plan.budget_bytes,
    )


def _peak(simulation: Simulation, layout: Layout) -> Peak:
    tick = simulation.peak_tick
    live = tuple((buffer.name_at(tick), buffer.nbytes, buffer.category) for buffer in simulation.live_at(tick))
    return Peak(layout.size_bytes, tick, written(simulation.schedule.actions[tick]), live)


def _stages(schedule: Schedule) -> tuple[str, ...]:
    found, stage = [], STAGES[0]
    for action in schedule.actions:
        stage = STAGE_OF.get(type(action), stage)
        found.append(stage)
    return tuple(found)


def _live_bytes(simulation: Simulation) -> dict[str, tuple[int, ...]]:
    """Every birth adds a buffer's bytes, every death takes them away: the sums of both up to a tick are what lives."""
    ticks, buffers = len(simulation.schedule.actions), simulation.buffers
    change = np.zeros((len(CATEGORIES), ticks + 1), np.int64)
    rows = [CATEGORIES.index(buffer.category) for buffer in buffers]
    sizes = [buffer.nbytes for buffer in buffers]
    np.add.at(change, (rows, [buffer.born for buffer in buffers]), sizes)
    np.subtract.at(change, (rows, [buffer.dies for buffer in buffers]), sizes)
    live = change.cumsum(axis=1)[:, :ticks]
    return {category: tuple(column.tolist()) for category, column in zip(CATEGORIES, live, strict=True)}


def _held(simulation: Simulation) -> tuple[Held, ...]:
    lives = [(index, *life) for index, buffer in enumerate(simulation.buffers) for life in buffer.holds()]
    last, flops = _last_reads(simulation.schedule, lives), _flops_of(simulation.schedule.graph)
    return tuple(
        Held(name, index, born, dies, last.get((index, name)), flops(name, simulation.buffers[index].category))
        for index, name, born, dies in lives
    )


def _last_reads(schedule: Schedule, lives: list[tuple[int, str, int, int]]) -> dict[tuple[int, str], int]:
    """The last tick at which an action reads a tensor, by (buffer, tensor). An action reads before it writes: a tensor
    that takes over another's buffer is there from the next action on.
    """
    begins: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for index, name, born, _ in lives:
        begins[born].append((index, name))
    effects = Effects(schedule.graph)
    home: dict[str, int] = {}
    last: dict[tuple[int, str], int] = {}
    for tick, action in enumerate(schedule.actions):
        for name in effects.of(action).reads:
            last[home[name], name] = tick
        for index, name in begins.get(tick, ()):
            home[name] = index
    return last


def _flops_of(graph: Graph) -> Callable[[str, str], int]:
    """A function that gives the forward FLOPs of what a buffer of some category holds, by name."""

    @cache
    def flops(name: str, category: str) -> int:
        if category not in ("kept", "working"):
            return 0
        node, rows = graph.producer[tensor_of(name)], parted(name)[1]
        per_unit = graph.tokens_per_unit(node)
        return forward_flops(node, (rows[0] // per_unit, rows[1] // per_unit) if rows else None)

    return flops
