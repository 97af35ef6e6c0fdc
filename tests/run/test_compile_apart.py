"""A second process compiles the slowest kernels of a cold start, and is never needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fastbp
from fastbp.run import compile_apart, numba_backend
from fastbp.run.compile_apart import APART, begin, wait
from fastbp.run.numba_backend import prepare

COLD_START = f"""
import sys
from fastbp.run import numba_backend
numba_backend.physical_cores = lambda: 2
asked = []
numba_backend.prepare(["residual", "{APART}"], "float32", asked.append)
print(*asked, sep=",")
"""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, ...]]:
    """What `prepare` begins and asks for, with an empty cache and two cores."""
    found: list[tuple[str, ...]] = []
    monkeypatch.setattr(numba_backend, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(numba_backend, "physical_cores", lambda: 2)
    monkeypatch.setattr(numba_backend, "begin", lambda dtype: found.append(("begin", dtype)))
    monkeypatch.setattr(numba_backend, "address", lambda *call: found.append(call[:2]))
    return found


def test_the_slowest_is_asked_for_last(asked: list[tuple[str, ...]]) -> None:
    prepare({APART, "residual", "adamw"}, "float32")
    others = [("adamw", "forward"), ("residual", "forward")]
    assert asked == [("begin", "float32"), *others, (APART, "forward"), (APART, "backward")]


def test_nothing_is_prepared_that_would_not_be_faster(
    asked: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    prepare({"residual", "adamw"}, "float32")
    monkeypatch.setattr(numba_backend, "physical_cores", lambda: 1)
    prepare({APART, "residual"}, "float32")
    monkeypatch.setattr(numba_backend, "physical_cores", lambda: 2)
    (tmp_path / "kernels_1").mkdir()
    (tmp_path / "kernels_1" / "some.nbi").touch()
    prepare({APART, "residual"}, "float32")
    monkeypatch.setattr(numba_backend, "cache_folder", lambda: None)
    prepare({APART, "residual"}, "float32")
    assert asked == []


@pytest.mark.parametrize("program", ["/bin/false", "/nowhere/python"])
def test_a_process_that_fails_is_no_harm(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_apart, "_running", {})
    monkeypatch.setattr(sys, "executable", program)
    begin("float32")
    wait("float32")
    wait("float64")


def test_one_process_for_a_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_apart, "_running", {})
    started: list[list[str]] = []
    real = subprocess.Popen

    def popen(command: list[str], **options: int) -> subprocess.Popen[bytes]:
        started.append(command)
        return real(["/bin/true"], **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(subprocess, "Popen", popen)
    for dtype in ("float32", "float32", "float64"):
        begin(dtype)
        wait(dtype)
    assert [command[-1] for command in started] == ["float32", "float64"]


@pytest.mark.slow
def test_a_cold_start_finds_the_other_process_kernels(tmp_path: Path) -> None:
    package = Path(fastbp.__file__).parents[1]
    environment = {**os.environ, "FASTBP_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(package)}
    done = subprocess.run(
        [sys.executable, "-c", COLD_START], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().split(",")[-2:] == [f"{APART} forward", f"{APART} backward"]
    assert len(list(tmp_path.rglob(f"{APART}.*.nbc"))) == 2, "one process compiled what the other had compiled"
