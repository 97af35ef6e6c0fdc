"""What every call of a block takes on this machine, in the slices that a planner chooses from; kept per CPU and shape.

A decoder of two blocks and two letters runs its calls one by one under the clock, with all of the blocks dropped, so
that every call is made forward, again and backward; two blocks, so that a large one's weights come from memory. Its
forward and its backward pass also run whole, as in training: fused, and without a rest between calls. What the calls
take is scaled to add up to that. Blocks are alike. The head, with all its letters, runs in slices of its own. For a
lossy planner a second decoder keeps all of the blocks as bfloat16.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any

from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.graph.graph import Graph, Node
from fastbp.policy.cost import AGAIN, BACKWARD, FORWARD, Measured
from fastbp.policy.named import short_name
from fastbp.policy.options import AS_COMPUTED, head_slices, slicings
from fastbp.run.backend import choose_backend
from fastbp.run.barrier import wake_up
from fastbp.run.cpu_name import cpu_name
from fastbp.run.decoder import Decoder
from fastbp.run.instruction import Instruction
from fastbp.run.kept import keep, kept
from fastbp.run.measure import seconds_of
from fastbp.run.op_times import SHORTEST
from fastbp.run.program import Program
from fastbp.run.workers import choose_workers
from fastbp.schedule.actions import Backward, Forward, Pack, Recompute, Reduce, Unpack
from fastbp.schedule.plan import Plan, Slices

RUNS = 5
"""Passes in each kind of slices; a call's time is their median, behind a pass that is not counted."""
HEAD_SLICES = 3
"""Of a kind that are run; one of GPT-2's largest takes a quarter of a second."""

Key = tuple[str, str, int]
Say = Callable[[str], None]


def seconds_of_calls(
    config: DecoderConfig, batch: int, *, backend: str = "auto", workers: int | None = None, dtype: str = "float32",
    lossy: bool = False, say: Say = lambda what: None,
) -> Measured:  # fmt: skip
    """The costs of a block's calls: those that are kept, else measured now and kept."""
    graph = decoder_graph(config, batch)
    how = (choose_backend(backend).name, choose_workers(workers, graph.products_per_pass), dtype)
    shape = {key: value for key, value in config.to_json().items() if key not in ("blocks", "vocab")}
    blocks = _kept(
        ["whole passes", shape, batch, *how, *(["lossy"] if lossy else [])],
        lambda: _measure(config, batch, *how, lossy, say),
    )
    head = _kept(
        ["head", config.width, config.vocab, graph.tokens, *how], lambda: _measure_head(config, batch, *how, say)
    )
    return Measured(blocks | head)


def _kept(what: list[Any], measure: Callable[[], dict[Key, float]]) -> dict[Key, int]:
    """Nanoseconds: those that are kept for this CPU, else measured now and kept."""
    name = json.dumps([cpu_name(), *what])
    found = kept("seconds.json").get(name)
    if found is None:
        found = [[*key, max(1, round(1e9 * seconds))] for key, seconds in measure().items()]
        with suppress(OSError):
            keep("seconds.json", name, found)
    return {(node, when, rows): nanoseconds for node, when, rows, nanoseconds in found}


def _measure(
    config: DecoderConfig, batch: int, backend: str, workers: int, dtype: str, lossy: bool, say: Say
) -> dict[Key, float]:
    two = replace(config, blocks=2, vocab=2)
    graph = decoder_graph(two, batch)
    found: dict[Key, float] = {}
    for slices in slicings(graph):
        say(f"slices of {slices.sequences} sequences and {slices.rows} rows")
        plan = Plan("measured", frozenset({"blocks.0.x", "blocks.1.x", "final.x"}), graph.tokens, (slices, slices))
        plans = [plan, _all_packed(graph, plan)] if lossy else [plan]
        for each in reversed(plans):  # calls that both make are the first one's
            found |= _of_slices(Decoder(two, batch, plan=each, backend=backend, workers=workers, dtype=dtype), slices)
    return {key: seconds for key, seconds in found.items() if key[0] != graph.nodes[-1].name}


def _measure_head(
    config: DecoderConfig, batch: int, backend: str, workers: int, dtype: str, say: Say
) -> dict[Key, float]:
    """Seconds of the head over all rows, with the final norm, by the rows of a slice."""
    one = replace(config, blocks=1)
    graph = decoder_graph(one, batch)
    found: dict[Key, float] = {}
    for rows in head_slices(graph):
        say(f"the head, {rows} rows at a time")
        plan = Plan("measured", frozenset({"blocks.0.x", "final.x"}), rows)
        decoder = Decoder(one, batch, plan=plan, backend=backend, workers=workers, dtype=dtype)
        found[graph.nodes[-1].name, BACKWARD, rows] = _of_head(decoder, rows)
    return found


