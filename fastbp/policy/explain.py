"""What a plan does with one tensor: its bytes, its life, who wants it, and what it takes to bring it back."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fastbp.base.errors import InputError, nearest
from fastbp.graph.graph import Graph
from fastbp.policy.named import short_name
from fastbp.schedule.actions import Recompute
from fastbp.schedule.local import tensor_of
from fastbp.schedule.plan import Plan
from fastbp.schedule.simulate import Simulation, padded


@dataclass(frozen=True)
class Explanation:
    """`lives` are [born, dies) in ticks with the bytes held then; `at_peak` are bytes of it at the peak; `again_flops`
    those that the schedule spends on bringing it back, `producer_flops` of one run of the op that makes it.
    """

    tensor: str
    nbytes: int
    kept: bool
    producer: str
    producer_flops: int
    forward_readers: tuple[str, ...]
    backward_readers: tuple[str, ...]
    lives: tuple[tuple[int, int, int], ...]
    recomputed_runs: int
    again_flops: int
    at_peak_bytes: int

    @property
    def flops_per_byte(self) -> float:
        """What its op costs for every byte that dropping it frees."""
        return self.producer_flops / self.nbytes


def tensors_called(graph: Graph, name: str) -> list[str]:
    """The activations of a name: "blocks.3.qkv", or "qkv" in every block. Raises InputError with the nearest one."""
    found = [tensor.name for tensor in graph.activations if name in (tensor.name, short_name(tensor.name))]
    if not found:
        known = {short_name(tensor.name) for tensor in graph.activations}
        raise InputError(f"tensor '{name}' is unknown{nearest(name, known)}: choose {', '.join(sorted(known))}")
    return found


def explain(simulation: Simulation, tensor: str) -> Explanation:
    """What the schedule does with a tensor."""
    schedule, graph = simulation.schedule, simulation.schedule.graph
    node = graph.producer[tensor]
    runs = [action for action in schedule.actions if isinstance(action, Recompute) and action.node == node.name]
    rows = sum(action.rows[1] - action.rows[0] if action.rows else node.rows for action in runs)
    lives = [
        (start, stop, buffer.nbytes)
        for buffer in simulation.buffers
        for name, start, stop in buffer.holds()
        if not name.startswith("d:") and " of " not in name and tensor_of(name) == tensor
    ]
    at_peak = (nbytes for start, stop, nbytes in lives if start <= simulation.peak_tick < stop)
    return Explanation(
        tensor,
        padded(graph.bytes_of(tensor)),
        tensor in schedule.plan.keep,
        node.name,
        node.flops[0],
        tuple(each.name for each in graph.nodes if tensor in each.inputs),
        tuple(each.name for each in graph.nodes if tensor in each.backward_reads),
        tuple(sorted(lives)),
        len(runs),
        node.flops[0] * rows // node.rows,
        sum(at_peak),
    )


def changed(graph: Graph, plan: Plan, words: str) -> Plan:
    """A plan with a tensor kept or recomputed: "qkv=keep", "u=recompute". Raises InputError for other words."""
    name, _, how = words.partition("=")
    if how not in ("keep", "recompute"):
        raise InputError(f"--what-if {words}: write TENSOR=keep or TENSOR=recompute")
    names = frozenset(tensors_called(graph, name.strip()))
    if how == "keep" and not names & graph.read_by_backward:
        raise InputError(f"--what-if {words}: backward reads no such tensor, so that keeping it is of no use")
    keep = plan.keep | (names & graph.read_by_backward) if how == "keep" else plan.keep - names
    return replace(plan, keep=keep, packed=plan.packed & keep, policy=f"{plan.policy}, {words}")
