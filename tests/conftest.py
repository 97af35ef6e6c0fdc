"""What every test may use: helpers of tests/ops and tests/docs, the one table of tolerances, and the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fastbp.cli import main
from tests.chromium import launched

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# Under --import-mode=importlib nothing is on the path; the helpers are `samples`, `trial`, `formulas` and `pages`.
sys.path[:0] = [str(Path(__file__).parent / folder) for folder in ("ops", "docs")]

TOLERANCE = {"float32": 4e-6, "float64": 1e-14}
"""How far two ways of computing the same may be apart, as a share of the largest element (of 1, if that is larger)."""


@pytest.fixture(scope="session")
def tolerance() -> dict[str, float]:
    return TOLERANCE


@dataclass(frozen=True)
class Ran:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object on standard output, after a success that said nothing else."""
        assert (self.code, self.err) == (0, "")
        assert self.out.count("\n") == 1
        value = json.loads(self.out, parse_constant=pytest.fail)
        assert isinstance(value, dict)
        return value

    def refused(self, *parts: str, code: int = 2) -> str:
        """The one line on standard error, with all of `parts` in it, after a failure that wrote nothing else."""
        assert (self.code, self.out) == (code, "")
        assert self.err.startswith("fastbp: ")
        assert self.err.endswith("\n")
        assert len(self.err.splitlines()) == 1
        for part in parts:
            assert part in self.err
        return self.err


@pytest.fixture
def fastbp(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Runs a command in this process: fastbp("train", "--steps", 5)."""

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Ran(code, *capsys.readouterr())

    return run


@pytest.fixture
def small_triad(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bandwidth is measured over little memory: quick, and wrong."""
    monkeypatch.setattr("fastbp.run.bandwidth.triad_bytes", lambda: 12 << 10)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Headless Chromium, for pages; skips where it is not to be had."""
    with launched() as browser:
        yield browser
