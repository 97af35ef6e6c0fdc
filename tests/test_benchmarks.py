"""Every benchmark runs, at its smallest, and prints one row for each contender. The figures are not judged."""

from __future__ import annotations

import csv
import os
import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

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
        env=os.environ | {"PYTHONPATH": str(FOLDER.parent)}, capture_output=True, text=True, check=False, timeout=600,
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


def test_planning() -> None:
    options = ("--preset", "seed", "--blocks", 4, "--budgets", "1KiB,64KiB", "--rounds", 1)
    head, *rows = output("bench_planning.py", *options)
    assert head == "seed with 4 blocks, 1 processes each"
    row = rf"  +{NUMBER} KiB  (optimal|rotor) +{NUMBER} \[{NUMBER}-{NUMBER}\] s +{NUMBER} of rotor's +(.*)"
    found = [match.groups() for match in (re.fullmatch(row, line) for line in rows) if match]
    assert [name for name, _ in found] == 2 * ["optimal", "rotor"]
    assert [plan for _, plan in found][:2] == 2 * ["no plan fits"]
    assert all(re.fullmatch(rf"{NUMBER}% more FLOPs", plan) for _, plan in found[2:])


def test_pairs() -> None:
    head, columns, *rows = output(
        "bench_pairs.py", "--preset", "seed", "--policies", "full,optimal(64KiB)", "--pairs", 5
    )
    assert re.fullmatch(r"seed: batch 1, cython, \d+ workers, 5 pairs", head)
    assert columns.split()[0] == "policy"
    row = rf"(\S+) +{NUMBER} KiB +[+-]{NUMBER}% +([0-5]) +{NUMBER}e[+-]\d\d"
    matches = [re.fullmatch(row, line) for line in rows]
    assert [match and match[1] for match in matches] == ["save_all", "full", "optimal(64KiB)"]


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


@pytest.fixture(scope="module")
def policies() -> dict[str, Any]:
    """What bench_policies.py defines."""
    return runpy.run_path(str(FOLDER / "bench_policies.py"))


def policy_rows(lines: list[str], folder: Path) -> dict[str, dict[str, str]]:
    """The rows of the CSV by contender, after the printed table was checked against them."""
    head, rule, *rows = [line for line in lines if line.startswith("|")]
    assert head.split("|")[1].strip() == "contender"
    assert set(rule) == set("|-: ")
    with (folder / "policies-seed.csv").open(newline="") as file:
        found = {row["contender"]: row for row in csv.DictReader(file)}
    size = rf"{NUMBER} (?:B|[KMG]iB)"
    cell = rf"{size}|–"
    form = rf"\| (.+?) (?:\| (?:{cell}) ){{3}}\| (?:{NUMBER}%|–) \| {size} \| (?:{cell}) "
    form += rf"\| {NUMBER} \[{NUMBER}-{NUMBER}\] \| {NUMBER} \|"
    matches = [re.fullmatch(form, row) for row in rows]
    assert [match and match[1] for match in matches] == list(found)
    assert all(line.count("|") == head.count("|") for line in (rule, *rows))
    return found


def test_policies_measure_what_they_predict(tmp_path: Path) -> None:
    options = (
        "--presets",
        "seed",
        "--policies",
        "full,selective(gelu, layernorm),nothing",
        "--peers",
        "",
        "--budgets",
        "90%",
    )
    lines = output(
        "bench_policies.py", *options, "--budgets", "90%", "--rounds", 2, "--seconds", 0, "--out", tmp_path / "new"
    )
    rows = policy_rows(lines, tmp_path / "new")
    *named, planned = rows
    assert named == ["fastbp save_all", "fastbp full", "fastbp selective(gelu, layernorm)"]
    assert re.fullmatch(r"fastbp optimal\(\d+\)", planned)
    assert int(rows[planned]["measured_peak_bytes"]) <= 0.9 * int(rows["fastbp save_all"]["measured_peak_bytes"]) + 1
    peaks = [int(row["measured_peak_bytes"]) for row in rows.values()]
    assert [int(row["predicted_peak_bytes"]) for row in rows.values()] == peaks
    assert peaks[0] > peaks[2] > peaks[1]
    assert float(rows["fastbp save_all"]["times_save_all"]) == 1
    assert "fastbp nothing failed: " in lines[-1]
    assert "'nothing' is unknown" in lines[-1]
    assert (tmp_path / "new" / "policies-seed.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "peer", [pytest.param("torch checkpoint", marks=needs_torch), pytest.param("jax scan-remat", marks=needs_jax)]
)
def test_policies_beside_a_peer(peer: str, tmp_path: Path) -> None:
    options = (
        "--presets",
        "seed",
        "--policies",
        "save_all",
        "--budgets",
        "",
        "--peers",
        peer,
        "--rounds",
        1,
        "--seconds",
        0,
    )
    row = policy_rows(
        output("bench_policies.py", *options, "--rounds", 1, "--seconds", 0, "--out", tmp_path), tmp_path
    )[peer]
    assert row["predicted_peak_bytes"] == row["kept_bytes"] == row["extra_flops_share"] == ""
    assert int(row["measured_peak_bytes"]) > 2 * 8 * 16 * 4  # the stream and its gradient
    assert float(row["median_seconds"]) > 0


@needs_torch
@needs_jax
@pytest.mark.slow
def test_policies_beside_every_peer(tmp_path: Path, policies: dict[str, Any]) -> None:
    options = (
        "--presets",
        "seed",
        "--policies",
        "save_all",
        "--budgets",
        "",
        "--rounds",
        1,
        "--seconds",
        0,
        "--out",
        tmp_path,
    )
    rows = policy_rows(output("bench_policies.py", *options, "--out", tmp_path), tmp_path)
    assert list(rows)[1:] == policies["PEERS"].split(",")
    assert all(row["measured_peak_bytes"] for row in rows.values())


def test_the_columns_of_the_policies_are_described(policies: dict[str, Any]) -> None:
    text = (FOLDER / "README.md").read_text()
    assert [name for name in policies["COLUMNS"] if f"`{name}`" not in text] == []
