"""Lifetimes → an offset for every buffer in one arena.

Buffers that are live at the same tick must not overlap. Each is placed at the lowest offset that is free for its whole
lifetime, in several orders; the order that ends lowest wins. Where none reaches the lower bound (the most bytes live at
any tick), the buffers that stick out above it move to the front and the placement is tried again, a fixed number of
times. Everything is a function of the schedule alone. Source: Pisarchyk and Lee 2020 (greedy by size and by breadth);
the repair is this file's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fastbp.base.errors import DoesNotFit
from fastbp.base.shown import Fact, Shown
from fastbp.base.units import format_bytes
from fastbp.graph.graph import Graph
from fastbp.memory._place import place
from fastbp.schedule.effects import Effects
from fastbp.schedule.plan import Plan
from fastbp.schedule.schedule import training_schedule
from fastbp.schedule.simulate import Buffer, Simulation, simulate

REPAIRS, MANY_BUFFERS = 60, 500
"""Tries an order; an eighth of them for more buffers than these, where the first few find what there is to find."""
LARGEST_BYTES = 1 << 50
"""More than any machine has; offsets and their sums stay within 64 bits."""


@dataclass(frozen=True)
class Layout(Shown):
    """Offsets in bytes, one a buffer of the simulation, and the size of the arena."""

    buffers: tuple[Buffer, ...]
    offsets: tuple[int, ...]
    size_bytes: int
    live_peak_bytes: int

    @property
    def fragmentation_bytes(self) -> int:
        """Bytes of the arena that no tick needs: its size above the most bytes live at once."""
        return self.size_bytes - self.live_peak_bytes

    def facts(self) -> list[Fact]:
        return [
            ("arena", f"{format_bytes(self.size_bytes)} ({self.size_bytes} bytes) for {len(self.buffers)} buffers"),
            ("of these", f"{self.fragmentation_bytes} bytes more than are live at any tick"),
        ]  # fmt: skip


def lay_out(simulation: Simulation, enough: int = 0) -> Layout:
    """The layout of a schedule's buffers: the smallest that was found, or the first of at most `enough` bytes. Raises
    DoesNotFit for more than any machine has.
    """
    buffers = simulation.buffers
    if sum(buffer.nbytes for buffer in buffers) > LARGEST_BYTES:
        raise _too_large(simulation.peak_bytes)
    born, dies, sizes = lifetimes(buffers)
    bound = simulation.peak_bytes
    enough = max(enough, bound)
    best, size = None, 0
    for order in _orders(born, dies, sizes):
        for _ in range(REPAIRS if len(buffers) <= MANY_BUFFERS else REPAIRS // 8):
            offsets = place(order, born, dies, sizes)
            top = int((offsets + sizes).max(initial=0))
            if best is None or top < size:
                best, size = offsets, top
            if top <= enough:
                break
            above = offsets + sizes > bound
            order = np.concatenate([order[above[order]], order[~above[order]]])
        if size <= enough:
            break
    assert best is not None
    return Layout(buffers, tuple(int(offset) for offset in best), size, bound)


def lay_out_scattered(simulation: Simulation) -> Layout:
    """A layout in which buffers come in no order, so that what is alike from slice to slice has no home. So most are
    placed where memory is tight and blocks differ, and what goes from core to core is then more.
    """
    buffers = simulation.buffers
    born, dies, sizes = lifetimes(buffers)
    offsets = place(np.random.default_rng(0).permutation(len(buffers)), born, dies, sizes)
    size = int((offsets + sizes).max(initial=0))
    return Layout(buffers, tuple(int(offset) for offset in offsets), size, simulation.peak_bytes)


def lifetimes(buffers: Sequence[Buffer]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """When buffers are born and die, in ticks, and their bytes; (n) int64 each."""
    born = np.array([buffer.born for buffer in buffers])
    dies = np.array([buffer.dies for buffer in buffers])
    sizes = np.array([buffer.nbytes for buffer in buffers])
    return born, dies, sizes


def layout_bytes(graph: Graph, plan: Plan, enough: int = 0) -> int:
    """The arena that a plan needs, or an upper bound of it of at most `enough` bytes. Raises DoesNotFit for more than
    any machine has.
    """
    effects = Effects(graph)
    return lay_out(simulate(training_schedule(graph, plan, effects), effects), enough).size_bytes


def require_plannable(graph: Graph) -> None:
    """Raises DoesNotFit for a graph whose activations no machine holds, before minutes go into its schedule."""
    total = sum(graph.bytes_of(tensor.name) for tensor in graph.activations)
    if total > LARGEST_BYTES:
        raise _too_large(total)


def _too_large(nbytes: int) -> DoesNotFit:
    return DoesNotFit(
        f"the plan needs {format_bytes(nbytes)} of activations: take a smaller --batch, --context or decoder"
    )


def _orders(born: np.ndarray, dies: np.ndarray, sizes: np.ndarray) -> Sequence[np.ndarray]:
    """Orders of placement: the largest first, the longest-lived first, the most byte-ticks first, the first born
    first.
    """
    length = dies - born
    return (
        np.lexsort((born, -length, -sizes)),
        np.lexsort((born, -sizes, -length)),
        np.lexsort((born, -sizes * length)),
        np.lexsort((-length, born)),
    )
