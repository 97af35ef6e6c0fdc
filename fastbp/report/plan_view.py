"""A plan with all that follows from it, as a value that shows itself: what `fastbp plan` prints."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fastbp.base.errors import InputError
from fastbp.base.shown import Shown
from fastbp.base.units import exact_bytes, format_bytes, parse_bytes
from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import ITEMSIZE, parameter_shapes
from fastbp.graph.graph import Graph
from fastbp.memory.flat import FlatShapes
from fastbp.memory.layout import Layout, lay_out
from fastbp.policy.cost import COSTS, Cost
from fastbp.policy.named import make_plan
from fastbp.report.asked import Asked
from fastbp.report.plan import plan_json, plan_lines
from fastbp.schedule.plan import Plan
from fastbp.schedule.schedule import training_schedule
from fastbp.schedule.simulate import Simulation, simulate


@dataclass(frozen=True)
class PlanView(Shown):
    """A plan of a graph. `parameter_bytes` are those of the parameters alone."""

    graph: Graph
    plan: Plan
    parameter_bytes: int

    @cached_property
    def simulation(self) -> Simulation:
        return simulated(self.graph, self.plan)

    @cached_property
    def layout(self) -> Layout:
        return lay_out(self.simulation)

    @cached_property
    def whole(self) -> Layout:
        """The layout of save_all, to compare with."""
        return lay_out(simulated(self.graph, make_plan(self.graph, "save_all")))

    @property
    def peak_bytes(self) -> int:
        """The arena that training needs."""
        return self.layout.size_bytes

    @property
    def kept_bytes(self) -> int:
        return self.simulation.kept_bytes

    @property
    def extra_flops_share(self) -> float:
        return self.simulation.extra_flops_share

    def to_json(self) -> dict[str, Any]:
        """The keys of `fastbp plan --json`."""
        return plan_json(self.simulation, self.layout, self.parameter_bytes)

    def lines(self, schedule: bool = False) -> list[str]:
        """What is shown, with every action where `schedule` is asked for."""
        return plan_lines(self.simulation, self.layout, self.whole, self.parameter_bytes, schedule)

    def __repr__(self) -> str:
        return f"<PlanView: {self.plan.policy}, peak {format_bytes(self.peak_bytes)}>"


def simulated(graph: Graph, plan: Plan) -> Simulation:
    """What a plan's schedule needs."""
    return simulate(training_schedule(graph, plan))


def view(config: DecoderConfig, dtype: str, graph: Graph, plan: Plan) -> PlanView:
    """A plan of the decoder's graph in a dtype."""
    return PlanView(graph, plan, FlatShapes(parameter_shapes(config)).size * ITEMSIZE[dtype])


def plan(
    decoder: DecoderConfig | str = "small", batch: int | None = None, *, policy: str | None = None,
    memory_budget: int | str | None = None, lossy: bool = False, cost: Cost = COSTS["roofline"], backend: str = "auto",
    workers: int | None = None, dtype: str = "float32",
) -> PlanView:  # fmt: skip
    """The plan of a policy ("save_all" where none is asked for), or the cheapest in `memory_budget` bytes ("64MiB").

    `decoder` is a configuration or the name of a preset, `batch` the preset's or 1 where it is None. Runs nothing: what
    a plan under a budget minimises is `cost`, a roofline unless measured seconds are given (run/seconds.py). Raises
    InputError for what is unknown, DoesNotFit for a budget that no plan fits into.
    """
    if memory_budget is not None:
        if policy is not None:
            raise InputError(f"memory_budget and policy {policy!r}: give one of them")
        size = parse_bytes(memory_budget) if isinstance(memory_budget, str) else memory_budget
        policy = f"optimal({exact_bytes(size)})"
    asked = Asked(decoder, batch, backend, workers, dtype)
    graph = asked.graph()
    return view(asked.config, dtype, graph, make_plan(graph, policy or "save_all", cost, lossy))
