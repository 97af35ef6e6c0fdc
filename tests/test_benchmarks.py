"""Every benchmark runs, at its smallest, and prints one row for each contender. The figures are not judged."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fastbp.check.torch_available import torch_version
from fastbp.ops.registry import OPS

FOLDER = Path(__file__).parents[1] / "benchmarks"
NUMBER = r"\d+(?:\.\d+)?"
needs_torch = pytest.mark.skipif(torch_version() is None, reason="torch is not installed")


def output(name: str, *arguments: object, without_torch: bool = False) -> list[str]:
    """What a benchmark prints. `without_torch` hides an installed torch from it."""
    path = str(FOLDER / name)
    command = [path]
    if without_torch:
        hide = (
            "import runpy, sys; import fastbp.check.torch_available as found;"
            " found.torch_version = lambda: None; sys.modules['torch'] = None;"
            f" sys.argv = [{path!r}, *sys.argv[1:]]; runpy.run_path({path!r}, run_name='__main__')"
        )
        command = ["-c", hide]
    done = subprocess.run(
        [sys.executable, *command, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(FOLDER.parent)}, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def update_rows(lines: list[str]) -> list[str]:
    """The contenders' names, after the form of their rows was checked."""
    row = rf"  (.{{18}}) {NUMBER} ms \[{NUMBER}-{NUMBER}\] +{NUMBER}% of peak +{NUMBER}x the first +\d+ runs"
    matches = [re.fullmatch(row, line) for line in lines]
    assert all(matches), lines
    return [match[1].strip() for match in matches if match]


def test_an_update_in_two_backends() -> None:
    blank, head, *rows = output("bench_update.py", "--presets", "seed", "--seconds", 0.01, without_torch=True)
    assert blank == ""
    assert re.match(r"seed: batch 1, context 8, 0\.000\d+ GFLOP an update, FMA peak \d+ GFLOP/s on \d+ cores", head)
    assert update_rows(rows) == ["fastbp numba", "fastbp cython"]


@needs_torch
def test_an_update_beside_torch() -> None:
    options = ("--presets", "seed", "--backends", "cython", "--torch", "eager", "--seconds", 0.01)
    assert update_rows(output("bench_update.py", *options)[2:]) == ["fastbp cython", "torch eager"]


def test_every_op() -> None:
    lines = output("bench_ops.py", "--preset", "seed", "--repeats", 1)
    assert re.fullmatch(r"seed, batch 1, one core; FMA peak \d+ GFLOP/s", lines[0])
    assert lines[1].split() == ["op", *[w for name in ("numba", "cython", "numpy") for w in (name, "ms", "GFLOP/s")]]
    rows = [line.split() for line in lines[2:]]
    used = {"embedding", "layernorm", "qkv", "attention", "linear", "gelu", "residual", "linear_cross_entropy"}
    assert used <= OPS.keys()
    assert {row[0] for row in rows} == used
    assert all(len(row) == 2 + 6 and all(float(number) >= 0 for number in row[2:]) for row in rows)


def test_a_training_run() -> None:
    options = ("--preset", "seed", "--steps", 3, "--batch", 2, "--eval-windows", 4)
    head, *rows = output("bench_training.py", *options, without_torch=True)
    assert re.fullmatch(r"seed, batch 2, 3 updates, \d+ cores, taking turns", head)
    assert len(rows) == 1
    assert re.fullmatch(rf"  fastbp +{NUMBER} s   validation loss {NUMBER}", rows[0])


@needs_torch
def test_a_training_run_beside_torch_ends_alike() -> None:
    options = ("--preset", "seed", "--steps", 3, "--batch", 2, "--eval-windows", 4)
    _, mine, torch, ratio = output("bench_training.py", *options)
    losses = [float(row.split()[-1]) for row in (mine, torch)]
    assert losses[0] == pytest.approx(losses[1], abs=2e-4)
    assert re.fullmatch(rf"  loss ratio (?:1\.000\d|0\.999\d), torch takes {NUMBER}x the time", ratio)
