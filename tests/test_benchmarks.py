"""Every benchmark runs, at its smallest, and prints one row for each contender. The figures are not judged."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from fastbp.check.torch_available import torch_version

FOLDER = Path(__file__).parents[1] / "benchmarks"
NUMBER = r"\d+(?:\.\d+)?"
needs_jax = pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed")
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


def contenders(lines: list[str]) -> list[str]:
    """The contenders of one table, after the form of their rows was checked."""
    assert lines[0].split() == ["contender", "ms", "%", "of", "peak", "times", "peak", "RSS", "runs"]
    row = rf"(\w+ [\w@.-]+) +{NUMBER} \[{NUMBER}-{NUMBER}\] +{NUMBER} \[\d+-\d+\] +{NUMBER} +{NUMBER} MiB +\d+"
    matches = [re.fullmatch(row, line) for line in lines[2:]]
    assert all(matches), lines
    return [match[1] for match in matches if match]


def test_an_update_in_two_backends() -> None:
    missing, blank, head, *rows = output("bench_update.py", "--presets", "seed", "--seconds", 0.01, without_torch=True)
    assert (missing, blank) == ("not installed: torch", "")
    assert re.match(r"seed: batch 1, context 8, 0\.000\d+ GFLOP an update, 1 workers", head)
    assert contenders(rows) == ["fastbp cython", "fastbp numba"]


@needs_torch
def test_an_update_beside_torch() -> None:
    options = ("--presets", "seed", "--contenders", "fastbp cython,torch eager", "--seconds", 0.01)
    assert contenders(output("bench_update.py", *options)[2:]) == ["fastbp cython", "torch eager"]


@needs_jax
@pytest.mark.parametrize("mode", ["unrolled", "scan-dots"])
def test_an_update_beside_jax(mode: str) -> None:
    options = ("--presets", "seed", "--contenders", f"fastbp cython,jax {mode}", "--seconds", 0.01)
    assert contenders(output("bench_update.py", *options)[2:]) == ["fastbp cython", f"jax {mode}"]


def test_memory() -> None:
    options = ("--presets", "seed", "--contenders", "fastbp cython,fastbp numpy", "--rounds", 2)
    head, *rows = output("bench_memory.py", *options)
    assert head == "seed: batch 1, peak resident memory of 2 processes each"
    size = rf"{NUMBER} MiB"
    for row, name in zip(rows, ("fastbp cython", "fastbp numpy"), strict=True):
        assert re.fullmatch(rf"  {name} +{size} \[{size} - {size}\]  {NUMBER} of fastbp numpy", row)
    assert "1.00 of" in rows[1]


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
