"""The graph: nodes in topological order and the tensors between them. It says what is computed, nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from fastbp.base.dims import Dims
from fastbp.graph.tensor import Tensor
from fastbp.ops.op import Op
from fastbp.ops.registry import OPS


@dataclass(frozen=True)
class Node:
    """One use of an op: its dimensions, attributes and the tensors at its ports."""

    name: str
    op_name: str
    dims: Dims
    ports: Mapping[str, str]
    attributes: Mapping[str, float] = field(default_factory=dict)
    block: int | None = None
    """The decoder's block that it belongs to; None for embedding, final norm and head."""

    @cached_property
    def op(self) -> Op:
        return OPS[self.op_name]

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Tensors that forward reads and that are not parameters, in the op's order."""
        return tuple(self.ports[port] for port in self.op.inputs)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Tensors that forward writes: outputs, then saved ones."""
        return tuple(self.ports[port] for port in (*self.op.outputs, *self.op.saved))

    @cached_property
    def backward_reads(self) -> tuple[str, ...]:
        return tuple(self.ports[port] for port in self.op.backward_reads if port in self.ports)

    @cached_property
    def rows(self) -> int:
        """The size of the dimension along which the node may run in slices."""
        return self.dims[self.op.independent_along]

    @cached_property
    def flops(self) -> tuple[int, int]:
        """FLOPs of (forward, backward), products and pointwise work together."""
        products, pointwise = self.op.products(self.dims), self.op.pointwise(self.dims)
        return products[0] + pointwise[0], products[1] + pointwise[1]


@dataclass(frozen=True)
class Graph:
    """Tensors by name and nodes in topological order. `workers` counts the scratch areas (the dimension W)."""

    tensors: Mapping[str, Tensor]
    nodes: tuple[Node, ...]
    itemsize: int

    def __post_init__(self) -> None:
        written: set[str] = {name for name, tensor in self.tensors.items() if tensor.kind != "activation"}
        for node in self.nodes:
            for name in node.inputs:
                if name not in written:
                    raise ValueError(f"node {node.name} reads {name} before it is written")
            for port, name in node.ports.items():
                expected = prod(node.op.shape(port, node.dims))
                if self.tensors[name].size != expected:
                    raise ValueError(
                        f"node {node.name}: {port} has {expected} elements, {name} {self.tensors[name].size}"
                    )
            written.update(node.outputs)

    @cached_property
    def tokens(self) -> int:
        """Rows of an activation: N = B·T."""
        return max((node.dims["N"] for node in self.nodes if "N" in node.dims), default=1)

    def tokens_per_unit(self, node: Node) -> int:
        """Tokens in a step of the dimension along which a node is independent: 1, or T where that counts sequences."""
        return self.tokens // node.rows

    @cached_property
    def by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def producer(self) -> dict[str, Node]:
        """The node that writes each activation."""
        return {name: node for node in self.nodes for name in node.outputs}

    @cached_property
    def parameters(self) -> tuple[Tensor, ...]:
        return tuple(tensor for tensor in self.tensors.values() if tensor.kind == "parameter")

    @cached_property
    def activations(self) -> tuple[Tensor, ...]:
        return tuple(tensor for tensor in self.tensors.values() if tensor.kind == "activation")

    @cached_property
    def read_by_backward(self) -> frozenset[str]:
        """Activations that some backward reads: what a plan keeps or recomputes."""
        names = {name for node in self.nodes for name in node.backward_reads}
        return frozenset(name for name in names if self.tensors[name].kind == "activation")

    @cached_property
    def blocks(self) -> int:
        return 1 + max((node.block for node in self.nodes if node.block is not None), default=-1)

    @cached_property
    def nodes_of_block(self) -> tuple[tuple[Node, ...], ...]:
        """The nodes of each block, in order."""
        found: list[list[Node]] = [[] for _ in range(self.blocks)]
        for node in self.nodes:
            if node.block is not None:
                found[node.block].append(node)
        return tuple(map(tuple, found))

    def bytes_of(self, name: str) -> int:
        return self.tensors[name].nbytes(self.itemsize)

    @cached_property
    def products_per_pass(self) -> int:
        """`flops_per_update` of one pass: matrix products forward and backward, nothing recomputed."""
        return sum(sum(node.op.products(node.dims)) for node in self.nodes)

    @cached_property
    def flops_per_pass(self) -> int:
        """All FLOPs, forward and backward, of a pass that recomputes nothing."""
        return sum(sum(node.flops) for node in self.nodes)
