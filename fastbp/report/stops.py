"""The stops of the gradient's way back: one an op, and two at a residual, where it is copied and where it is summed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbp.graph.graph import Graph, Node
from fastbp.report.derivatives import DERIVATIVES, SUM, Derivative
from fastbp.report.needs import Need, Needs
from fastbp.run.decoder import Decoder
from fastbp.run.recorded import Recorded
from fastbp.schedule.effects import Effects, gradient

Array = NDArray[Any]


@dataclass(frozen=True)
class Flow:
    """A gradient, "d:blocks.1.u", or a part of one, "d:blocks.1.mid+blocks.1.ln2": its shape, its L2 norm and that of
    each row, a row being a token.
    """

    gradient: str
    shape: tuple[int, ...]
    norm: float
    rows: tuple[float, ...]


@dataclass(frozen=True)
class Weight:
    """A parameter's gradient and its norm; `finished` where no op further back adds to it."""

    name: str
    shape: tuple[int, ...]
    norm: float
    finished: bool


@dataclass(frozen=True)
class Stop:
    """One stop. `incoming` is the gradient of what the node made in forward, `outgoing` what it sends on to its input
    (a residual: to what was added to the stream); None where the way ends. Where a residual sums, `added` came back
    through its sublayer. `ticks` are those of its kernel's actions; none where no kernel runs.
    """

    stop: int
    op: str
    node: str
    block: int | None
    role: str
    """"op", or of a residual "copy" or "sum"."""
    derivative: Derivative
    needs: tuple[Need, ...]
    incoming: Flow
    added: Flow | None
    outgoing: Flow | None
    weights: tuple[Weight, ...]
    ticks: tuple[int, ...]

    @property
    def shown(self) -> Flow:
        """The gradient that the stop is measured by: what goes on, or at the end what came in."""
        return self.outgoing or self.incoming


def stops_of(decoder: Decoder, recorded: Recorded) -> tuple[Stop, ...]:
    """Every stop of a recorded pass, from the loss to the embedding: the graph's order reversed, whatever the plan."""
    return tuple(_Stops(decoder, recorded).all())


class _Stops:
    def __init__(self, decoder: Decoder, recorded: Recorded) -> None:
        self.graph: Graph = decoder.graph
        self.decoder, self.recorded = decoder, recorded
        self.needs, self.effects = Needs(decoder.schedule), Effects(decoder.graph)
        self.count = 0

    def all(self) -> Iterator[Stop]:
        for node in reversed(self.graph.nodes):
            role = "copy" if node.op.passes_gradient else "op"
            yield self._stop(
                node, role, DERIVATIVES[node.op_name], outgoing=self._out(node), needs=self.needs.of(node),
                weights=tuple(self._weights(node)), ticks=tuple(self.needs.ticks.get(node.name, ())),
            )  # fmt: skip
            yield from self._sums(node)

    def _sums(self, node: Node) -> Iterator[Stop]:
        """The residual whose input's gradient is whole behind a node, which is the first to read that in forward."""
        for name in node.inputs:
            readers = [other for other in self.graph.nodes if name in other.inputs]
            passing = [other for other in readers if other.op.passes_gradient]
            if passing and readers[0] is node and len(readers) > 1:
                yield self._stop(
                    passing[0], "sum", SUM, outgoing=self._flow(f"d:{name}", self.recorded.gradient(name)),
                    added=self._out(node), ticks=tuple(self.needs.sums[node.name]),
                )  # fmt: skip

    def _stop(
        self, node: Node, role: str, derivative: Derivative, *, outgoing: Flow | None, added: Flow | None = None,
        needs: tuple[Need, ...] = (), weights: tuple[Weight, ...] = (), ticks: tuple[int, ...] = (),
    ) -> Stop:  # fmt: skip
        self.count += 1
        incoming = self._flow(gradient(node.outputs[0]), self.recorded.gradient(node.outputs[0]))
        return Stop(
            self.count, node.op_name, node.name, node.block, role, derivative, needs, incoming, added, outgoing,
            weights, ticks,
        )  # fmt: skip

    def _out(self, node: Node) -> Flow | None:
        """What a node sends to its input; a residual to the last of its two, whose gradient is then whole."""
        if not node.op.differentiable:
            return None
        tensor = node.ports[node.op.differentiable[-1]]
        return self._flow(self.effects.contribution(node, tensor), self.recorded.part(node, tensor))

    def _flow(self, name: str, values: Array) -> Flow:
        rows = np.linalg.norm(values.reshape(self.graph.tokens, -1).astype(np.float64), axis=1)
        return Flow(name, values.shape, float(np.linalg.norm(rows)), tuple(rows.tolist()))

    def _weights(self, node: Node) -> Iterator[Weight]:
        """The parameters whose gradient a node's backward adds to; one that a node before it reads too goes on."""
        before = self.graph.nodes[: self.graph.nodes.index(node)]
        for port in node.op.params:
            name = node.ports.get(port, "")
            if name in self.decoder.gradients:
                finished = not any(name in other.ports.values() for other in before)
                values = self.decoder.gradients[name] if finished else self.recorded.arrays[f"d:{name}+{node.name}"]
                yield Weight(name, values.shape, float(np.linalg.norm(values.astype(np.float64))), finished)
