"""What a node's backward needs from the forward pass, and whether a schedule kept it or brought it back, and when."""

from __future__ import annotations

from dataclasses import dataclass

from fastbp.graph.graph import Node
from fastbp.schedule.actions import Backward, BringsBack, Forward, Reduce, Unpack, written
from fastbp.schedule.effects import Effects
from fastbp.schedule.local import Rows, parted, tensor_of
from fastbp.schedule.schedule import Schedule


@dataclass(frozen=True)
class Run:
    """An action that brings a tensor back, as a word, and its tick."""

    tick: int
    action: str


@dataclass(frozen=True)
class Need:
    """A tensor that backward reads. `how` is "kept" or "recomputed" (by `runs`) for an activation, "unpacked" for one
    that waited as bfloat16, and "there" for what is no activation: parameters, tokens.
    """

    tensor: str
    kind: str
    shape: tuple[int, ...]
    nbytes: int
    how: str
    runs: tuple[Run, ...] = ()


@dataclass(frozen=True)
class _Write:
    tick: int
    action: Forward | Unpack
    rows: Rows


class Needs:
    """The needs of all nodes under one schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.graph = schedule, schedule.graph
        effects = Effects(self.graph)
        self.ticks: dict[str, list[int]] = {}
        """Ticks of every node's backward: one a slice."""
        self.sums: dict[str, list[int]] = {}
        """Ticks at which what a node sends back is added to what is there."""
        self._last: dict[tuple[str, str], dict[int, _Write]] = {}
        writes: dict[str, list[_Write]] = {}
        for tick, action in enumerate(schedule.actions):
            rows = effects.token_rows(action) or (0, self.graph.tokens)
            if isinstance(action, Forward | Unpack):
                for name in effects.of(action).writes:
                    writes.setdefault(tensor_of(name), []).append(_Write(tick, action, rows))
            elif isinstance(action, Backward):
                self.ticks.setdefault(action.node, []).append(tick)
                for name in self.graph.by_name[action.node].backward_reads:
                    self._read(action.node, name, rows, writes.get(name, []))
            elif isinstance(action, Reduce):
                self.sums.setdefault(parted(action.source)[0].partition("+")[2], []).append(tick)

    def _read(self, node: str, name: str, rows: Rows, writes: list[_Write]) -> None:
        """Remembers who wrote what a backward reads of a tensor: the last to write each of its rows."""
        found, open_rows = self._last.setdefault((node, name), {}), set(range(*rows))
        for write in reversed(writes):
            own = set(range(*write.rows))
            if open_rows & own:
                found[write.tick] = write
                open_rows -= own
            if not open_rows:
                return

    def of(self, node: Node) -> tuple[Need, ...]:
        """What a node's backward reads, in the op's order."""
        return tuple(self._need(node, name) for name in node.backward_reads)

    def _need(self, node: Node, name: str) -> Need:
        tensor = self.graph.tensors[name]
        runs = [self._last[node.name, name][tick] for tick in sorted(self._last[node.name, name])]
        again = tuple(Run(run.tick, written(run.action)) for run in runs if isinstance(run.action, BringsBack))
        if name in self.schedule.plan.exact:
            again = ()  # a kept norm's mean is written once more where its output is brought back, and is the same
        how = "kept" if tensor.kind == "activation" else "there"
        if again:
            how = "unpacked" if all(isinstance(run.action, Unpack) for run in runs) else "recomputed"
        return Need(name, tensor.kind, tensor.shape, self.graph.bytes_of(name), how, again)
