"""A run that other commands can sample from and resume."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fastbp.cli import main

TEXT = "".join(f"{i} times {j} is {i * j}.\n" for i in range(12) for j in range(12))
TINY = ("--preset", "seed", "--eval-windows", "2", "--batch", "2")


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Durability is tested with snapshots; here it only takes time."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "times.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="session")
def trained(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve updates, saved after every third: it may be read, not written to."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    code = main(
        ["train", *TINY, "--steps", "12", "--save-every", "3", "--eval-every", "3", "--log-every", "1",
         "--keep-last", "9", "--out", str(folder), str(text)]
    )  # fmt: skip
    assert code == 0
    return folder


@pytest.fixture
def run_of(trained: Path, tmp_path: Path) -> Callable[[int], Path]:
    """A copy of that run as it was after so many updates: `run_of(6)`."""

    def copy(updates: int) -> Path:
        folder = tmp_path / f"run-{updates}"
        shutil.copytree(trained, folder)
        for snapshot in folder.glob("snapshot-*"):
            if int(snapshot.name.removeprefix("snapshot-")) > updates:
                shutil.rmtree(snapshot)
        return folder

    return copy