def _of_head(decoder: Decoder, rows: int) -> float:
    """The first few slices stand for all."""
    decoder.initialise(0)
    decoder.runner.run(decoder.in_parts(Program(tuple(_halves(decoder)[0]))))
    nodes, last = {node.name for node in decoder.graph.nodes[-2:]}, HEAD_SLICES * rows

    def counts(instruction: Instruction) -> bool:
        action = decoder.schedule.actions[instruction.tick]
        return isinstance(action, Forward | Backward) and action.node in nodes and (action.rows or (0, 0))[1] <= last

    program = decoder.in_parts(Program(tuple(filter(counts, decoder.gradients_program.instructions))))
    taken = [seconds_of(lambda: decoder.runner.run(program)) for _ in range(RUNS + 1)]
    return statistics.median(taken[1:]) * decoder.graph.tokens / min(last, decoder.graph.tokens)


def _all_packed(graph: Graph, plan: Plan) -> Plan:
    """The plan with all that a lossy planner may pack."""
    names = (name for name in graph.read_by_backward if name.startswith("blocks."))
    packed = frozenset(name for name in names if short_name(name) not in AS_COMPUTED)
    return replace(plan, keep=plan.keep | packed, packed=packed)


def _of_slices(decoder: Decoder, slices: Slices) -> dict[Key, float]:
    """Seconds of each node over all rows, by what it does and the rows of a call."""
    decoder.initialise(0)
    keys = _keys(decoder, slices)
    passes = [[(keys(each), each) for each in half] for half in _halves(decoder)]
    covered: dict[Key, int] = defaultdict(int)
    for key, instruction in chain(*passes):
        covered[key] += 0 if _is_part(decoder, instruction) else _rows(decoder, instruction)
    clocks = [_PassClock(decoder, each) for each in passes]
    samples: dict[Key, list[float]] = defaultdict(list)
    for _ in range(RUNS + 1):
        for key, seconds in chain(*(clock.sample().items() for clock in clocks)):
            samples[key].append(seconds)
    tokens = decoder.graph.tokens
    return {key: statistics.median(each[1:]) * tokens / covered[key] for key, each in samples.items()}


def _halves(decoder: Decoder) -> tuple[Sequence[Instruction], Sequence[Instruction]]:
    """The calls of the forward pass, and those of the backward pass."""
    instructions, actions = decoder.gradients_program.instructions, decoder.schedule.actions
    turn = next(i for i, each in enumerate(instructions) if isinstance(actions[each.tick], Backward))
    return instructions[:turn], instructions[turn:]


class _PassClock:
    """A forward or a backward pass, whole and call by call."""

    def __init__(self, decoder: Decoder, calls: Sequence[tuple[Key, Instruction]]) -> None:
        self._runner = decoder.runner
        self._wake_up = wake_up(decoder.runner.workers) if decoder.backend.compiled else 0.0
        self._whole = decoder.in_parts(Program(tuple(instruction for _, instruction in calls)))
        self._pieces = [(key, decoder.in_parts(Program((instruction,)))) for key, instruction in calls]

    def sample(self) -> dict[Key, float]:
        """Seconds by call, which add up to those of the whole pass."""
        whole, taken = self._seconds(self._whole), dict[Key, float]()
        for key, piece in self._pieces:
            taken[key] = taken.get(key, 0.0) + self._seconds(piece)
        share = whole / sum(taken.values())
        return {key: seconds * share for key, seconds in taken.items()}

    def _seconds(self, program: Program) -> float:
        start = time.perf_counter()
        self._runner.run(program)
        return max(SHORTEST, time.perf_counter() - start - self._wake_up)


def _keys(decoder: Decoder, slices: Slices) -> Callable[[Instruction], Key]:
    graph = decoder.graph
    levels = {"N": slices.rows, "B": slices.sequences * decoder.config.context}
    last: list[str] = []

    def rows(node: Node) -> int:
        return levels[node.op.independent_along] if node.block is not None else graph.tokens

    def key(instruction: Instruction) -> Key:
        action = decoder.schedule.actions[instruction.tick]
        if isinstance(action, Pack | Unpack):
            return f"{instruction.op} {short_name(action.tensor)}", FORWARD, rows(graph.producer[action.tensor])
        name = last[0] if isinstance(action, Reduce) else getattr(action, "node", "")
        last[:] = [name]
        node = graph.by_name[name]
        when = AGAIN if isinstance(action, Recompute) else FORWARD if isinstance(action, Forward) else BACKWARD
        return (name.split(".", 2)[-1] if node.block is not None else name), when, rows(node)

    return key


def _is_part(decoder: Decoder, instruction: Instruction) -> bool:
    """Whether it adds a part of a gradient, or is a later phase of a call that was counted."""
    action = decoder.schedule.actions[instruction.tick]
    return isinstance(action, Reduce) or (bool(instruction.row) and instruction.row[0] > 0)


def _rows(decoder: Decoder, instruction: Instruction) -> int:
    action = decoder.schedule.actions[instruction.tick]
    if isinstance(action, Pack | Unpack):
        start, stop = action.rows or (0, decoder.graph.tokens)
        return stop - start
    assert isinstance(action, Forward | Backward)
    node = decoder.graph.by_name[action.node]
    start, stop = action.rows or (0, node.rows)
    return (stop - start) * decoder.graph.tokens_per_unit(node)
