"""What every test may use: the helper modules of tests/ops, and the one table of tolerances."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# Under --import-mode=importlib nothing is on the path; the helpers there are `samples`, `trial` and `formulas`.
sys.path.insert(0, str(Path(__file__).parent / "ops"))

TOLERANCE = {"float32": 4e-6, "float64": 1e-14}
"""How far two ways of computing the same may be apart, as a share of the largest element (of 1, if that is larger)."""


@pytest.fixture(scope="session")
def tolerance() -> dict[str, float]:
    return TOLERANCE
