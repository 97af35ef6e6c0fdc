"""`fastbp check`: the report's figures, and a code for scripts. What is checked is tested in tests/check."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from fastbp.check.torch_available import torch_version

RunCommand = Callable[..., Any]


def test_the_figures_in_json(fastbp: RunCommand) -> None:
    result = fastbp("check", "--backend", "cython", "--seed", 1, "--json").json
    assert (result["backend"], result["seed"], result["passed"]) == ("cython", 1, True)
    found = result["finite_difference"]
    assert (found["weights"], found["max_error"] <= 1e-10) == (552, True)
    if torch_version() is None:
        assert result["autograd"] is None
    else:
        assert {"relative", "max_absolute", "max_relative", "tensors"} <= set(result["autograd"])
        assert result["autograd"]["tensors"] == 27


@pytest.mark.parametrize(("passed", "code"), [(True, 0), (False, 1)])
def test_a_failure_is_told_by_the_code(
    fastbp: RunCommand, monkeypatch: pytest.MonkeyPatch, passed: bool, code: int
) -> None:
    asked: dict[str, object] = {}

    def check(backend: str, **options: object) -> SimpleNamespace:
        asked.update(options, backend=backend)
        return SimpleNamespace(passed=passed, lines=lambda: ["the report"], to_json=lambda: {"passed": passed})

    monkeypatch.setattr("fastbp.commands.check.check", check)
    ran = fastbp("check", "--backend", "numpy", "--seed", 7)
    assert (ran.code, ran.out, ran.err) == (code, "the report\n", "")
    assert (asked["backend"], asked["seed"]) == ("numpy", 7)


def test_an_unknown_backend_is_refused(fastbp: RunCommand) -> None:
    fastbp("check", "--backend", "nunba").refused("backend 'nunba' is unknown (did you mean 'numba'?)")
    fastbp("check", "--seed", "-1").refused("--seed", "give at least 0")
