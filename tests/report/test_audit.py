"""What an audit found, in words."""

from __future__ import annotations

from fastbp.check.audit import Audit, Difference
from fastbp.report.audit import audit_line


def test_nothing_that_differs() -> None:
    line = audit_line(Audit(39, 18 << 20, None).to_json())
    assert line == "every bit as in forward: 39 recomputed tensors, 18.0 MiB compared"


def test_the_first_that_differs() -> None:
    found = Difference("blocks.1.u", "linear (blocks.1.u)", (64, 128))
    assert audit_line(Audit(3, 100, found).to_json()) == (
        "blocks.1.u, rows 64 to 127, is not what it was in forward: recomputed by linear (blocks.1.u)"
        " (3 recomputed tensors, 100 B compared)"
    )
