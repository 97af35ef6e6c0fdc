"""The seconds of an update by op and by block, as `fastbp profile --json` prints them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar

from fastbp.memory.timeline import STAGES
from fastbp.run.calls import CallKey, by_block
from fastbp.run.limits import Limits
from fastbp.run.measure import Spread
from fastbp.run.op_times import Work, calls_of, work_of
from fastbp.schedule.actions import Recompute
from fastbp.schedule.local import tensor_of
from fastbp.schedule.schedule import Schedule
from fastbp.schedule.simulate import Simulation
from fastbp.train.benchmark import Samples, measure_update, sample_calls
from fastbp.train.trainer import Trainer

Row = dict[str, Any]
Group = TypeVar("Group", bound=Hashable)

LEAST_ROUNDS = 3
"""Of the calls and of whole updates, however long these take."""

OUTSIDE = "embedding and head"
"""What the rows of blocks call the work that belongs to none; the optimiser's is in neither."""


@dataclass(frozen=True)
class CallTimes:
    """Samples of every call key in the same rounds, what the calls do, and how many there are in an update."""

    samples: Mapping[CallKey, Samples]
    work: Mapping[CallKey, Work]
    calls: Mapping[CallKey, int]

    def seconds_by(self, group: Callable[[CallKey], Group | None]) -> dict[Group, float]:
        """The median over the rounds of each group's sum; keys whose group is None are left out."""
        return {name: Spread.of(found.seconds).median for name, (found, _) in self._grouped(group).items()}

    def _grouped(self, group: Callable[[CallKey], Group | None]) -> dict[Group, tuple[Samples, list[CallKey]]]:
        members: dict[Group, list[CallKey]] = defaultdict(list)
        for key in self.samples:
            name = group(key)
            if name is not None:
                members[name].append(key)
        return {
            name: (reduce(Samples.beside, (self.samples[key] for key in keys)), keys) for name, keys in members.items()
        }

    def op_rows(self) -> list[Row]:
        """One an op and direction, the most expensive first; shares are of the sum of them all."""
        grouped = self._grouped(lambda key: (key.op, key.direction))
        seconds = {name: Spread.of(found.seconds).median for name, (found, _) in grouped.items()}
        total = sum(seconds.values())
        rows = []
        for (op, direction), (found, keys) in grouped.items():
            work = reduce(Work.plus, (self.work[key] for key in keys))
            taken = seconds[op, direction]
            rows.append({
                "op": op, "direction": direction, "calls": sum(self.calls[key] for key in keys),
                "seconds": taken, "share": taken / total,
                "product_flops": work.product_flops, "moved_bytes": work.moved_bytes,
                "gflops": work.product_flops / taken / 1e9 if work.product_flops else None,
                "gb_per_s": work.moved_bytes / taken / 1e9,
                "share_of_limit": found.share(work.product_flops or work.moved_bytes).median,
                "limit": "FMA peak" if work.product_flops else "memory bandwidth",
            })  # fmt: skip
        return sorted(rows, key=lambda row: -row["seconds"])


def measure_calls(trainer: Trainer, limits: Limits, seconds: float) -> CallTimes:
    """The calls of an update, each key's under the clock."""
    keyed = by_block(trainer.decoder)
    samples = sample_calls(trainer, limits, seconds, keyed, LEAST_ROUNDS)
    return CallTimes(samples, work_of(trainer.decoder, keyed), calls_of(trainer.decoder, keyed))


def block_rows(times: CallTimes, simulation: Simulation) -> list[Row]:
    """One a block, and one for what lies outside, the optimiser left out."""
    graph = simulation.schedule.graph
    seconds = times.seconds_by(lambda key: None if key.op == "adamw" else (key.block, key.direction))
    kept: dict[int | None, int] = defaultdict(int)
    for buffer in simulation.buffers:
        if buffer.category == "kept":
            kept[graph.producer[tensor_of(buffer.names[0])].block] += buffer.nbytes
    again = recomputed_bytes(simulation.schedule)
    return [
        {
            "block": OUTSIDE if block is None else block,
            **{f"{direction}_seconds": seconds.get((block, direction), 0.0) for direction in STAGES},
            "kept_bytes": kept[block], "recomputed_bytes": again[block],
        }
        for block in (*range(graph.blocks), None)
    ]  # fmt: skip


def recomputed_bytes(schedule: Schedule) -> dict[int | None, int]:
    """Bytes of activations that recomputations write, by block."""
    graph = schedule.graph
    found: dict[int | None, int] = defaultdict(int)
    for action in schedule.actions:
        if isinstance(action, Recompute):
            node = graph.by_name[action.node]
            rows = action.rows[1] - action.rows[0] if action.rows else node.rows
            found[node.block] += sum(graph.bytes_of(name) for name in node.outputs) * rows // node.rows
    return found


def update_row(trainer: Trainer, limits: Limits, seconds: float, last: float | None = None) -> Row:
    """Whole updates; `last` as in `measure_update`."""
    row = measure_update(trainer, limits, seconds, LEAST_ROUNDS, last)
    low, high = row.pop("seconds_range")
    return row | {"seconds": {"median": row["seconds"], "min": low, "max": high}}
