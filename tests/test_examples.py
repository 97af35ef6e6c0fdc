"""The examples are short, run as they stand, and print what they promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fastbp.run.cores import physical_cores

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def output(name: str, folder: Path) -> list[str]:
    """What an example prints; it says nothing on standard error and leaves nothing behind."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / name)],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, cwd=folder, capture_output=True, text=True, check=False,
        timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(folder.iterdir())
    return done.stdout.splitlines()


def test_there_are_three() -> None:
    assert [path.name for path in EXAMPLES] == ["choose_a_policy.py", "define_an_op.py", "train_tiny.py"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_under_sixty_lines_and_says_how_to_run_it(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) < 60
    assert f"python examples/{path.name}" in text.split('"""')[1]


def test_train_tiny(tmp_path: Path) -> None:
    lines = output("train_tiny.py", tmp_path)
    losses = [float(line.split()[-1]) for line in lines if line.startswith("update ")]
    assert len(losses) == 6
    assert losses[-1] < 0.7 * losses[0]
    valid = next(float(line.split()[-1]) for line in lines if line.startswith("validation loss"))
    assert valid < 0.7 * losses[0]
    assert any(re.fullmatch(r"activations: \d+ bytes at the peak", line) for line in lines)
    assert any(line.startswith("The ") for line in lines)


def test_choose_a_policy(tmp_path: Path) -> None:
    lines = output("choose_a_policy.py", tmp_path)
    header, *rows = lines
    assert header.split()[0] == "policy"
    found = {}
    for row in rows:
        policy, peak, measured, extra, same = re.split(r"\s{2,}", row)
        assert (peak, same) == (measured, "True")
        found[policy] = int(peak), float(extra.removesuffix("%"))
    assert len(found) == 7
    assert found["save_all"][1] == 0
    assert found["full"][0] < found["save_all"][0] / 2
    assert found["optimal(2MiB)"][0] <= 2 << 20
    assert found["optimal(8MiB)"][0] <= 8 << 20
    assert found["optimal(8MiB)"] < found["full"]
    assert all(extra > 0 for policy, (_, extra) in found.items() if policy != "save_all")
    if physical_cores() == 2:  # each worker has scratch of its own
        assert "\n".join(lines) in (ROOT / "README.md").read_text()


def test_define_an_op(tmp_path: Path) -> None:
    lines = output("define_an_op.py", tmp_path)
    assert [line.split(":")[0] for line in lines] == ["numpy", "numba"]
    assert all(float(line.split()[-1]) < 1e-8 for line in lines)
