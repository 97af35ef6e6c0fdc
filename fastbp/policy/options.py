"""The ways to walk one block, each with its bytes and its FLOPs: what the planner chooses from.

An option names the tensors of the block that are kept, those of them that wait as bfloat16 (none, or where that is
admitted all but a few numbers a row), and the slices in which the rest is walked. Its bytes are those of the live sets
that fastbp/policy/few_slices.py finds, priced for the slices' size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import combinations
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from fastbp.graph.graph import Graph
from fastbp.policy.cost import AGAIN, BACKWARD, FORWARD, Cost, conversion, when_kept
from fastbp.policy.few_slices import MANY, Walked, block_shape, walked_in
from fastbp.policy.live_sets import Prices
from fastbp.schedule.effects import Effects, buffer_bytes
from fastbp.schedule.local import packed as in_bfloat16
from fastbp.schedule.plan import LOGITS_BYTES, TOGETHER, Slices, head_rows
from fastbp.schedule.simulate import padded

COSTLY = (("qkv",), ("o", "lse", "p"), ("mid",), ("u",))
"""Tensors that cost a product to bring back, in groups that are of use together; every set of groups is an option."""
CHEAP = (("ln1.mean", "ln1.rstd", "ln2.mean", "ln2.rstd"), ("ln1",), ("ln2",), ("g",))
"""The rest: dropped together with anything costly, and otherwise kept from the left on."""
AS_COMPUTED = frozenset({*CHEAP[0], "lse"})
"""What is never packed: a few numbers a row, on which all of the row depends."""
FEWEST_ROWS = 64
"""A slice of fewer rows would spend its time on weights."""
LARGER = (2, 4)
"""Multiples of LOGITS_BYTES in a slice of the head, where bytes are left."""


@dataclass(frozen=True)
class Option:
    """One way to walk a block. Peaks are of the bytes that its own tensors take, its input and the stream's gradient
    among them, forward and backward; those `without_input` where the input is not kept, in backward because it was
    brought back. `cost` is of the block's whole pass, `input_cost` of packing its input and unpacking it, `again_cost`
    and `again_bytes` of one forward more.
    """

    keep: frozenset[str]
    slices: Slices
    packed: frozenset[str]
    kept_bytes: int
    input_bytes: int
    forward_bytes: int
    forward_bytes_without_input: int
    backward_bytes: int
    backward_bytes_without_input: int
    again_bytes: int
    cost: int
    input_cost: int
    again_cost: int
    recomputed_flops: int
    slices_count: int


FIGURES = attrgetter(*(field.name for field in fields(Option) if field.type == "int"))


class Peaks(NamedTuple):
    """The most bytes live in a walk, forward and backward; `without_input` as in Walked."""

    forward: int
    without_input: int
    backward: int


def keep_sets(names: Iterable[str]) -> Iterator[frozenset[str]]:
    """Sets of a block's tensors, by short name, that are worth keeping beside its input, the largest first."""
    known = set(names)
    costly = [frozenset(group) & known for group in COSTLY]
    cheap = [frozenset(group) & known for group in CHEAP]
    for count in range(len(cheap), 0, -1):
        yield frozenset().union(*costly, *cheap[:count])
    for count in range(len(costly), -1, -1):
        for groups in combinations(costly, count):
            yield frozenset().union(*groups)


def slicings(graph: Graph) -> list[Slices]:
    """Slices worth trying, the coarsest first: rows alone, then one sequence at a time and rows within it."""
    tokens = graph.tokens
    sequences = next((node.dims["B"] for node in graph.nodes if "B" in node.dims), 1)
    length = tokens // sequences
    found = [Slices(sequences, rows) for rows in _parts(tokens)]
    if sequences > 1:
        found += [Slices(1, rows) for rows in _parts(length)]
    return found


def head_slices(graph: Graph) -> list[int]:
    """Rows of the head's slices worth trying: the usual ones and smaller ones, each some half of the one before, then
    larger ones, which read the head's weights less often.
    """
    usual = head_rows(graph)
    found, limit = [usual], LOGITS_BYTES // 2
    while limit and found[-1] > TOGETHER:
        rows = head_rows(graph, limit)
        found += [rows] if rows != found[-1] else []
        limit //= 2
    return found + sorted({head_rows(graph, times * LOGITS_BYTES) for times in LARGER} - {usual})


