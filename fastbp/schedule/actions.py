"""What a schedule is made of. An action says when, never where or how."""

from __future__ import annotations

from dataclasses import dataclass

Rows = tuple[int, int]
"""A slice [start, stop) along the dimension in which an op is independent."""


@dataclass(frozen=True)
class Forward:
    """Runs a node forward. `takes` lists (new, old): new is written over old, whose buffer it takes."""

    node: str
    rows: Rows | None = None
    takes: tuple[tuple[str, str], ...] = ()
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
    letter = "B"


@dataclass(frozen=True)
class Reduce:
    """into += source: a tensor with several readers gets its gradient in several parts."""

    into: str
    source: str
    letter = "+"


@dataclass(frozen=True)
class Free:
    """A tensor's buffer is over."""

    tensor: str
    letter = "-"


Action = Forward | Recompute | Backward | Reduce | Free


def written(action: Action) -> str:
    """An action as a word: "F blocks.0.qkv", "B losses[0:96]", "+ d:final.x", "- blocks.0.p"."""
    if isinstance(action, Free):
        return f"- {action.tensor}"
    if isinstance(action, Reduce):
        return f"+ {action.into}"
    rows = f"[{action.rows[0]}:{action.rows[1]}]" if action.rows else ""
    return f"{action.letter} {action.node}{rows}"
