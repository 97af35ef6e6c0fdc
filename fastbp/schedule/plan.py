"""The decision: which activations are kept from forward to backward. A value; it knows no addresses and no kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fastbp.graph.graph import Graph

LOGITS_BYTES = 48 << 20
"""The most that the head's logits may take at once; the head runs in slices of rows that fit."""
TOGETHER = 16
"""Rows of the head that fill the longest vector: a slice has a multiple of them where that fits."""


@dataclass(frozen=True)
class Plan:
    """`keep` names the activations that stay; what else backward reads is recomputed when it is first needed, once.

    `head_rows` is the number of rows of the head that are worked on at a time.
    """

    policy: str
    keep: frozenset[str]
    head_rows: int

    def keeping(self, more: frozenset[str]) -> Plan:
        """The same plan with more kept."""
        return replace(self, keep=self.keep | more)


def head_rows(graph: Graph, limit_bytes: int = LOGITS_BYTES) -> int:
    """The most rows whose logits fit in `limit_bytes`; at least one, slices as even as whole vectors of rows allow."""
    head = graph.nodes[-1]
    rows = head.dims.N
    most = max(1, limit_bytes // (head.dims.V * graph.itemsize))
    slices = -(-rows // most)
    even = -(-rows // slices)
    whole = -(-even // TOGETHER) * TOGETHER
    return whole if whole <= most and even < rows else even
