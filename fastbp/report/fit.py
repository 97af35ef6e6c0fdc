"""What fits into memory, as people read it, and as JSON."""

from __future__ import annotations

import re
import shlex
from typing import Any

from fastbp.base.units import format_bytes, format_count
from fastbp.report.columns import WIDTH, wrapped
from fastbp.schedule.simulate import Simulation

INDENT = 12
"""Columns of a line's name."""
GOES_ON, GLUE = " \\", "\0"


def fit_json(
    what: str, batch: int, context: int, memory_bytes: int, state_bytes: int, arena_bytes: int, simulation: Simulation,
    ended: bool,
) -> dict[str, Any]:  # fmt: skip
    """The keys of `fastbp fit --json`. `ended`: more would fit, but the search goes no further."""
    return {
        "what": what,
        "batch": batch,
        "context": context,
        "policy": simulation.schedule.plan.policy,
        "budget_bytes": simulation.schedule.plan.budget_bytes,
        "peak_bytes": arena_bytes,
        "memory_bytes": memory_bytes,
        "state_bytes": state_bytes,
        "total_bytes": state_bytes + arena_bytes,
        "kept_bytes": simulation.kept_bytes,
        "extra_flops_share": simulation.extra_flops_share,
        "search_ended": ended,
    }


def fit_lines(result: dict[str, Any], command: str) -> list[str]:
    """The result in at most 80 columns. `command` trains with it."""
    size = result[result["what"]]
    other = "context" if result["what"] == "batch" else "batch"
    ended = "; more may fit, but the search ends here" if result["search_ended"] else ""
    lines = [
        f"largest     {result['what']} {size} at {other} {result[other]} in {format_bytes(result['memory_bytes'])}:"
        f" {format_count(result['batch'] * result['context'])} tokens a batch{ended}",
        f"total       {format_bytes(result['total_bytes'])} ({result['total_bytes']} bytes); the process itself, code"
        " and libraries, comes on top",
        f"state       {format_bytes(result['state_bytes'])}: parameters, their gradients, two moments",
        f"peak        {format_bytes(result['peak_bytes'])} of activations ({result['peak_bytes']} bytes),"
        f" for {result['extra_flops_share']:.1%} more FLOPs than keeping all",
        f"policy      {result['policy']}",
    ]
    return [*(part for line in lines for part in wrapped(line, INDENT)), *_command_lines(command)]


def _command_lines(command: str) -> list[str]:
    """A command to try, of which a shell takes several lines as one; an option stays beside its value."""
    glued = re.sub(r"(--\S+) ", rf"\1{GLUE}", command)
    *lines, last = wrapped(f"try         {glued}", INDENT, WIDTH - len(GOES_ON))
    return [line.replace(GLUE, " ") for line in (*(line + GOES_ON for line in lines), last)]


def training_command(result: dict[str, Any], given: dict[str, Any]) -> str:
    """`fastbp train` with what fits, and with the options that were given."""
    given = given | {"batch": result["batch"], "context": result["context"], "memory-budget": result["budget_bytes"]}
    return shlex.join(["fastbp", "train", *(word for name in given for word in (f"--{name}", str(given[name])))])
