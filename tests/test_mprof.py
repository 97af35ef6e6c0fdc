"""`mprof run fastbp train …`: memory-profiler's own command watches a training run from outside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(not (BIN / "mprof").exists(), reason="memory-profiler's command is not installed")
def test_mprof_watches_a_training_run(tmp_path: Path) -> None:
    fastbp = [sys.executable, "-m", "fastbp", "train", "--preset", "seed", "--steps", "5", "--eval-windows", "2"]
    command = [sys.executable, str(BIN / "mprof"), "run", "--interval", "0.02", "--output", "memory.dat", *fastbp]
    ran = subprocess.run(
        [*command, "--out", "run"], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "peak memory" in ran.stdout
    words = [line.split() for line in (tmp_path / "memory.dat").read_text().splitlines()]
    assert words[0][:2] == ["CMDLINE", sys.executable]
    resident_mib = [float(found[1]) for found in words if found[0] == "MEM"]
    assert 20 < max(resident_mib) < 500
