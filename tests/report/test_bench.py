"""The tables of the benchmark, at their widest."""

from __future__ import annotations

from typing import Any

from fastbp.report.bench import bench_lines, contender_lines, op_lines, product_lines

SPEED = {"gflops": 1234.56, "share_of_peak": 0.98765, "share_range": [0.912, 1.034]}
PRODUCT: dict[str, Any] = {
    "kind": "forward", "m": 1024, "n": 50257, "k": 768, "where": ["qkv", "proj"], "uses": 4, **SPEED,
    "one_worker": SPEED | {"gflops": 117.0},
}  # fmt: skip
OP: dict[str, Any] = {
    "op": "linear_cross_entropy", "direction": "backward", "seconds": 1.23456, "seconds_range": [1.2, 1.3456],
    "gflops": 1234.5, "gb_per_second": None, "limit": "peak", "share_of_limit": 0.5, "share_range": [0.1, 1.0],
}  # fmt: skip
MEMORY_OP = OP | {
    "op": "gelu", "gflops": None, "gb_per_second": 123.4, "limit": "memory", "seconds": 0.00123456,
    "seconds_range": [0.0012, 0.0013],
}  # fmt: skip
UPDATE: dict[str, Any] = {
    "seconds": 0.0123, "seconds_range": [0.01, 0.02], "runs": 300, "share_of_peak": 0.8, "share_range": [0.7, 0.9],
    "flops_per_update": 3_000_000_000, "tokens_per_second": 45678.9,
}  # fmt: skip
CONTENDER = UPDATE | {"ratio": 1.654, "rss_peak_bytes": 3 << 30, "seconds": 12.3, "seconds_range": [10.0, 20.0]}
PEERS: dict[str, Any] = {
    "fastbp cython": CONTENDER, "torch compile@0.75": CONTENDER, "jax unrolled": {"failed": "no " + "space " * 30},
}  # fmt: skip
RESULT: dict[str, Any] = {
    "preset": "gpt2", "batch": 1, "context": 1024, "dtype": "float32", "policy": "save_all", "backend": "cython",
    "workers": 2, "fma_peak_gflops": {"1": 117.4, "2": 234.5}, "fma_peak_range": {"1": [110.0, 118.0], "2": [1, 2]},
    "memory_gb_per_second": 29.94, "barrier_seconds": 5.5e-8, "barrier_range": [5e-8, 3.26e-7],
    "gemm": [PRODUCT, PRODUCT | {"kind": "dX", "where": ["losses"]}],
    "ops": [OP, MEMORY_OP], "update": UPDATE | {"peers": PEERS}, "not_installed": ["torch"],
}  # fmt: skip


def test_everything_fits() -> None:
    lines = bench_lines(RESULT)
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    for part in (
        "117 GFLOP/s [110-118] by 1", "29.9 GB/s", "0.06 µs [0.05-0.33] for all workers to meet",
        "gpt2: batch 1, context 1024", "cython, 2 workers",
        "12.3 [10.0-20.0] ms, 300 runs: 80.0 [70-90] % of the peak", "243.9 GFLOP/s", "45,679 tokens/s",
        "not installed: torch",
    ):  # fmt: skip
        assert part in " ".join(text.split())
    assert not any("\x1b" in line for line in lines)


def test_a_product_is_one_line() -> None:
    title, _, row = product_lines([PRODUCT | {"n": 3072, "gflops": 234.5}], workers=2)
    assert " ".join(title.split()) == "kind M N K used by by 1 % of peak by 2 % of peak"
    assert " ".join(row.split()) == "forward 1024 3072 768 qkv proj 117.0 98.8 [91-103] 234.5 98.8 [91-103]"
    (_, _, head) = product_lines([PRODUCT | {"where": ["losses"]}], workers=1)
    assert " ".join(head.split()) == "forward 1024 50257 768 head 117.0 98.8 [91-103]"


def test_an_op_is_one_line_with_the_unit_of_its_limit() -> None:
    _, _, products, memory = op_lines([OP, MEMORY_OP])
    assert products.split()[:4] == ["linear_cross_entropy", "backward", "1235", "[1200-1346]"]
    assert products.endswith("1234.5 GFLOP/s 50.0 [10-100]")
    assert memory.split()[:6] == ["gelu", "backward", "1.23", "[1.20-1.30]", "123.4", "GB/s"]


def test_milliseconds_have_three_digits_or_more() -> None:
    rows = [
        MEMORY_OP | {"seconds": s, "seconds_range": [s, s]} for s in (1.2345, 0.012345, 0.0012345, 0.00012345, 1e-6)
    ]
    assert [line.split()[2] for line in op_lines(rows)[2:]] == ["1234", "12.3", "1.23", "0.123", "0.001"]


def test_contenders_and_what_became_of_them() -> None:
    lines = contender_lines(PEERS)
    assert " ".join(lines[2].split()) == "fastbp cython 12300 [10000-20000] 80.0 [70-90] 1.65 3.0 GiB 300"
    assert lines[4].startswith("jax unrolled failed: no space")
    assert max(map(len, lines)) <= 80


def test_one_worker_has_nobody_to_meet() -> None:
    assert "to meet" not in "\n".join(bench_lines(RESULT | {"workers": 1}))
