"""What is live at each action of a part of a schedule, by name and by how much of it: sets that are found once, for few
slices, and priced for slices of every size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fastbp.base.known import Known
from fastbp.graph.graph import Graph
from fastbp.schedule.actions import Action, Backward, BringsBack, RunsNode
from fastbp.schedule.effects import Effects, buffer_bytes
from fastbp.schedule.local import Rows, parted
from fastbp.schedule.plan import Plan
from fastbp.schedule.schedule import with_ends
from fastbp.schedule.simulate import padded

Scratch = tuple[str, bool, str] | None
"""What an action's scratch depends on: its node, whether it runs backward, and how much of it at a time."""

Held = tuple[str, str]
"""A tensor's or gradient's name, and how much of it: "whole", "outer" (a slice of sequences) or "inner" (of rows)."""


class Live(NamedTuple):
    """What is live at some action of a block, and its scratch."""

    held: frozenset[Held]
    scratch: Scratch


class Prices:
    """Bytes of live sets whose slices hold so many `rows`."""

    def __init__(self, graph: Graph, effects: Effects, rows: Mapping[str, int]) -> None:
        self.graph, self.effects, self.rows = graph, effects, rows
        self._held = Known(self._bytes_of)
        self._scratch = Known(self._bytes_of_scratch)

    def peak(self, sets: Iterable[Live]) -> int:
        """The largest."""
        held, scratch = self._held.__getitem__, self._scratch.__getitem__
        return max(sum(map(held, live.held), scratch(live.scratch)) for live in sets)

    def _bytes_of(self, held: Held) -> int:
        name, level = held
        return padded(buffer_bytes(self.graph, name, self.rows[level]))

    def _bytes_of_scratch(self, scratch: Scratch) -> int:
        if scratch is None:
            return 0
        name, backward, level = scratch
        units = self.rows[level] // self.graph.tokens_per_unit(self.graph.by_name[name])
        return sum(padded(size * self.graph.itemsize) for _, size in self.effects.scratch(name, backward, units))


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

    def level_of(name: str) -> Held:
        tensor, rows = parted(name)
        return tensor, levels[rows[1] - rows[0]] if rows else "whole"

    held = Known(level_of).__getitem__
    for action, effect, over in with_ends(actions, plan, effects):
        live.update(map(held, effect.reads), map(held, effect.writes))
        if takes := getattr(action, "takes", ()):
            live.difference_update(held(old) for _, old in takes)
        if backward := backward or isinstance(action, BringsBack | Backward):
            live.add((stream, "whole"))
        found.append(Live(frozenset(live), _scratch(action, effect.rows, effects, levels)))
        if over:
            live.difference_update(map(held, over))
    return found


def _scratch(action: Action, rows: Rows | None, effects: Effects, levels: Mapping[int, str]) -> Scratch:
    if not isinstance(action, RunsNode) or not effects.has_scratch(action.node, isinstance(action, Backward)):
        return None
    return action.node, isinstance(action, Backward), levels[rows[1] - rows[0]] if rows else "whole"
