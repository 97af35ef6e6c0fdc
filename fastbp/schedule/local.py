"""Names of buffers that hold a slice of a tensor's rows: "blocks.0.u[64:128]" exists while its slice is walked.

Rows are tokens, also where an op counts sequences. A name without a slice is the whole tensor's, or its gradient's.
"""

from __future__ import annotations

from functools import cache

Rows = tuple[int, int]
"""A slice [start, stop)."""


def local(name: str, rows: Rows) -> str:
    """The buffer that holds `rows` of a tensor or gradient."""
    return f"{name}[{rows[0]}:{rows[1]}]"


@cache
def parted(name: str) -> tuple[str, Rows | None]:
    """A buffer's tensor or gradient, and the rows that it holds; None for all of them."""
    if not name.endswith("]"):
        return name, None
    tensor, _, rows = name[:-1].rpartition("[")
    start, stop = rows.split(":")
    return tensor, (int(start), int(stop))


PACKED = "bf16:"
"""What the name of a buffer begins with that holds a tensor as bfloat16."""


def packed(tensor: str) -> str:
    """The buffer that holds a tensor as bfloat16, always whole."""
    return PACKED + tensor


@cache
def tensor_of(name: str) -> str:
    """The tensor whose shape a buffer has: "blocks.0.mid" for "d:blocks.0.mid+blocks.0.ln2[0:64]"."""
    whole = parted(name)[0].removeprefix(PACKED)
    return whole.removeprefix("d:").split("+")[0] if whole.startswith("d:") else whole
