"""Finds the blocks that a decoder's products run fastest with on this CPU.

One dimension after the other: its candidates take turns over all products of an update, and a change is kept where it
is faster by more than the noise of a shared machine. The register tile is not tuned: on the CPUs measured every tile
that fills the registers reaches the FMA peak out of the cache, so blocks are what differs.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from fastbp.run._loop import Instructions
from fastbp.run.backend import Backend
from fastbp.run.blocking import Blocking
from fastbp.run.measure import in_turn, seconds_of
from fastbp.run.products import Product, ProductBench
from fastbp.run.program import Program
from fastbp.run.workers import Workers

CANDIDATES = {"depth": (384, 256, 192, 128), "rows": (128, 64, 32), "panels": (12, 8, 4)}
WORTH = 0.01
"""A change must be faster by this share of the time."""


@dataclass(frozen=True)
class Tuned:
    """The blocks that were found, and the time of the products with them over that with the default."""

    blocking: Blocking
    time_share: float


def tune(
    products: Iterable[Product], backend: Backend, dtype: str, team: Workers, seconds: float,
    progress: Callable[[str], None] = lambda text: None,
) -> Tuned:  # fmt: skip
    """The best blocks for `products`, each counted as often as an update runs it; the backend uses them from then on.
    `seconds` for each dimension.
    """
    products = tuple(products)
    bench = ProductBench(products, backend, dtype, team.count)
    programs = [(_compiled(bench.program(product)), product.uses) for product in products]

    def run(blocking: Blocking) -> float:
        backend.set_blocking(blocking, dtype)
        return sum(uses * seconds_of(partial(team.run, program)) for program, uses in programs)

    best, share = Blocking(), 1.0
    for name, values in CANDIDATES.items():
        candidates = [replace(best, **{name: value}) for value in values]
        taken: dict[Blocking, list[float]] = defaultdict(list)
        for candidate in in_turn(candidates, seconds):
            progress(f"{name} {getattr(candidate, name)}")
            taken[candidate].append(run(candidate))
        medians = {candidate: statistics.median(taken[candidate]) for candidate in candidates}
        fastest = min(medians, key=medians.__getitem__)
        if medians[fastest] < (1 - WORTH) * medians[best]:
            share *= medians[fastest] / medians[best]
            best = fastest
    backend.set_blocking(best, dtype)
    return Tuned(best, share)


def _compiled(program: Program) -> Instructions:
    assert program.compiled is not None
    return program.compiled
