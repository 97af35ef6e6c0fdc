"""What every call of a block takes on this machine, in the slices that a planner chooses from; kept per CPU and shape.

A decoder of two blocks and two letters is walked with all of the blocks dropped, so that every call is made forward,
again and backward; two blocks, so that a large one's weights come from memory. It is walked with all of them kept too,
since what waits for backward goes through memory, and for a lossy planner with all of them packed. Blocks are alike;
their buffers are scattered, as where blocks differ (docs/decisions/0022). The head, with all its letters, runs in
slices of its own. All of that takes turns in the same memory, so that nothing but the plan differs, and counts for the
place in which the workers' cores were.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.graph.graph import Graph
from fastbp.memory.layout import layout_bytes
from fastbp.policy.cost import BACKWARD, Measured
from fastbp.policy.named import short_name
from fastbp.policy.options import AS_COMPUTED, head_slices, slicings
from fastbp.run.backend import choose_backend
from fastbp.run.cpu_name import cpu_name
from fastbp.run.decoder import Decoder
from fastbp.run.fit import require_memory
from fastbp.run.instruction import Instruction
from fastbp.run.kept import keep, kept
from fastbp.run.measure import undisturbed
from fastbp.run.needed import graph_to_run, least_bytes
from fastbp.run.places import APART, NEAR, Places
from fastbp.run.program import Program
from fastbp.run.timed_walk import Clock, Key, TimedWalk
from fastbp.run.workers import choose_workers
from fastbp.schedule.actions import RunsNode
from fastbp.schedule.plan import Plan

HEAD_SLICES = 3
"""Of a kind that are run; one of GPT-2's largest takes a quarter of a second."""
Say = Callable[[str], None]


def seconds_of_calls(
    config: DecoderConfig, batch: int, *, backend: str = "auto", workers: int | None = None, dtype: str = "float32",
    lossy: bool = False, place: str | None = None, say: Say = lambda what: None,
) -> Measured:  # fmt: skip
    """The costs of the calls of a block and of the head: those that are kept, else measured now and kept. They are for
    cores that are NEAR or APART, as `place` says. Without it, NEAR is preferred among what is kept, and what is
    measured is for where the cores are. Raises Moved where they are not in `place` for long.
    """
    graph = decoder_graph(config, batch)
    how = (choose_backend(backend).name, choose_workers(workers, graph.products_per_pass), dtype)
    shape = {key: value for key, value in config.to_json().items() if key != "blocks"}
    what = [cpu_name(), "scattered calls", shape, batch, *how, *(["lossy"] if lossy else [])]
    known = kept("seconds.json")
    for each in (place,) if place else (NEAR, APART):
        if found := known.get(json.dumps([*what, each])):
            return _costs(found, each)
    place, seconds = _measure(config, batch, *how, lossy, place, say)
    found = [[*key, max(1, round(1e9 * took))] for key, took in seconds.items()]
    with suppress(OSError):
        keep("seconds.json", json.dumps([*what, place]), found)
    return _costs(found, place)


def _costs(found: list[list[Any]], place: str) -> Measured:
    return Measured({(node, when, rows): nanoseconds for node, when, rows, nanoseconds in found}, place)


def _measure(
    config: DecoderConfig, batch: int, backend: str, workers: int, dtype: str, lossy: bool, place: str | None, say: Say
) -> tuple[str, dict[Key, float]]:
    """Where the cores were, and the seconds that calls took there."""
    how = {"backend": backend, "workers": workers, "dtype": dtype}
    say("decoders to measure calls with")
    blocks = _decoder(replace(config, blocks=2, vocab=2), batch, lambda graph: _plans(graph, lossy), how)
    head = _decoder(replace(config, blocks=1), batch, _head_plans, how)
    clock = Clock(blocks)
    walks = [TimedWalk(blocks, plan, clock) for plan in _plans(blocks.graph, lossy)]
    heads = {plan.head_rows: _head_program(head, plan) for plan in _head_plans(head.graph)}

    def walk(which: int, place: str) -> list[float]:
        say(f"calls in slices, {which + 1} of {len(walks)}")
        return walks[which].run(place)

    def head_alone(program: Program, place: str) -> list[float]:
        return [clock.seconds(program)]

    runs = [
        *(partial(walk, i) for i in range(len(walks))),
        *(partial(head_alone, program) for program in heads.values()),
    ]
    place, results = Places(blocks.runner.workers, blocks.backend.compiled).in_turn(runs, place)
    found: dict[Key, float] = {}
    for each, passes in zip(walks, results, strict=False):
        found = each.seconds(place, passes) | found  # calls that several make are the first one's
    name, tokens = head.graph.nodes[-1].name, head.graph.tokens
    of_blocks = {key: took for key, took in found.items() if key[0] != name}
    of_head = {
        (name, BACKWARD, rows): undisturbed(took for (took,) in passes) * tokens / min(HEAD_SLICES * rows, tokens)
        for rows, passes in zip(heads, results[len(walks) :], strict=True)
    }
    return place, of_blocks | of_head


def _decoder(
    config: DecoderConfig, batch: int, plans: Callable[[Graph], Iterator[Plan]], how: Mapping[str, Any]
) -> Decoder:
    """A decoder whose memory all of the plans fit into."""
    require_memory(least_bytes(config, batch, how["dtype"]), f"--batch {batch} at context {config.context}")
    graph = graph_to_run(config, batch, choose_backend(how["backend"]), how["workers"], how["dtype"])
    largest = max(plans(graph), key=lambda plan: layout_bytes(graph, plan))
    decoder = Decoder(config, batch, plan=largest, **how)
    decoder.initialise(0)
    decoder.forward_backward()
    return decoder


def _plans(graph: Graph, lossy: bool) -> Iterator[Plan]:
    """Two blocks dropped, and kept, and for a lossy planner packed."""
    for slices in slicings(graph):
        plan = Plan("measured", frozenset({"blocks.0.x", "blocks.1.x", "final.x"}), graph.tokens, (slices, slices))
        yield plan
        yield _all_kept(graph, plan)
        if lossy:
            yield _all_packed(graph, plan)


def _all_kept(graph: Graph, plan: Plan) -> Plan:
    """The plan with all of the blocks kept."""
    return plan.keeping(frozenset(name for name in graph.read_by_backward if name.startswith("blocks.")))


def _all_packed(graph: Graph, plan: Plan) -> Plan:
    """The plan with all that a lossy planner may pack."""
    names = _all_kept(graph, plan).keep - {"final.x"}
    packed = frozenset(name for name in names if short_name(name) not in AS_COMPUTED)
    return replace(plan, keep=plan.keep | packed, packed=packed)


def _head_plans(graph: Graph) -> Iterator[Plan]:
    """One block dropped, and the head in slices."""
    return (Plan("measured", frozenset({"blocks.0.x", "final.x"}), rows) for rows in head_slices(graph))


def _head_program(decoder: Decoder, plan: Plan) -> Program:
    """The calls of the head, and the final norm's, for a few slices: they stand for all."""
    schedule, program = decoder.under(plan)
    nodes, last = {node.name for node in decoder.graph.nodes[-2:]}, HEAD_SLICES * plan.head_rows

    def counts(instruction: Instruction) -> bool:
        action = schedule.actions[instruction.tick]
        return isinstance(action, RunsNode) and action.node in nodes and (action.rows or (0, 0))[1] <= last

    return decoder.in_parts(Program(tuple(filter(counts, program.instructions))))
