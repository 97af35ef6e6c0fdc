"""What every call of a block takes on this machine, in the slices that a planner chooses from; kept per CPU and shape.

A decoder of two blocks and two letters runs its calls one by one under the clock, with all of the blocks dropped, so
that every call is made forward, again and backward; two blocks, so that a large one's weights come from memory. Where
blocks are walked in slices, another keeps all of them, since what waits for backward goes through memory. Forward and
backward pass also run whole, as in training: fused, without a rest between calls, and beside a reference. What the
calls take is scaled to add up to that. Blocks are alike. The head, with all its letters, runs in slices of its own. For
a lossy planner one more decoder keeps all of the blocks as bfloat16.
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
from fastbp.policy.cost import AGAIN, BACKWARD, FORWARD, Measured, when_kept
from fastbp.policy.named import short_name
from fastbp.policy.options import AS_COMPUTED, head_slices, slicings
from fastbp.run.backend import choose_backend
from fastbp.run.barrier import Barrier, wake_up
from fastbp.run.beside import Beside
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

HEAD_SLICES = 3
"""Of a kind that are run; one of GPT-2's largest takes a quarter of a second."""
SLICED = 1.04
"""What a call in slices is charged more than it took: among a training run's many blocks, and on cores that are moved
apart now and then, slices take 0 to 8 % longer than here, and what gains less than this by them is not worth it.
"""
PASSES, SHARE_SECONDS = 5, 0.3
"""How often calls run one by one, at most, and for how long more than once."""

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
        ["kept and dropped", shape, batch, *how, *(["lossy"] if lossy else [])],
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
    beside: Beside | None = None
    for slices in slicings(graph):
        say(f"slices of {slices.sequences} sequences and {slices.rows} rows")
        plan = Plan("measured", frozenset({"blocks.0.x", "blocks.1.x", "final.x"}), graph.tokens, (slices, slices))
        plans = [plan]
        plans += [_all_kept(graph, plan)] if slices.rows < graph.tokens else []
        plans += [_all_packed(graph, plan)] if lossy else []
        for each in plans:
            decoder = Decoder(two, batch, plan=each, backend=backend, workers=workers, dtype=dtype)
            decoder.initialise(0)
            beside = beside or _beside(decoder, _forward(decoder), patient=True)
            found = _of_slices(decoder, slices, beside) | found  # calls that several make are the first one's
    assert beside is not None
    charged = {key: ratio * (SLICED if key[-1] < graph.tokens else 1.0) for key, ratio in found.items()}
    return {key: ratio * beside.unit for key, ratio in charged.items() if key[0] != graph.nodes[-1].name}


def _measure_head(
    config: DecoderConfig, batch: int, backend: str, workers: int, dtype: str, say: Say
) -> dict[Key, float]:
    """Seconds of the head over all rows, with the final norm, by the rows of a slice."""
    one = replace(config, blocks=1)
    graph = decoder_graph(one, batch)
    found: dict[Key, float] = {}
    beside: Beside | None = None
    for rows in head_slices(graph):
        say(f"the head, {rows} rows at a time")
        plan = Plan("measured", frozenset({"blocks.0.x", "final.x"}), rows)
        decoder = Decoder(one, batch, plan=plan, backend=backend, workers=workers, dtype=dtype)
        decoder.initialise(0)
        decoder.runner.run(_forward(decoder))
        program = _few_head_slices(decoder, HEAD_SLICES * rows)
        beside = beside or _beside(decoder, program)
        ratio = _ratio_of(decoder, program, beside)
        found[graph.nodes[-1].name, BACKWARD, rows] = ratio * graph.tokens / min(HEAD_SLICES * rows, graph.tokens)
    assert beside is not None
    return {key: ratio * beside.unit for key, ratio in found.items()}


def _beside(decoder: Decoder, program: Program, patient: bool = False) -> Beside:
    """Measures beside a program of a decoder, which lives as long; if patient, where the workers meet soon."""
    barrier = Barrier(decoder.runner.workers) if patient and decoder.backend.compiled else None
    return Beside(lambda: decoder.runner.run(program), barrier)


