"""What an action reads and writes: the one place that says so, for building a schedule and for judging one."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, cached_property
from typing import NamedTuple

from fastbp.base.dims import Dims, size_of
from fastbp.base.known import Known
from fastbp.graph.graph import Graph, Node
from fastbp.ops.op import FIRST
from fastbp.ops.registry import OPS
from fastbp.schedule.actions import Action, Backward, Converts, Local, Pack, Reduce, RunsNode
from fastbp.schedule.local import PACKED, Rows, local, packed, parted, tensor_of


def gradient(tensor: str) -> str:
    """The name of a tensor's gradient."""
    return f"d:{tensor}"


class Effect(NamedTuple):
    """Activations and gradients by name; rows in tokens, None for all of them; scratch as (port, elements); in place as
    (new, old): what the action can write over what it reads.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    rows: Rows | None = None
    scratch: tuple[tuple[str, int], ...] = ()
    in_place: tuple[tuple[str, str], ...] = ()


Call = tuple[str, bool]
"""A node, and whether it runs backward."""


class Effects:
    """The effects of actions on one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._of_calls = Known(self._of_call)
        self._names = Known(self._names_of)
        self._in_place = Known(self._in_place_of)
        self._scratch = Known(self._scratch_of)

    @cached_property
    def shared_gradient(self) -> dict[str, str]:
        """Gradients that share another's buffer: where an op passes its gradient on, the input's is the output's.

        A tensor with several readers takes its first contribution (the last reader's) as its buffer.
        """
        shared: dict[str, str] = {}
        seen: set[str] = set()
        for node in reversed(self.graph.nodes):
            for port in node.op.differentiable:
                name = node.ports[port]
                if name not in seen and port in node.op.passes_gradient:
                    output = gradient(node.ports[next(iter(node.op.outputs))])
                    shared[gradient(name)] = shared.get(output, output)
                seen.add(name)
        return shared

    def buffer(self, name: str) -> str:
        """The gradient whose buffer `name` uses; a name that shares none is its own."""
        return self.shared_gradient.get(name, name)

    @cached_property
    def _first_writer(self) -> dict[str, str]:
        """The node whose backward makes each activation's gradient first."""
        first: dict[str, str] = {}
        for node in reversed(self.graph.nodes):
            for port in node.op.differentiable:
                first.setdefault(node.ports[port], node.name)
        return first

    @cached_property
    def parts_before(self) -> dict[str, int]:
        """How many parts have been added to the gradient that a node's backward reads, when it reads it."""
        added: dict[str, int] = {}
        before: dict[str, int] = {}
        for node in reversed(self.graph.nodes):
            output = self.buffer(gradient(node.ports[next(iter(node.op.outputs))]))
            before[node.name] = added.get(output, 0)
            for port in node.op.differentiable if self.runs_backward(node) else ():
                name = node.ports[port]
                if self._is_activation(name) and self.contribution(node, name) != gradient(name):
                    total = self.buffer(gradient(name))
                    added[total] = added.get(total, 0) + 1
        return before

    @cached_property
    def gradients_read(self) -> dict[str, tuple[str, ...]]:
        """The gradients that a node's backward reads, by node."""
        return {node.name: tuple(self._gradients_of(node.op.outputs, node)) for node in self.graph.nodes}

    def contribution(self, node: Node, tensor: str) -> str:
        """Where a node's backward writes its part of a tensor's gradient: the gradient itself, or a part to be
        added.
        """
        name = gradient(tensor)
        return name if self._first_writer[tensor] == node.name else f"{name}+{node.name}"

    def _in_place_of(self, call: Call) -> tuple[tuple[str, str], ...]:
        """(new, old): what a call can write over what it reads, whole tensors."""
        node, backward = self.graph.by_name[call[0]], call[1]
        if not backward:
            return tuple((node.ports[new], node.ports[old]) for new, old in node.op.forward_in_place.items())
        return tuple(
            (self.buffer(self.contribution(node, node.ports[new])), self.buffer(gradient(node.ports[old])))
            for new, old in node.op.backward_in_place.items()
        )

    def token_rows(self, action: Action) -> Rows | None:
        """The rows of an action in tokens; None for all of them."""
        return self.of(action).rows

    @cached_property
    def tokens_per_unit(self) -> dict[str, int]:
        """As the graph's, by node."""
        return {node.name: self.graph.tokens_per_unit(node) for node in self.graph.nodes}

    def runs_backward(self, node: Node) -> bool:
        return node.op.backward is not None

    def of(self, action: Action) -> Effect:
        """Reads and writes of an action, host and parameter tensors left out."""
        if isinstance(action, RunsNode):
            return self._of_calls[action.node, isinstance(action, Backward), action.rows, action.local]
        if isinstance(action, Reduce):
            return Effect((action.into, action.source), (action.into,), action.rows)
        if isinstance(action, Converts):
            real, half = (placed(action, action.tensor),), (packed(action.tensor),)
            return Effect(real, half, action.rows) if isinstance(action, Pack) else Effect(half, real, action.rows)
        return Effect((), ())

    def _of_call(self, call: tuple[str, bool, Rows | None, Local]) -> Effect:
        name, backward, units, places = call
        tokens = self.tokens_per_unit[name]
        rows = (units[0] * tokens, units[1] * tokens) if units else None
        reads, writes = self._names[name, backward]
        if places:
            placed_at = {name: local(name, part) for name, part in places}
            reads = tuple([placed_at.get(name, name) for name in reads])
            writes = tuple([placed_at.get(name, name) for name in writes])
        scratch = self.scratch(name, backward, units[1] - units[0] if units else None)
        return Effect(reads, writes, rows, scratch, _within(self._in_place[name, backward], places, rows))

    def _names_of(self, call: Call) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What a call reads and writes, whole."""
        node, backward = self.graph.by_name[call[0]], call[1]
        if not backward:
            return self._activations(node.inputs), self._activations(node.outputs)
        reads = (*self.gradients_read[node.name], *self._activations(node.backward_reads))
        targets = self._activations(node.ports[port] for port in node.op.differentiable)
        return reads, tuple(self.buffer(self.contribution(node, name)) for name in targets)

    def has_scratch(self, name: str, backward: bool) -> bool:
        op = self.graph.by_name[name].op
        return bool(op.scratch if backward else op.forward_scratch)

    def scratch(self, name: str, backward: bool, rows: int | None) -> tuple[tuple[str, int], ...]:
        """Elements of a node's scratch for so many rows, ports without any left out."""
        return self._scratch[name, backward, rows]

    def _scratch_of(self, call: tuple[str, bool, int | None]) -> tuple[tuple[str, int], ...]:
        name, backward, rows = call
        node = self.graph.by_name[name]
        dims = sliced_dims(node, None if rows is None else (0, rows))
        shapes = node.op.scratch if backward else node.op.forward_scratch
        sizes = ((port, size_of(shape, dims)) for port, shape in shapes.items())
        return tuple((port, size) for port, size in sizes if size)

    def _gradients_of(self, outputs: Iterable[str], node: Node) -> list[str]:
        names = [node.ports[port] for port in outputs]
        return [self.buffer(gradient(name)) for name in names if self._is_activation(name)]

    def _is_activation(self, name: str) -> bool:
        return self.graph.tensors[name].kind == "activation"

    def _activations(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(name for name in names if self._is_activation(name))


def _within(pairs: tuple[tuple[str, str], ...], places: Local, rows: Rows | None) -> tuple[tuple[str, str], ...]:
    """Those of a call's pairs that it may use at some rows: a slice is written over whole slices alone."""
    if not pairs:
        return ()
    where = dict(places)
    found = [(new, old) for new, old in pairs if where.get(new) == rows == where.get(old)]
    return tuple([(local(new, rows), local(old, rows)) for new, old in found] if rows else found)


def buffer_bytes(graph: Graph, name: str, rows: int | None = None) -> int:
    """Bytes of a tensor's or gradient's buffer, or of so many rows of it. A bfloat16 is half a float32."""
    whole = graph.bytes_of(tensor_of(parted(name)[0])) // (2 if name.startswith(PACKED) else 1)
    return whole if rows is None else whole // graph.tokens * rows


def placed(action: RunsNode | Converts, name: str) -> str:
    """The buffer in which an action finds a tensor or gradient: a slice's where it exists for a slice alone."""
    for found, rows in action.local:
        if found == name:
            return local(name, rows)
    return name


def sliced_dims(node: Node, rows: Rows | None) -> Dims:
    """A node's dimensions for a slice of it."""
    if rows is None:
        return node.dims
    start = rows[0] if FIRST in node.op.dims else 0
    return _sliced(node.op_name, node.dims, start, start + rows[1] - rows[0])


@cache
def _sliced(op_name: str, dims: Dims, start: int, stop: int) -> Dims:
    return OPS[op_name].cut(dims, start, stop)


def forward_flops(node: Node, rows: Rows | None) -> int:
    """FLOPs of a node's forward, or of a slice of it."""
    return _forward_flops(node.op_name, sliced_dims(node, rows))


@cache
def _forward_flops(op_name: str, dims: Dims) -> int:
    op = OPS[op_name]
    return op.products(dims)[0] + op.pointwise(dims)[0]
