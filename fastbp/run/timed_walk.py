"""Forward and backward through a decoder under one plan, timed whole and call by call.

What the calls take one by one is scaled to add up to a whole pass, as in training: fused, without a rest between them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import chain

from fastbp.graph.graph import Graph, Node
from fastbp.policy.cost import AGAIN, BACKWARD, FORWARD, when_kept
from fastbp.policy.named import short_name
from fastbp.run.barrier import wake_up
from fastbp.run.decoder import Decoder
from fastbp.run.instruction import Instruction
from fastbp.run.measure import seconds_of, undisturbed
from fastbp.run.op_times import SHORTEST
from fastbp.run.program import Program
from fastbp.schedule.actions import Backward, Converts, Forward, Recompute, Reduce, RunsNode
from fastbp.schedule.plan import Plan
from fastbp.schedule.schedule import Schedule

CALL_BY_CALL = 3
"""How often calls run one by one in a place."""
SHORT = 0.05
"""Seconds of passes that run once more before they count: after another plan's they would find the caches cold."""

Key = tuple[str, str, int]
"""A node's name within its block, when it runs, and the rows of a call."""
Kind = tuple[Key, str, int]
"""Calls that take as long as each other."""


class Clock:
    """Seconds of a decoder's programs, without what waking the workers takes."""

    def __init__(self, decoder: Decoder) -> None:
        self._runner = decoder.runner
        self._wake_up = wake_up(decoder.runner.workers) if decoder.backend.compiled else 0.0

    def seconds(self, program: Program) -> float:
        return max(SHORTEST, seconds_of(lambda: self._runner.run(program)) - self._wake_up)


class TimedWalk:
    """Runs a plan, whose blocks are all alike, in a decoder's memory. `run(place)` gives the seconds of the forward and
    of the backward pass; `seconds` what each node takes over all rows.
    """

    def __init__(self, decoder: Decoder, plan: Plan, clock: Clock) -> None:
        self._tokens, self._clock = decoder.graph.tokens, clock
        schedule, program = decoder.under(plan, scattered=True)
        keys = _keys(schedule)
        halves = [[(keys(each), each) for each in half] for half in _halves(schedule, program)]
        self._covered: dict[Key, int] = defaultdict(int)
        for key, instruction in chain(*halves):
            self._covered[key] += 0 if _part(schedule, instruction) else _rows(schedule, instruction)
        self._wholes = [decoder.in_parts(Program(tuple(each for _, each in half))) for half in halves]
        self._calls = [
            [((key, each.op, _part(schedule, each)), decoder.in_parts(Program((each,)))) for key, each in half]
            for half in halves
        ]
        self._one_by_one: dict[str, list[list[list[float]]]] = defaultdict(list)
        self._short = sum(map(clock.seconds, self._wholes)) < SHORT

    def run(self, place: str) -> list[float]:
        """The seconds of both passes. The first few times in a place its calls run one by one as well."""
        if len(self._one_by_one[place]) < CALL_BY_CALL:
            self._one_by_one[place].append(
                [[self._clock.seconds(program) for _, program in half] for half in self._calls]
            )
        for _ in range(1 + self._short):
            passes = [self._clock.seconds(whole) for whole in self._wholes]
        return passes

    def seconds(self, place: str, passes: Sequence[Sequence[float]]) -> dict[Key, float]:
        """What the calls of each key take over all rows, by what `run` gave for a place, or where it was in none for
        long, for several.
        """
        found: dict[Key, float] = {}
        for half, took in enumerate(zip(*passes, strict=True)):
            shares = self._shares(self._one_by_one[place] or self._one_by_one_anywhere(), half)
            for key, share in shares.items():
                found[key] = share * undisturbed(took) * self._tokens / self._covered[key]
        return found

    def _one_by_one_anywhere(self) -> list[list[list[float]]]:
        return [halves for each in self._one_by_one.values() for halves in each]

    def _shares(self, one_by_one: Sequence[Sequence[Sequence[float]]], half: int) -> dict[Key, float]:
        """What share of all calls' time those of each key take, each as much as its kind undisturbed."""
        taken: dict[Kind, list[float]] = defaultdict(list)
        for i, (kind, _) in enumerate(self._calls[half]):
            taken[kind].extend(halves[half][i] for halves in one_by_one)
        found: dict[Key, float] = defaultdict(float)
        for (key, *_), seconds in taken.items():
            found[key] += len(seconds) * undisturbed(seconds)
        return {key: seconds / sum(found.values()) for key, seconds in found.items()}


def _halves(schedule: Schedule, program: Program) -> tuple[Sequence[Instruction], Sequence[Instruction]]:
    """The calls of the forward pass, and those of the backward pass."""
    instructions, actions = program.instructions, schedule.actions
    turn = next(i for i, each in enumerate(instructions) if isinstance(actions[each.tick], Backward))
    return instructions[:turn], instructions[turn:]


def _keys(schedule: Schedule) -> Callable[[Instruction], Key]:
    graph, plan = schedule.graph, schedule.plan
    rows = _rows_of_calls(graph, plan)
    last: list[str] = []

    def key(instruction: Instruction) -> Key:
        action = schedule.actions[instruction.tick]
        if isinstance(action, Converts):
            return f"{instruction.op} {short_name(action.tensor)}", FORWARD, rows(graph.producer[action.tensor])
        name = last[0] if isinstance(action, Reduce) else getattr(action, "node", "")
        last[:] = [name]
        node = graph.by_name[name]
        when = AGAIN if isinstance(action, Recompute) else FORWARD if isinstance(action, Forward) else BACKWARD
        when = when_kept(graph, node, when, plan.exact)
        return (name.split(".", 2)[-1] if node.block is not None else name), when, rows(node)

    return key


def _rows_of_calls(graph: Graph, plan: Plan) -> Callable[[Node], int]:
    slices = plan.slices[0]
    assert slices is not None, "each block is walked in slices, if in one"
    units = {"N": slices.rows, "B": slices.sequences}

    def rows(node: Node) -> int:
        if node.block is None:
            return graph.tokens
        return units[node.op.independent_along] * graph.tokens_per_unit(node)

    return rows


def _part(schedule: Schedule, instruction: Instruction) -> int:
    """Not 0 where it adds a part of a gradient, or is a later phase of a call that was counted."""
    if isinstance(schedule.actions[instruction.tick], Reduce):
        return -1
    return max(0, instruction.row[0]) if instruction.row else 0


def _rows(schedule: Schedule, instruction: Instruction) -> int:
    action, graph = schedule.actions[instruction.tick], schedule.graph
    if isinstance(action, Converts):
        start, stop = action.rows or (0, graph.tokens)
        return stop - start
    assert isinstance(action, RunsNode)
    node = graph.by_name[action.node]
    start, stop = action.rows or (0, node.rows)
    return (stop - start) * graph.tokens_per_unit(node)