def _parts(rows: int) -> Iterator[int]:
    """Equal parts of so many rows, each at most two thirds of the one before; not halves, which save little."""
    last = 2 * rows
    for count in range(1, max(rows // FEWEST_ROWS, 1) + 1):
        if count != 2 and rows % count == 0 and 3 * (rows // count) <= 2 * last:
            last = rows // count
            yield last


def options(graph: Graph, cost: Cost, lossy: bool = False) -> list[Option]:
    """Every option of a block of the graph; all its blocks are alike. None is worse than another in every respect,
    being exact one of them.
    """
    names = {name.removeprefix("blocks.0.") for node in graph.nodes_of_block[0] for name in node.outputs}
    read = {name.removeprefix("blocks.0.") for name in graph.read_by_backward if name.startswith("blocks.0.")}
    nothing: frozenset[str] = frozenset()
    keeps = [(keep, nothing) for keep in keep_sets(names & read)]
    if lossy:
        keeps += [(keep, (keep | {"x"}) - AS_COMPUTED) for keep, _ in keeps]
    once = {exact: _once(graph, exact) for exact in {keep - packed for keep, packed in keeps}}
    return undominated([option for slices in slicings(graph) for option in _priced(graph, keeps, once, slices, cost)])


def _once(graph: Graph, kept: frozenset[str]) -> list[tuple[str, str]]:
    """(node, when) of a block's pass without what is brought back, where these tensors are kept as they are."""
    names = {f"blocks.0.{name}" for name in kept}
    nodes = graph.nodes_of_block[0]
    return [(node.name, when_kept(graph, node, when, names)) for node in nodes for when in (FORWARD, BACKWARD)]


def _priced(
    graph: Graph, keeps: Iterable[tuple[frozenset[str], frozenset[str]]],
    once: Mapping[frozenset[str], Iterable[tuple[str, str]]], slices: Slices, cost: Cost,
) -> Iterator[Option]:  # fmt: skip
    """The options with some slices, by what they keep and what of it they pack; `once` has the calls of a pass by what
    is kept as it is.
    """
    length = _sequence_length(graph)
    outer, inner = graph.tokens // length // slices.sequences, slices.sequences * length // slices.rows
    rows = {"whole": graph.tokens, "outer": slices.sequences * length, "inner": slices.rows}
    price = Prices(graph, Effects(graph), rows)
    nodes = {node.name: node for node in graph.nodes_of_block[0]}

    def rows_of(name: str) -> int:
        """Of a call of a node."""
        node = nodes.get(name)
        return rows["whole" if node is None else "inner" if node.op.independent_along == "N" else "outer"]

    @cache
    def priced(name: str, when: str) -> int:
        return cost.of(graph, nodes[name], when, rows_of(name))

    @cache
    def converted(op_name: str, name: str) -> int:
        """The price of packing or unpacking a tensor."""
        return cost.of(graph, conversion(graph, op_name, name), FORWARD, rows_of(graph.producer[name].name))

    again, shape = {name: priced(name, AGAIN) for name in nodes}, block_shape(graph)
    for keep, packed in keeps:
        walked = walked_in(shape, keep, packed, min(outer, MANY), min(inner, MANY))
        interior = walked_in(shape, keep, packed - {"x"}, min(outer, MANY), min(inner, MANY))
        peaks = _peaks(price, walked)
        within = peaks if interior is walked else _peaks(price, interior)
        waits = {name: buffer_bytes(graph, _buffer(name, packed)) for name in (*keep, "x")}
        both = sum(converted("pack", f"blocks.0.{name}") for name in packed - {"x"})
        both += sum(converted("unpack", name) * times for name, times in interior.unpacked)
        yield Option(
            keep,
            slices,
            packed,
            sum(map(padded, waits.values())),
            padded(waits["x"]),
            peaks.forward,
            within.without_input,
            peaks.backward,
            within.backward,
            within.forward,
            sum(priced(*call) for call in once[keep - packed])
            + both
            + sum(again[name] * times for name, times in walked.again),
            sum(converted(op_name, "blocks.0.x") for op_name in ("pack", "unpack") if "x" in packed),
            sum(again.values()),
            sum(nodes[name].flops[0] * times for name, times in walked.again),
            outer * inner,
        )


def _peaks(price: Prices, walked: Walked) -> Peaks:
    return Peaks(price.peak(walked.forward), price.peak(walked.without_input), price.peak(walked.backward))


def _sequence_length(graph: Graph) -> int:
    """Tokens of a sequence."""
    return next((node.dims["T"] for node in graph.nodes if "T" in node.dims), 1)


def _buffer(name: str, packed: frozenset[str]) -> str:
    """Where a tensor of the block waits for backward, by short name."""
    return in_bfloat16(f"blocks.0.{name}") if name in packed else f"blocks.0.{name}"


def undominated(found: Sequence[Option]) -> list[Option]:
    """Options of which none is as good as another in bytes and FLOPs, no coarser and no less lossy."""
    figures = np.array([(bool(option.packed), *FIGURES(option)) for option in found], np.int64)
    kept = np.zeros(len(found), bool)
    for i in np.lexsort(figures.T[::-1]):
        kept[i] = not (figures[kept] <= figures[i]).all(1).any()
    return [found[i] for i in np.flatnonzero(kept).tolist()]