def _forward(decoder: Decoder) -> Program:
    return decoder.in_parts(Program(tuple(_halves(decoder)[0])))


def _ratio_of(decoder: Decoder, program: Program, beside: Beside) -> float:
    clock = _Clock(decoder)
    return beside.ratios(lambda: [clock.seconds(program)])[0]


def _few_head_slices(decoder: Decoder, last: int) -> Program:
    """The head's calls, and the final norm's, of the rows before `last`: they stand for all."""
    nodes = {node.name for node in decoder.graph.nodes[-2:]}

    def counts(instruction: Instruction) -> bool:
        action = decoder.schedule.actions[instruction.tick]
        return isinstance(action, Forward | Backward) and action.node in nodes and (action.rows or (0, 0))[1] <= last

    return decoder.in_parts(Program(tuple(filter(counts, decoder.gradients_program.instructions))))


def _all_kept(graph: Graph, plan: Plan) -> Plan:
    """The plan with all of the blocks kept."""
    return plan.keeping(frozenset(name for name in graph.read_by_backward if name.startswith("blocks.")))


def _all_packed(graph: Graph, plan: Plan) -> Plan:
    """The plan with all that a lossy planner may pack."""
    names = _all_kept(graph, plan).keep - {"final.x"}
    packed = frozenset(name for name in names if short_name(name) not in AS_COMPUTED)
    return replace(plan, keep=plan.keep | packed, packed=packed)


def _of_slices(decoder: Decoder, slices: Slices, beside: Beside) -> dict[Key, float]:
    """What each node takes over all rows, by what it does and the rows of a call."""
    keys = _keys(decoder, slices)
    passes = [[(keys(each), each) for each in half] for half in _halves(decoder)]
    covered: dict[Key, int] = defaultdict(int)
    for key, instruction in chain(*passes):
        covered[key] += 0 if _is_part(decoder, instruction) else _rows(decoder, instruction)
    clock, found = _Clock(decoder), dict[Key, float]()
    wholes = [decoder.in_parts(Program(tuple(instruction for _, instruction in half))) for half in passes]
    shares = []
    for whole, half in zip(wholes, passes, strict=True):
        decoder.runner.run(whole)
        shares.append(clock.shares([(key, decoder.in_parts(Program((instruction,)))) for key, instruction in half]))
    ratios = beside.ratios(lambda: [clock.seconds(whole) for whole in wholes])
    for ratio, half_shares in zip(ratios, shares, strict=True):
        found |= {key: share * ratio * decoder.graph.tokens / covered[key] for key, share in half_shares.items()}
    return found


def _halves(decoder: Decoder) -> tuple[Sequence[Instruction], Sequence[Instruction]]:
    """The calls of the forward pass, and those of the backward pass."""
    instructions, actions = decoder.gradients_program.instructions, decoder.schedule.actions
    turn = next(i for i, each in enumerate(instructions) if isinstance(actions[each.tick], Backward))
    return instructions[:turn], instructions[turn:]


class _Clock:
    """Seconds of a decoder's programs, without what waking the workers takes."""

    def __init__(self, decoder: Decoder) -> None:
        self._runner = decoder.runner
        self._wake_up = wake_up(decoder.runner.workers) if decoder.backend.compiled else 0.0

    def seconds(self, program: Program) -> float:
        return max(SHORTEST, seconds_of(lambda: self._runner.run(program)) - self._wake_up)

    def shares(self, calls: Sequence[tuple[Key, Program]]) -> dict[Key, float]:
        """What share of all calls' time each takes: medians of a few passes."""
        passes: list[dict[Key, float]] = []
        begin = time.perf_counter()
        while not passes or (len(passes) < PASSES and time.perf_counter() - begin < SHARE_SECONDS):
            taken: dict[Key, float] = defaultdict(float)
            for key, program in calls:
                taken[key] += self.seconds(program)
            passes.append(taken)
        found = {key: statistics.median(taken[key] for taken in passes) for key in passes[0]}
        return {key: seconds / sum(found.values()) for key, seconds in found.items()}


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
        when = when_kept(graph, node, when, decoder.plan.exact)
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
