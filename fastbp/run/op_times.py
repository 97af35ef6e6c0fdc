"""Where an update's time goes: its program cut into one piece an op and direction (or another key of its calls), each
piece under the clock.

The pieces run in the update's own order, on the data and the cache that it would find, by all workers. A piece takes a
wake-up of the workers more than inside the update, a few microseconds: what that takes at least is left out.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Generic, TypeVar

from fastbp.ops.registry import OPS
from fastbp.run.decoder import Decoder
from fastbp.run.instruction import Instruction
from fastbp.run.peephole import fuse
from fastbp.run.program import Program
from fastbp.schedule.actions import Action, Backward, Converts, Free, Reduce
from fastbp.schedule.effects import sliced_dims

OpKey = tuple[str, str]
"""An op's name and a direction; "linear+gelu" where one kernel does the calls of both."""

Key = TypeVar("Key", bound=Hashable)
"""What calls are told apart by."""
Keyed = Callable[[Instruction], Key]
SHORTEST = 1e-9
"""Seconds: no piece takes less, however long a wake-up."""


def op_and_direction(instruction: Instruction) -> OpKey:
    """One piece an op and direction."""
    return instruction.op, instruction.direction


@dataclass(frozen=True)
class Work:
    """What an op does in an update, in one direction: FLOPs of matrix products, and bytes that it moves at least."""

    product_flops: int = 0
    moved_bytes: int = 0

    def plus(self, other: Work) -> Work:
        return Work(self.product_flops + other.product_flops, self.moved_bytes + other.moved_bytes)


class OpTimes(Generic[Key]):
    """An update's program in pieces. `run()` runs them all once and gives the seconds of each key, `wake_up_seconds` a
    piece taken off.
    """

    def __init__(self, decoder: Decoder, program: Program, keyed: Keyed[Key], wake_up_seconds: float = 0.0) -> None:
        self._runner, self._wake_up = decoder.runner, wake_up_seconds
        self._pieces = [
            (key, decoder.in_parts(Program(tuple(group)))) for key, group in groupby(_fused(program), keyed)
        ]

    def run(self) -> dict[Key, float]:
        """Seconds of each key, summed over its calls."""
        seconds: dict[Key, float] = defaultdict(float)
        for key, piece in self._pieces:
            start = time.perf_counter()
            self._runner.run(piece)
            seconds[key] += max(SHORTEST, time.perf_counter() - start - self._wake_up)
        return dict(seconds)


def _fused(program: Program) -> tuple[Instruction, ...]:
    """The calls that a run makes."""
    return program.instructions if program.compiled is None else fuse(program.instructions)


ADAMW = Instruction(0, "adamw", "adamw", "forward", ())
"""Stands for the optimiser's call, which is no action's."""


def calls_of(decoder: Decoder, keyed: Keyed[Key]) -> Counter[Key]:
    """How many kernel calls of each key a pass and AdamW make. One of several phases counts once."""
    by_tick = {instruction.tick: keyed(instruction) for instruction in _fused(decoder.gradients_program)}
    return Counter([*by_tick.values(), keyed(ADAMW)])


def work_of(decoder: Decoder, keyed: Keyed[Key]) -> Mapping[Key, Work]:
    """What the calls of each key do in a pass of the decoder's schedule; AdamW steps over its parameters.

    A fused pair does the work of both: the bytes of what passes between them too, though they stay in the cache.
    """
    total: dict[Key, Work] = defaultdict(Work)
    by_tick = {tick: _work(decoder, action) for tick, action in enumerate(decoder.schedule.actions)}
    apart = iter(decoder.gradients_program.instructions)
    for instruction in _fused(decoder.gradients_program):
        for _ in instruction.op.split("+"):
            # A call of several phases does its work once.
            work = by_tick.pop(next(apart).tick, Work())
            total[keyed(instruction)] = total[keyed(instruction)].plus(work)
    sizes = {"Z": decoder.parameters.shapes.size, "K": decoder.parameters.shapes.decayed}
    adamw = OPS["adamw"]
    moved = adamw.elements_moved("forward", adamw.extended(sizes)) * decoder.graph.itemsize
    return {**total, keyed(ADAMW): Work(0, moved)}


def _work(decoder: Decoder, action: Action) -> Work:
    graph = decoder.graph
    if isinstance(action, Reduce):
        tensor = graph.tensors[action.source.removeprefix("d:").split("+")[0]]
        return Work(0, 3 * prod(tensor.shape) * graph.itemsize)
    if isinstance(action, Converts):
        size = graph.tensors[action.tensor].size
        start, stop = action.rows or (0, graph.tokens)
        return Work(0, size // graph.tokens * (stop - start) * (graph.itemsize + 2))
    if isinstance(action, Free):
        return Work()
    node = graph.by_name[action.node]
    direction = "backward" if isinstance(action, Backward) else "forward"
    dims = sliced_dims(node, action.rows)
    forward, backward = node.op.products(dims)
    flops = forward if direction == "forward" else backward
    if direction == "backward" and node.op.backward_yields_outputs:
        flops += forward
    return Work(flops, node.op.elements_moved(direction, dims) * graph.itemsize)
