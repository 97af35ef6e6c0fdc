"""The figures of `fastbp bench` as people read them: tables of at most 80 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastbp.base.units import format_bytes, format_count
from fastbp.report.columns import table_lines, wrapped

Row = Mapping[str, Any]

OPS_TITLE = (
    "Ops in an update: % of the FMA peak where products dominate (GFLOP/s),",
    "else of the memory's bandwidth (GB/s; above 100: the caches gave more)",
)
"""What is said above a table of ops."""


def bench_lines(result: Row) -> list[str]:
    """Everything that `fastbp bench` found out."""
    lines = [
        *(part for line in _machine(result) for part in wrapped(line, 14)),
        "",
        "Products by 1 worker and by all: GFLOP/s, % of the FMA peak beside [range]",
        *product_lines(result["gemm"], result["workers"]),
        "",
        *OPS_TITLE,
        *op_lines(result["ops"]),
        "",
        *_update(result["update"]),
    ]
    peers = result["update"]["peers"]
    if peers:
        lines += ["", "Updates, each contender a process of its own, in turn with the first", *contender_lines(peers)]
    if result["not_installed"]:
        lines += ["", f"not installed: {', '.join(result['not_installed'])}"]
    return lines


def _machine(result: Row) -> list[str]:
    peaks = (
        f"{result['fma_peak_gflops'][count]:.0f} GFLOP/s [{low:.0f}-{high:.0f}] by {count}"
        for count, (low, high) in result["fma_peak_range"].items()
    )
    low, high = (1e6 * seconds for seconds in result["barrier_range"])
    barrier = f"barrier       {1e6 * result['barrier_seconds']:.2f} µs [{low:.2f}-{high:.2f}] for all workers to meet"
    return [
        f"bench         {result['preset']}: batch {result['batch']}, context {result['context']}, {result['dtype']},"
        f" {result['policy']}",
        f"ran on        {result['backend']}, {result['workers']} workers",
        f"FMA peak      {', '.join(peaks)} (workers)",
        f"memory        {result['memory_gb_per_second']:.1f} GB/s, a triad by all workers",
        *([] if result["workers"] == 1 else [barrier]),
    ]


def product_lines(rows: Sequence[Row], workers: int) -> list[str]:
    """One line a product: by one worker, then by all of them."""
    alone = workers == 1
    title = ["kind", "M", "N", "K", "used by", "by 1", "% of peak"]
    title += [] if alone else [f"by {workers}", "% of peak"]
    body = []
    for row in rows:
        cells = [row["kind"], *(str(row[letter]) for letter in "mnk"), _where(row["where"])]
        for found in (row["one_worker"],) if alone else (row["one_worker"], row):
            cells += [f"{found['gflops']:.1f}", _share(found["share_of_peak"], found["share_range"])]
        body.append(cells)
    return table_lines(title, body, left=(0, 4), gap=1)


def _where(names: Sequence[str]) -> str:
    return " ".join("head" if name == "losses" else name for name in names)


def op_lines(rows: Sequence[Row]) -> list[str]:
    """One line an op and direction."""
    body = [
        [
            f"{row['op']} {row['direction']}", milliseconds(row["seconds"], row["seconds_range"]),
            f"{row['gflops']:.1f} GFLOP/s" if row["limit"] == "peak" else f"{row['gb_per_second']:.1f} GB/s",
            _share(row["share_of_limit"], row["share_range"]),
        ]
        for row in rows
    ]  # fmt: skip
    return table_lines(["op", "ms", "speed", "% of limit"], body, gap=1)


def _update(row: Row) -> list[str]:
    gflops = row["flops_per_update"] / row["seconds"] / 1e9
    return wrapped(
        f"Update        {milliseconds(row['seconds'], row['seconds_range'])} ms, {row['runs']} runs:"
        f" {_share(row['share_of_peak'], row['share_range'])} % of the peak, {gflops:.1f} GFLOP/s,"
        f" {format_count(row['tokens_per_second'])} tokens/s",
        14,
    )


def contender_lines(rows: Mapping[str, Row]) -> list[str]:
    """One line a contender; `times` is its median over the first's in the same minutes."""
    body = [
        [
            name, milliseconds(row["seconds"], row["seconds_range"]), _share(row["share_of_peak"], row["share_range"]),
            f"{row['ratio']:.2f}", format_bytes(row["rss_peak_bytes"]), str(row["runs"]),
        ]
        for name, row in rows.items() if "failed" not in row
    ]  # fmt: skip
    failed = [f"{name} failed: {row['failed']}" for name, row in rows.items() if "failed" in row]
    table = table_lines(["contender", "ms", "% of peak", "times", "peak RSS", "runs"], body)
    return [*table, *(part for line in failed for part in wrapped(line, 2))]


def _share(median: float, bounds: Sequence[float]) -> str:
    """In percent."""
    low, high = bounds
    return f"{100 * median:.1f} [{100 * low:.0f}-{100 * high:.0f}]"


def milliseconds(median: float, bounds: Sequence[float]) -> str:
    """Median [fastest-slowest] of seconds, in milliseconds, with three digits or more."""
    digits = next((digits for digits, least in enumerate((0.1, 0.01, 0.001)) if median >= least), 3)
    low, high = bounds
    return f"{1e3 * median:.{digits}f} [{1e3 * low:.{digits}f}-{1e3 * high:.{digits}f}]"
