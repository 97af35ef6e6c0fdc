"""A profile as people read it: one screen of at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from statistics import fmean
from typing import Any

from fastbp.base.units import format_bytes, format_count
from fastbp.report.bench import OPS_TITLE, milliseconds
from fastbp.report.columns import table_lines, wrapped
from fastbp.report.plan import live_lines

Row = Mapping[str, Any]

INDENT = 12
"""Columns of a line's name."""
SMALL = 0.005
"""Share of an update below which an op has no line of its own."""
LIVE_LINES = 8
WORDS = {"kept": "kept activations", "working": "working set", "gradients": "activation gradients"}
"""Categories as people call them, where that is not by their own names."""


def profile_lines(profile: Row) -> list[str]:
    """Everything that a profile says."""
    live = [(row["tensor"], row["bytes"], row["category"]) for row in profile["peak"]["live"]]
    lines = [
        *_head(profile),
        "",
        *OPS_TITLE,
        *op_lines(profile["ops"]),
        "",
        *block_lines(profile["blocks"]),
        "",
        *_memory(profile),
        *live_lines(live, LIVE_LINES),
        *(["", *advice_lines(profile)] if profile["advice"]["drops"] or profile["advice"]["planner"] else []),
        *(["", *resident_lines(profile["rss"])] if profile["rss"] else []),
    ]
    return [part for line in lines for part in wrapped(line, INDENT)]


def _head(profile: Row) -> Iterator[str]:
    update, limits = profile["update"], profile["limits"]
    seconds = update["seconds"]
    time = milliseconds(seconds["median"], (seconds["min"], seconds["max"]))
    yield f"profile     {profile['title']}, {profile['policy']}"
    yield f"ran on      {profile['backend']}, {profile['workers']} workers"
    yield (
        f"update      {time} ms, {100 * update['share_of_peak']:.1f} % of the FMA peak,"
        f" {format_count(update['tokens_per_second'])} tokens/s"
    )
    yield f"            {1e3 * update['calls_seconds']:.4g} ms as the sum of its calls, of which shares are taken"
    yield (
        f"limits      {limits['fma_peak_gflops']:.0f} GFLOP/s FMA peak, {limits['memory_gb_per_second']:.1f} GB/s"
        " memory bandwidth, in this run"
    )


def op_lines(rows: Sequence[Row]) -> list[str]:
    """One line an op and direction; those that take next to nothing in one."""
    shown = [row for row in rows if row["share"] >= SMALL]
    body = [
        [
            f"{row['op']} {row['direction']}", str(row["calls"]), _ms(row["seconds"]), _percent(row["share"]),
            f"{row['gflops']:.1f} GFLOP/s" if row["product_flops"] else f"{row['gb_per_s']:.1f} GB/s",
            _percent(row["share_of_limit"]),
        ]
        for row in shown
    ]  # fmt: skip
    rest = [row for row in rows if row["share"] < SMALL]
    if rest:
        calls, seconds, share = (sum(row[key] for row in rest) for key in ("calls", "seconds", "share"))
        body.append([f"{len(rest)} more", str(calls), _ms(seconds), _percent(share), "", ""])
    return table_lines(["op", "calls", "ms", "% of all", "speed", "% of limit"], body, gap=1)


def block_lines(rows: Sequence[Row]) -> list[str]:
    """One line for neighbours that keep and recompute as much, with the mean of their times; then what is outside."""
    title = ["block", "forward ms", "recompute ms", "backward ms", "kept", "recomputed"]
    body = []
    for _, group in groupby(
        rows, lambda row: (row["kept_bytes"], row["recomputed_bytes"], isinstance(row["block"], int))
    ):
        found = list(group)
        name = str(found[0]["block"])
        if len(found) > 1:
            name += f"-{found[-1]['block']}, each"
        times = [fmean(row[f"{stage}_seconds"] for row in found) for stage in ("forward", "recompute", "backward")]
        sizes = [format_bytes(found[0][key]) for key in ("kept_bytes", "recomputed_bytes")]
        body.append([name, *map(_ms, times), *sizes])
    return table_lines(title, body)


def _memory(profile: Row) -> Iterator[str]:
    peak, budget = profile["peak"], profile["budget_bytes"]
    limit = f", under a budget of {format_bytes(budget)}" if budget else ""
    yield (
        f"peak        {format_bytes(peak['bytes'])} of activations ({peak['bytes']} bytes),"
        f" at tick {peak['tick']}: {peak['action']}{limit}"
    )
    sizes = {WORDS.get(name, name): nbytes for name, nbytes in profile["categories"].items() if nbytes}
    words = (f"{name} {format_bytes(nbytes)}" for name, nbytes in sizes.items())
    yield f"all memory  {format_bytes(sum(sizes.values()))}: {', '.join(words)}"


def advice_lines(profile: Row) -> list[str]:
    """What to drop, and what a budget would cost."""
    advice, peak, extra = profile["advice"], profile["peak"]["bytes"], profile["extra_flops_share"]
    drops = [
        f"{each['tensor']} would free {format_bytes(peak - each['peak_bytes'])}"
        f" for {each['extra_flops_share'] - extra:.2%} more FLOPs"
        for each in advice["drops"]
    ]
    lines = [f"advice      dropped in every block, {', '.join(drops)}"] if drops else []
    if planned := advice["planner"]:
        name = "            " if drops else "advice      "
        lines.append(
            f"{name}--memory-budget {planned['budget']} peaks at {format_bytes(planned['peak_bytes'])} for"
            f" {planned['extra_flops_share']:.1%} of extra FLOPs, where {profile['policy']} takes"
            f" {format_bytes(peak)} for {extra:.1%}"
        )
    return lines


def resident_lines(rss: Row) -> list[str]:
    """What the system saw beside what was foretold."""
    words = (f"{name} {format_bytes(nbytes)}" for name, nbytes in rss["parts"].items())
    peak, mark, predicted, rest = (
        format_bytes(rss[f"{name}_bytes"]) for name in ("peak", "high_water", "predicted", "unexplained")
    )
    return [
        f"resident    {peak} at its peak as memory-profiler saw it ({mark} by the system's own mark),"
        f" {predicted} foretold: {rss['unexplained_share']:.1%} unexplained ({rest})",
        f"            {', '.join(words)}",
    ]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:#.3g}".rstrip(".") if seconds < 1 else f"{1e3 * seconds:.0f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
