"""What a schedule is made of. An action says when, never where or how."""

from __future__ import annotations

from dataclasses import dataclass

from fastbp.schedule.local import Rows

Local = tuple[tuple[str, Rows], ...]
"""Tensors and gradients of an action of which only a slice exists: (name, rows in tokens)."""


@dataclass(frozen=True)
class Forward:
    """Runs a node forward, or a slice of it: `rows` count along the dimension in which its op is independent. `takes`
    lists (new, old): new is written over old, whose buffer it takes.
    """

    node: str
    rows: Rows | None = None
    takes: tuple[tuple[str, str], ...] = ()
    local: Local = ()
    letter = "F"


@dataclass(frozen=True)
class Recompute(Forward):
    """Runs a node forward again, to bring back what backward needs."""

    letter = "R"


@dataclass(frozen=True)
class Backward:
    """Runs a node backward: gradients of its inputs from those of its outputs. `takes` as in Forward."""

    node: str
    rows: Rows | None = None
    takes: tuple[tuple[str, str], ...] = ()
    local: Local = ()
    letter = "B"


@dataclass(frozen=True)
class Reduce:
    """into += source: a tensor with several readers gets its gradient in several parts."""

    into: str
    source: str
    rows: Rows | None = None
    letter = "+"


@dataclass(frozen=True)
class Pack:
    """Stores a tensor, or some rows of it, as bfloat16. `local` as in Forward."""

    tensor: str
    rows: Rows | None = None
    local: Local = ()
    letter = "P"


@dataclass(frozen=True)
class Unpack:
    """Brings a packed tensor, or some rows of it, back as the reals that bfloat16 left. `local` as in Forward."""

    tensor: str
    rows: Rows | None = None
    local: Local = ()
    letter = "U"


@dataclass(frozen=True)
class Free:
    """A tensor's buffer is over."""

    tensor: str
    letter = "-"


Action = Forward | Recompute | Backward | Reduce | Pack | Unpack | Free
"""What a schedule holds; below, the actions that run a node, convert a tensor, or bring one back."""
RunsNode = Forward | Backward
Converts = Pack | Unpack
BringsBack = Recompute | Unpack


def written(action: Action) -> str:
    """An action as a word: "F blocks.0.qkv", "B losses[0:96]", "+ d:final.x", "P blocks.0.u[0:64]", "- blocks.0.p"."""
    if isinstance(action, Free):
        return f"- {action.tensor}"
    if isinstance(action, Reduce):
        return f"+ {action.into}{_slice(action.rows)}"
    if isinstance(action, Converts):
        return f"{action.letter} {action.tensor}{_slice(action.rows)}"
    return f"{action.letter} {action.node}{_slice(action.rows)}"


def _slice(rows: Rows | None) -> str:
    return f"[{rows[0]}:{rows[1]}]" if rows else ""
