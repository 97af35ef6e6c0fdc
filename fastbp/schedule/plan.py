"""The decision: which activations are kept from forward to backward, and in what slices the rest is walked. A value; it
knows no addresses and no kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby

from fastbp.base.errors import InputError
from fastbp.base.shown import Fact, Shown
from fastbp.graph.graph import Graph
from fastbp.schedule.reversal import Reversal

LOGITS_BYTES = 48 << 20
"""The most that the head's logits may take at once; the head runs in slices of rows that fit."""
TOGETHER = 16
"""Rows of the head that fill the longest vector: a slice has a multiple of them where that fits."""


@dataclass(frozen=True)
class Slices:
    """How a block is walked: so many sequences at a time, within them so many rows at a time where an op goes row
    by row. What is dropped exists for a slice alone, forward and backward; what a norm gives is brought back for each
    of its readers.
    """

    sequences: int
    rows: int


@dataclass(frozen=True)
class Plan(Shown):
    """`keep` names the activations that stay; what else backward reads is recomputed when it is first needed, once.

    `head_rows` is the number of rows of the head that are worked on at a time; where "final.ln" is not kept, the final
    norm goes with them. `slices` has an entry a block, None for one that is walked whole, or none at all.
    `budget_bytes` is what the plan was made for, if anything. `reversal` is the order in which blocks are walked
    backward where inputs are brought back more than once; without it the last block comes first, and what is brought
    back stays.
    """

    policy: str
    keep: frozenset[str]
    head_rows: int
    slices: tuple[Slices | None, ...] = ()
    budget_bytes: int | None = None
    reversal: Reversal | None = None
    packed: frozenset[str] = frozenset()
    """Those of `keep` that wait for backward as bfloat16: half the bytes, and gradients that are no longer exact."""

    def __post_init__(self) -> None:
        if not self.packed <= self.keep:
            raise ValueError(f"packed, but not kept: {', '.join(sorted(self.packed - self.keep))}")

    @property
    def exact(self) -> frozenset[str]:
        """What is kept as it was computed."""
        return self.keep - self.packed

    def keeping(self, more: frozenset[str]) -> Plan:
        """The same plan with more kept."""
        return replace(self, keep=self.keep | more)

    def facts(self) -> list[Fact]:
        """What each block keeps and how it is walked; blocks that are alike share a line."""
        last = max((int(name.split(".")[1]) for name in self.keep if name.startswith("blocks.")), default=-1)
        blocks = range(max(len(self.slices), last + 1))
        alike = [list(found) for _, found in groupby(blocks, key=self._of_block)]
        rest = sorted(name for name in self.keep if not name.startswith("blocks."))
        return [
            ("plan", self.policy),
            *((f"block {found[0]}" if len(found) == 1 else f"blocks {found[0]}-{found[-1]}", self._of_block(found[0]))
              for found in alike),
            ("besides", f"keeps {', '.join(rest) or 'nothing'}; the head walked {self.head_rows} rows at a time"),
        ]  # fmt: skip

    def _of_block(self, block: int) -> str:
        prefix, slices = f"blocks.{block}.", self.slices_of(block)
        exact, packed = (
            sorted(name.removeprefix(prefix) for name in names if name.startswith(prefix))
            for names in (self.exact, self.packed)
        )
        walked = f"; walked {slices.sequences} sequences, {slices.rows} rows at a time" if slices else ""
        kept = [", ".join(exact)] if exact else []
        kept += [f"as bfloat16 {', '.join(packed)}"] if packed else []
        return f"keeps {' and '.join(kept) or 'nothing'}{walked}"

    def slices_of(self, block: int | None) -> Slices | None:
        """How a block is sliced; None where it is walked whole."""
        return self.slices[block] if block is not None and self.slices else None


def require_packable(graph: Graph, packed: frozenset[str]) -> None:
    """Raises InputError for a lossy plan in another dtype than float32, ValueError for one that packs what lies outside
    the blocks.
    """
    if graph.itemsize != 4:
        raise InputError("a lossy plan stores float32 as bfloat16: take --dtype float32, or no --lossy")
    outside = sorted(name for name in packed if not name.startswith("blocks."))
    if outside:
        raise ValueError(f"packed, but outside the blocks: {', '.join(outside)}")


def head_rows(graph: Graph, limit_bytes: int = LOGITS_BYTES) -> int:
    """The most rows whose logits fit in `limit_bytes`; at least one, slices as even as whole vectors of rows allow."""
    head = graph.nodes[-1]
    rows = head.dims.N
    most = max(1, limit_bytes // (head.dims.V * graph.itemsize))
    slices = -(-rows // most)
    even = -(-rows // slices)
    whole = -(-even // TOGETHER) * TOGETHER
    return whole if whole <= most and even < rows else even
