"""Policies side by side, as people read them: a table of at most 80 columns, and what held for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastbp.base.units import format_bytes
from fastbp.policy.frontier import Point, knee
from fastbp.report.audit import audit_line
from fastbp.report.bench import milliseconds
from fastbp.report.columns import table_lines, wrapped
from fastbp.run.places import APART, NEAR

Row = Mapping[str, Any]

PLANNER = "optimal("
"""How the planner's policies begin."""


def knee_of(rows: Sequence[Row]) -> str | None:
    """The planner's policy at the knee of its line of measured peaks against seconds."""
    points: dict[Point, str] = {
        (row["peak_bytes_measured"], row["seconds"]["median"]): row["policy"]
        for row in rows
        if row["policy"].startswith(PLANNER) and "failed" not in row
    }
    found = knee(list(points))
    return points[found] if found else None


def comparison_lines(result: Row) -> list[str]:
    """What `fastbp compare` found out. Rows come by their peak; `times` is of the reference's time, each the
    lower quartile of its passes, `pred` what the measured calls foretell.
    """
    rows = [row for row in result["rows"] if "failed" not in row]
    head = (
        f"{result['preset']}: batch {result['batch']}, context {result['context']}, {result['dtype']},"
        f" {result['backend']}, {result['workers']} workers, {result['rounds']} rounds"
    )
    notes = [
        *_failures(result["rows"]),
        *_exactness(rows),
        *_gradients(rows, result["reference"]),
        *_audits(rows),
        *_moves(result),
        *([f"the planner's line bends at {result['knee']}"] if result["knee"] else []),
        *(
            ["peak RSS is the process's up to then: this system cannot forget one"]
            if result["rss_of"] != "policy"
            else []
        ),
    ]
    return [*wrapped(head, 2), "", *_table(result), "", *(part for note in notes for part in wrapped(note, 2))]


def _table(result: Row) -> list[str]:
    body = []
    for row in result["rows"]:
        if "failed" in row:
            body.append([row["policy"], "no fit", "", "", "", "", ""])
            continue
        seconds, predicted = row["seconds"], row["times_predicted"]
        body.append([
            row["policy"], format_bytes(row["peak_bytes_measured"]), f"{row['extra_flops_share']:.1%}",
            milliseconds(seconds["median"], (seconds["min"], seconds["max"])),
            f"{row['times_reference']:.2f}", "" if predicted is None else f"{predicted:.2f}",
            format_bytes(row["rss_peak_bytes"]),
        ])  # fmt: skip
    return table_lines(["policy", "peak", "FLOPs+", "ms", "times", "pred", "peak RSS"], body, gap=1)


def _failures(rows: Sequence[Row]) -> Iterator[str]:
    yield from (f"{row['policy']} did not fit: {row['failed']}" for row in rows if "failed" in row)


def _exactness(rows: Sequence[Row]) -> Iterator[str]:
    wrong = [row for row in rows if row["peak_bytes_measured"] != row["peak_bytes_predicted"]]
    for row in wrong:
        yield (
            f"FAILED: {row['policy']} was to peak at {row['peak_bytes_predicted']} bytes,"
            f" and peaked at {row['peak_bytes_measured']}"
        )
    if not wrong:
        yield "peak of activations: measured as predicted, to the byte"


def _gradients(rows: Sequence[Row], reference: str) -> Iterator[str]:
    wrong = [row["policy"] for row in rows if not row["gradients_bit_equal"]]
    if wrong:
        yield f"FAILED: gradients are not {reference}'s under {', '.join(wrong)}"
    else:
        yield f"gradients: the same bits as {reference}'s under all {len(rows)}, in every round"


def _moves(result: Row) -> Iterator[str]:
    """Says so where the workers' cores were moved: what counts is then a part of what was timed."""
    if not result["passes_elsewhere"] and result["place"]:
        return
    low, high = (1e6 * seconds for seconds in result["meeting_seconds"])
    moved = f"the system moved the workers' cores, which took {low:.2f} to {high:.2f} µs to meet"
    if result["place"] is None:
        yield f"{moved}, in most passes: times are of all of them, and say little"
        return
    counted = sum(row["passes"] for row in result["rows"] if "failed" not in row)
    share = {NEAR: "shared a cache", APART: "shared none"}[result["place"]]
    yield f"{moved}: times are of {counted} of {counted + result['passes_elsewhere']} passes, where they {share}"
    if any(row.get("times_predicted") is None for row in result["rows"]) and result["cost"] == "measured":
        yield "there is no prediction: the cores were not there for long enough to measure the calls"


def _audits(rows: Sequence[Row]) -> Iterator[str]:
    audits = [(row["policy"], row["audit"]) for row in rows if "audit" in row]
    wrong = [(policy, audit) for policy, audit in audits if audit["difference"]]
    for policy, audit in wrong:
        yield f"FAILED: audit of {policy}: {audit_line(audit)}"
    if audits and not wrong:
        total = {name: sum(audit[name] for _, audit in audits) for name in ("tensors", "bytes")}
        yield f"audit of all {len(audits)}: {audit_line(total)}"
