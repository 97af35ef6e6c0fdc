"""The table of a comparison, and the lines under it."""

from __future__ import annotations

from typing import Any

from fastbp.report.comparison import comparison_lines, knee_of


def row(policy: str, mib: float, ms: float, **more: Any) -> dict[str, Any]:
    return {
        "policy": policy, "peak_bytes_predicted": int(mib * 2**20), "peak_bytes_measured": int(mib * 2**20),
        "kept_bytes": 1, "rss_peak_bytes": 99 << 20, "extra_flops_share": 0.125, "passes": 3,
        "times_reference": ms / 20, "times_predicted": None, "gradients_bit_equal": True,
        "seconds": {"median": ms / 1e3, "min": ms / 2e3, "max": ms / 1e3}, **more,
    }  # fmt: skip


ROWS = [
    row("optimal(2MiB)", 2, 30), row("optimal(4MiB)", 4, 21), row("selective(gelu, layernorm)", 19, 21),
    row("save_all", 27, 20), row("optimal(30MiB)", 27, 20), {"policy": "optimal(1)", "failed": "no plan fits into 1 B"},
]  # fmt: skip


def lines(rows: list[dict[str, Any]], **more: Any) -> list[str]:
    result = {
        "preset": "small", "batch": 12, "context": 64, "dtype": "float32", "backend": "cython", "workers": 2,
        "rounds": 3, "reference": "save_all", "rss_of": "policy", "knee": knee_of(rows),
        "cost": "roofline", "place": "near", "passes_elsewhere": 0, "meeting_seconds": [3e-8, 5e-8],
        "rows": rows, **more,
    }  # fmt: skip
    found = comparison_lines(result)
    assert max(map(len, found)) <= 80
    return found


def test_the_knee_is_the_planner_s() -> None:
    assert knee_of(ROWS) == "optimal(4MiB)"
    assert knee_of(ROWS[:2]) is None
    assert knee_of([]) is None


def test_a_row_a_policy_and_what_held() -> None:
    found = lines(ROWS)
    assert found[0] == "small: batch 12, context 64, float32, cython, 2 workers, 3 rounds"
    assert found[4].split() == ["optimal(2MiB)", "2.0", "MiB", "12.5%", "30.0", "[15.0-30.0]", "1.50", "99.0", "MiB"]
    assert found[11:] == [
        "optimal(1) did not fit: no plan fits into 1 B",
        "peak of activations: measured as predicted, to the byte",
        "gradients: the same bits as save_all's under all 5, in every round",
        "the planner's line bends at optimal(4MiB)",
    ]


def said(rows: list[dict[str, Any]], **more: Any) -> str:
    return " ".join(" ".join(lines(rows, **more)).split())


def test_what_counts_where_cores_were_moved_is_told() -> None:
    rows = [row("save_all", 10, 20)]
    assert lines(rows, meeting_seconds=None) == lines(rows, place="apart") == lines(rows)
    moved = {"meeting_seconds": [3e-8, 3.1e-7], "passes_elsewhere": 5}
    text = said(rows, **moved)
    assert "cores, which took 0.03 to 0.31 µs to meet: times are of 3 of 8 passes, where they shared a cache" in text
    assert "prediction" not in text
    text = said(rows, **moved, place="apart", cost="measured")
    assert "where they shared none" in text
    assert "there is no prediction: the cores were not there for long enough to measure the calls" in text
    assert "times are of all of them, and say little" in said(rows, **moved, place=None)


def test_what_failed_is_said() -> None:
    rows = [
        row("full", 2, 30, peak_bytes_measured=7, gradients_bit_equal=False),
        row("sqrt", 3, 30, gradients_bit_equal=False),
        row("save_all", 4, 30),
    ]
    assert lines(rows, rss_of="process")[8:] == [
        "FAILED: full was to peak at 2097152 bytes, and peaked at 7",
        "FAILED: gradients are not save_all's under full, sqrt",
        "peak RSS is the process's up to then: this system cannot forget one",
    ]


def test_audits_are_added_up_unless_one_failed() -> None:
    good = {"tensors": 3, "bytes": 1024, "difference": None}
    bad = {
        "tensors": 1,
        "bytes": 9,
        "difference": {"tensor": "blocks.0.u", "op": "linear (blocks.0.u)", "rows": [0, 1]},
    }
    rows = [row("full", 2, 30, audit=good), row("sqrt", 2, 30, audit=good), row("save_all", 4, 20, audit=good)]
    assert "audit of all 3: every bit as in forward: 9 recomputed tensors, 3.0 KiB compared" in " ".join(lines(rows))
    rows[1]["audit"] = bad
    text = " ".join(" ".join(lines(rows)).split())
    assert "FAILED: audit of sqrt: blocks.0.u, rows 0 to 0, is not" in text
    assert "audit of all" not in text
