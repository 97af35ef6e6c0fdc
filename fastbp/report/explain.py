"""A plan's tensors one by one, a plan and its change, and the planner's frontier, as people read them and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fastbp.base.units import format_bytes, format_count
from fastbp.graph.graph import Graph
from fastbp.policy.explain import Explanation
from fastbp.policy.optimal import Found
from fastbp.report.columns import table_lines, wrapped
from fastbp.schedule.actions import written
from fastbp.schedule.simulate import Simulation

INDENT = 14


def explanation_json(found: Explanation) -> dict[str, Any]:
    """Its fields, and what it costs a byte."""
    return {**asdict(found), "flops_per_byte": found.flops_per_byte}


def explanation_lines(simulation: Simulation, found: Sequence[Explanation]) -> list[str]:
    """A paragraph a tensor."""
    lines: list[str] = []
    for each in found:
        lines += ["", *_paragraph(simulation, each)]
    return [part for line in lines[1:] for part in wrapped(line, INDENT)]


def _paragraph(simulation: Simulation, found: Explanation) -> list[str]:
    wanted = found.backward_readers
    again = f"{found.recomputed_runs} runs of {found.producer} once more, {format_count(found.again_flops)} FLOPs"
    how = "kept from forward" if found.kept else ("brought back" if wanted else "not wanted by backward: never kept")
    return [
        f"{found.tensor}",
        f"  bytes       {found.nbytes} ({format_bytes(found.nbytes)}), {found.at_peak_bytes} of them live at the peak",
        f"  how         {how}" + (f": {again}" if found.recomputed_runs else ""),
        f"  made by     {found.producer}: {format_count(found.producer_flops)} FLOPs,"
        f" {found.flops_per_byte:.3g} for a byte",
        f"  forward     read by {', '.join(found.forward_readers) or 'nothing'}",
        f"  backward    read by {', '.join(wanted) or 'nothing'}",
        f"  lives       {_lives(simulation, found.lives)}",
    ]


def _lives(simulation: Simulation, lives: Sequence[tuple[int, int, int]]) -> str:
    """The first and the last, each from the action that begins it to the one that ends it."""
    actions = simulation.schedule.actions
    words = [
        f"ticks {born} ({written(actions[born])}) to {dies} ({written(actions[min(dies, len(actions) - 1)])})"
        for born, dies, _ in (lives if len(lives) <= 2 else (lives[0], lives[-1]))
    ]
    return f"{len(lives)}: " + (", ..., " if len(lives) > 2 else ", ").join(words)


def what_if_lines(words: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Two columns: as it is, and changed."""
    rows = [
        [
            name, format_bytes(each["peak_bytes"]), str(each["peak_bytes"]), format_bytes(each["kept_bytes"]),
            f"{each['extra_flops_share']:.2%}",
        ]
        for name, each in (("as it is", before), (words, after))
    ]  # fmt: skip
    difference = after["peak_bytes"] - before["peak_bytes"]
    flops = after["extra_flops_share"] - before["extra_flops_share"]
    table = table_lines(["plan", "peak", "bytes", "kept", "extra FLOPs"], rows)
    return [*table, "", f"difference    {difference:+d} bytes at the peak, {100 * flops:+.2f} points of extra FLOPs"]


def frontier_json(graph: Graph, points: Sequence[Found], measured: bool) -> dict[str, Any]:
    """The points by rising peak. `extra_seconds` is what each costs beyond the cheapest, null where not measured."""
    least = min(each.cost for each in points)
    return {
        "frontier": [
            {
                "peak_bytes": each.peak_bytes,
                "extra_flops_share": each.recomputed_flops / graph.flops_per_pass,
                "extra_seconds": (each.cost - least) / 1e9 if measured else None,
                "head_rows": each.plan.head_rows,
            }
            for each in points
        ]
    }


def frontier_lines(graph: Graph, points: Sequence[Found], measured: bool) -> list[str]:
    """A table by rising peak; `a MiB` is what the bytes up to the next line buy."""
    result = frontier_json(graph, points, measured)["frontier"]
    unit = "ms" if measured else "% FLOPs"
    costs = [1e3 * each["extra_seconds"] if measured else 100 * each["extra_flops_share"] for each in result]
    rows = []
    for i, each in enumerate(result):
        mib = (result[i + 1]["peak_bytes"] - each["peak_bytes"]) / 2**20 if i + 1 < len(result) else 0
        buys = f"{(costs[i] - costs[i + 1]) / mib:.3g} {unit}" if mib else ""
        row = [format_bytes(each["peak_bytes"]), str(each["peak_bytes"]), f"{each['extra_flops_share']:.2%}"]
        rows.append([*row, *([f"{costs[i]:.2f}"] if measured else []), buys])
    title = ["peak", "bytes", "extra FLOPs", *(["extra ms"] if measured else []), "a MiB more buys"]
    return table_lines(title, rows)
