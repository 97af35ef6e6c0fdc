"""A decoder that is ready to run: its parameters, its plan and the programs for gradients and evaluation.

decoder = Decoder(DecoderConfig.preset("small"), batch=12, policy="full")
decoder.tokens[:], decoder.targets[:] = …
decoder.forward_backward()
decoder.loss, decoder.gradients["wte"]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, partial

import numpy as np

from fastbp.base.errors import InputError
from fastbp.base.rng import stream
from fastbp.base.shown import Fact, Shown
from fastbp.base.units import format_bytes
from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import ITEMSIZE, decoder_graph, parameter_shapes, sinusoidal_positions
from fastbp.memory.arena import Arena
from fastbp.memory.flat import Flat, FlatShapes
from fastbp.memory.layout import Layout, lay_out, lay_out_scattered, layout_bytes
from fastbp.memory.settle import settle
from fastbp.policy.cost import COSTS, Cost
from fastbp.policy.named import make_plan
from fastbp.run.backend import choose_backend
from fastbp.run.bind import Binder
from fastbp.run.fit import Smaller, require_memory
from fastbp.run.needed import least_bytes, state_bytes
from fastbp.run.program import Program
from fastbp.run.runner import Runner
from fastbp.run.workers import choose_parts, choose_workers
from fastbp.schedule.plan import Plan
from fastbp.schedule.schedule import Schedule, evaluation_schedule, training_schedule
from fastbp.schedule.simulate import Simulation, simulate

INIT_SPREAD = 0.02


class Decoder(Shown):
    """Parameters, gradients and bound programs of one decoder at one batch size.

    `tokens`, `targets` (B, T) int32 and `row_weights` (B, T) are read by a run, `losses` (B, T) written. A row's weight
    is its share of the loss: 1/N for the mean. Gradients accumulate until `zero_gradients` or an optimiser clears them.
    Where there is dropout, `choose_masks` says what the next runs leave out; an evaluation leaves out nothing.
    `lossy` lets the policy optimal(SIZE) keep tensors as bfloat16.
    """

    def __init__(
        self,
        config: DecoderConfig,
        batch: int,
        *,
        policy: str = "save_all",
        plan: Plan | None = None,
        cost: Cost = COSTS["roofline"],
        lossy: bool = False,
        backend: str = "auto",
        workers: int | None = None,
        dtype: str = "float32",
        progress: Callable[[str], None] | None = None,
    ) -> None:
        if batch < 1:
            raise InputError(f"batch is {batch}: give at least 1 sequence")
        if dtype not in ITEMSIZE:
            raise InputError(f"dtype '{dtype}' is unknown: choose float32 or float64")
        self.config, self.batch, self.dtype = config, batch, dtype
        self.backend = choose_backend(backend)
        self.workers = choose_workers(workers, decoder_graph(config, batch).products_per_pass)
        self.parts = choose_parts(self.workers) if self.backend.compiled else 0
        # What cannot fit is refused before it is planned: a schedule of a billion rows takes minutes.
        require_memory(
            least_bytes(config, batch, dtype), f"--batch {batch} at context {config.context}", self._smaller()
        )
        self.graph = decoder_graph(config, batch, workers=self.parts, dtype=dtype)
        self.plan = plan or make_plan(self.graph, policy, cost, lossy)
        self._progress = progress
        self.schedule = training_schedule(self.graph, self.plan)
        self.simulation = simulate(self.schedule)
        self.layout = settle(lay_out(self.simulation))
        what = f"--policy '{self.plan.policy}' --batch {batch} at context {config.context}"
        require_memory(self._needed_bytes(self.layout.size_bytes), what, self._smaller())
        self._make_static()
        self.arena = Arena(max(self.layout.size_bytes, self._evaluation[2].size_bytes))
        self.gradients_program = self._bind(self.schedule, self.layout)
        self.runner = Runner(self.workers)

    def facts(self) -> list[Fact]:
        peak = self.peak_bytes_predicted
        return [
            *self.config.facts(),
            ("batch", f"{self.batch} sequences, {self.tokens.size} tokens, {self.dtype}"),
            ("plan", f"{self.plan.policy}: {format_bytes(peak)} of activations ({peak} bytes),"
             f" {self.simulation.extra_flops_share:.1%} more FLOPs"),
            ("runs on", f"{self.backend.name}, {self.workers} workers"),
        ]  # fmt: skip

    def __repr__(self) -> str:
        return f"<Decoder: {self.config.blocks} blocks of width {self.config.width}, {self.plan.policy}>"

    def _needed_bytes(self, arena_bytes: int) -> int:
        """Parameters, gradients and the two moments of training, and the arena."""
        return state_bytes(self.config, self.dtype) + arena_bytes

    def _smaller(self) -> Iterator[Smaller]:
        """Ways to ask for less, the mildest first."""
        batch = self.batch
        while batch:
            least = least_bytes(self.config, batch, self.dtype)
            yield Smaller(f"--policy full --batch {batch}", least, partial(self._full_bytes, batch))
            batch //= 2

    def _full_bytes(self, batch: int) -> int:
        """What the policy `full` needs at another batch."""
        graph = decoder_graph(self.config, batch, workers=self.parts, dtype=self.dtype)
        return self._needed_bytes(layout_bytes(graph, make_plan(graph, "full")))

    def _make_static(self) -> None:
        """What lives outside the arena: parameters and their gradients, tokens, targets, losses."""
        shape = (self.batch, self.config.context)
        shapes = FlatShapes(parameter_shapes(self.config))
        self.parameters, self.gradients = Flat(shapes, self.dtype), Flat(shapes, self.dtype)
        self.tokens, self.targets = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        self.losses, self.row_weights = (
            np.zeros(shape, self.dtype),
            np.full(shape, 1 / (shape[0] * shape[1]), self.dtype),
        )
        self.dropout_state = np.zeros(2, np.int32)
        self._constants: dict[str, np.ndarray] = {}
        if self.config.positions == "sinusoidal":
            table = sinusoidal_positions(self.config.context, self.config.width)
            self._constants["positions"] = np.ascontiguousarray(table.astype(self.dtype))

    def _bind(self, schedule: Schedule, layout: Layout) -> Program:
        host = {name: getattr(self, name) for name in ("tokens", "targets", "losses", "dropout_state")}
        values = {**self.parameters, **self._constants, **host}
        gradients = {**self.gradients, "losses": self.row_weights}
        binder = Binder(schedule, layout, self.arena, values, gradients, self.dtype, self.backend, self._progress)
        return self.in_parts(binder.program())

    def under(self, plan: Plan, scattered: bool = False) -> tuple[Schedule, Program]:
        """The schedule of another plan, and its program for gradients in the same memory; its buffers `scattered`, if
        there is room for that. Raises ValueError where the arena is too small.
        """
        schedule = training_schedule(self.graph, plan)
        simulation = simulate(schedule)
        layout = lay_out_scattered(simulation) if scattered else settle(lay_out(simulation))
        if layout.size_bytes > self.arena.size_bytes:
            if scattered:
                return self.under(plan)
            raise ValueError(f"{plan.policy} takes {layout.size_bytes} bytes, the arena has {self.arena.size_bytes}")
        return schedule, self._bind(schedule, layout)

    def in_parts(self, program: Program) -> Program:
        """The program, handed out in tasks where there are more parts than workers."""
        return program.in_tasks(self.parts) if self.parts > self.workers else program

    @cached_property
    def _evaluation(self) -> tuple[Schedule, Simulation, Layout]:
        graph = self.graph
        if self.config.dropout:
            whole = replace(self.config, dropout=0.0)
            graph = decoder_graph(whole, self.batch, workers=self.parts, dtype=self.dtype)
        schedule = evaluation_schedule(graph, self.plan)
        simulation = simulate(schedule)
        return schedule, simulation, lay_out(simulation)

    @cached_property
    def evaluation_program(self) -> Program:
        return self._bind(self._evaluation[0], self._evaluation[2])

    def initialise(self, seed: int) -> None:
        """Weights N(0, 0.02), norms 1, biases 0; a function of the seed and the tensor's name alone."""
        for name, values in self.parameters.items():
            if values.ndim < 2:
                values[:] = 1 if name.endswith("weight") else 0
                continue
            spread = INIT_SPREAD
            if self.config.scaled_init and name.endswith(("wo", "w2")):
                spread /= (2 * self.config.blocks) ** 0.5
            values[:] = spread * stream(seed, f"init {name}").standard_normal(values.shape)

    def choose_masks(self, seed: int, update: int, micro: int = 0) -> None:
        """The masks of dropout in the runs from here on: a function of these three alone."""
        if self.config.dropout:
            words = stream(seed, "dropout", update, micro).integers(2**32, size=2, dtype=np.uint32)
            self.dropout_state[:] = words.view(np.int32)

    def forward_backward(self) -> None:
        """Losses and gradients of `tokens` against `targets`; gradients are added to what is there."""
        self.runner.run(self.gradients_program)

    def evaluate(self) -> None:
        """Losses alone."""
        self.runner.run(self.evaluation_program)

    def zero_gradients(self) -> None:
        self.gradients.flat[:] = 0

    @property
    def loss(self) -> float:
        """Σ row_weights·losses, in float64: the mean loss of the last run where weights are 1/N."""
        return float(np.dot(self.losses.ravel().astype(np.float64), self.row_weights.ravel().astype(np.float64)))

    @property
    def peak_bytes_predicted(self) -> int:
        """The size of the training layout: the most bytes that are live at once, and gaps where these do not pack."""
        return self.layout.size_bytes

    def mark_arena(self) -> None:
        """Prepares `peak_bytes_measured`: the next run shows what it touches. Costs one write of the arena."""
        self.arena.mark()

    def peak_bytes_measured(self) -> int:
        """The end of the highest buffer that was written to since `mark_arena`."""
        places = (
            (offset, buffer.nbytes) for buffer, offset in zip(self.layout.buffers, self.layout.offsets, strict=True)
        )
        return self.arena.high_water_bytes(places)

    def measure_peak_bytes(self) -> int:
        """Runs forward and backward once over a marked arena, clears the gradients and returns
        `peak_bytes_measured`.
        """
        self.mark_arena()
        self.forward_backward()
        self.zero_gradients()
        return self.peak_bytes_measured()
