"""What is live at each action of a part of a schedule, by name and by how much of it: sets that are found once, for few
slices, and priced for slices of every size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fastbp.graph.graph import Graph
from fastbp.schedule.actions import Action, Backward, Forward, Free, Recompute, Unpack
from fastbp.schedule.effects import Effects, buffer_bytes
from fastbp.schedule.local import parted
from fastbp.schedule.plan import Plan
from fastbp.schedule.schedule import with_frees
from fastbp.schedule.simulate import padded

Scratch = tuple[str, bool, str] | None
"""What an action's scratch depends on: its node, whether it runs backward, and how much of it at a time."""

Held = tuple[str, str]
"""A tensor's or gradient's name, and how much of it: "whole", "outer" (a slice of sequences) or "inner" (of rows)."""


@dataclass(frozen=True)
class Live:
    """What is live at some action of a block, and its scratch."""

    held: frozenset[Held]
    scratch: Scratch


class Prices:
    """Bytes of live sets whose slices hold so many `rows`."""

    def __init__(self, graph: Graph, effects: Effects, rows: Mapping[str, int]) -> None:
        self.graph, self.effects, self.rows = graph, effects, rows
        self._held: dict[Held, int] = {}
        self._scratch: dict[Scratch, int] = {}

    def peak(self, sets: Iterable[Live]) -> int:
        """The largest."""
        return max(sum(map(self._bytes_of, live.held)) + self._bytes_of_scratch(live.scratch) for live in sets)

    def _bytes_of(self, held: Held) -> int:
        if held not in self._held:
            name, level = held
            self._held[held] = padded(buffer_bytes(self.graph, name, self.rows[level]))
        return self._held[held]

    def _bytes_of_scratch(self, scratch: Scratch) -> int:
        if scratch not in self._scratch:
            total = 0
            if scratch:
                name, backward, level = scratch
                units = self.rows[level] // self.graph.tokens_per_unit(self.graph.by_name[name])
                sizes = self.effects.scratch(name, backward, units)
                total = sum(padded(size * self.graph.itemsize) for _, size in sizes)
            self._scratch[scratch] = total
        return self._scratch[scratch]


def largest(sets: Sequence[Live]) -> tuple[Live, ...]:
    """The live sets that lie within no other with the same scratch."""
    by_scratch: dict[Scratch, list[frozenset[Held]]] = defaultdict(list)
    for live in sorted(sets, key=lambda live: -len(live.held)):
        found = by_scratch[live.scratch]
        if not any(live.held <= other for other in found):
            found.append(live.held)
    return tuple(Live(held, scratch) for scratch, found in by_scratch.items() for held in found)


def live_sets(
    actions: Sequence[Action], plan: Plan, effects: Effects, levels: Mapping[int, str], stream: str
) -> list[Live]:
    """What is live at each action. `levels` names the sizes of slices in tokens; `stream`, the gradient that is there
    before, from the first action of backward on.
    """
    live: set[Held] = set()
    found, backward = [], False

    def held(name: str) -> Held:
        rows = parted(name)[1]
        return parted(name)[0], levels[rows[1] - rows[0]] if rows else "whole"

    for action in with_frees(list(actions), plan, effects):
        if isinstance(action, Free):
            live.discard(held(action.tensor))
            continue
        backward = backward or isinstance(action, Recompute | Backward | Unpack)
        effect = effects.of(action)
        live.difference_update(held(old) for _, old in getattr(action, "takes", ()))
        live.update(map(held, effect.reads), map(held, effect.writes))
        live.difference_update(held(old) for _, old in getattr(action, "takes", ()))
        if backward:
            live.add((stream, "whole"))
        found.append(Live(frozenset(live), _scratch(action, effects, levels)))
    return found


def _scratch(action: Action, effects: Effects, levels: Mapping[int, str]) -> Scratch:
    if not isinstance(action, Forward | Backward):
        return None
    rows = effects.token_rows(action)
    return action.node, isinstance(action, Backward), levels[rows[1] - rows[0]] if rows else "whole"
