from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from fastbp.base.errors import InputError
from fastbp.check import report as module
from fastbp.check.report import CheckReport, Figure, check
from fastbp.ops.registry import OPS
from fastbp.run import numba_backend

BACKENDS = pytest.mark.parametrize("backend", ["numpy", "numba", "cython"])
TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="no torch")

LAYERNORM, LINEAR = OPS["layernorm"], OPS["linear"]


@pytest.fixture(scope="module")
def passed() -> CheckReport:
    return check("numpy")


@BACKENDS
def test_every_backend_passes(backend: str) -> None:
    report = check(backend)
    assert report.passed, "\n".join(report.lines())
    assert report.backend == backend


def test_auto_is_named_by_what_it_chose() -> None:
    assert check("auto").backend in ("numba", "cython")


@TORCH
def test_json_has_the_figures_and_the_verdict(passed: CheckReport) -> None:
    found = json.loads(json.dumps(passed.to_json(), allow_nan=False))
    assert (found["backend"], found["seed"], found["passed"]) == ("numpy", 0, True)
    assert found["autograd"]["relative"] <= 3e-16
    assert found["autograd"]["max_absolute"] <= 1.5e-16
    assert found["autograd"]["max_relative"] <= 5e-15
    assert found["autograd"]["tensors"] == 27
    assert found["autograd_reason"] is None
    assert found["finite_difference"]["weights"] == 552
    assert found["finite_difference"]["max_error"] <= 1e-10
    assert found["future_scores"]["max_abs"] == 0
    assert set(found["layernorm"]) == {"ones", "x_hat"}
    assert (found["residual"]["nodes"], found["residual"]["shared"]) == (4, 4)
    assert found["linear"]["against"] == "torch.nn.Linear"
    assert {"dx_max_error", "dw_max_error"} < set(found["linear"])


def test_lines_fit_80_columns_and_show_every_figure_beside_its_limit(passed: CheckReport) -> None:
    lines = passed.lines()
    assert max(map(len, lines)) <= 80
    assert [line[0] for line in lines].count("✓") == len(passed.figures)
    assert "✗" not in "".join(lines)
    assert any(line.endswith("≤ 1.0e-10") for line in lines)
    assert any(line.endswith("552 = 552") for line in lines)
    assert lines[-1] == "all passed"


def test_the_same_seed_gives_the_same_report(passed: CheckReport) -> None:
    assert check("numpy") == passed
    assert check("numpy", seed=1).finite_difference != passed.finite_difference


@pytest.mark.parametrize(
    ("version", "reason"), [(None, "torch is not installed"), ("2.0", "torch 2.0 is installed but does not load")]
)
def test_without_torch_the_rest_decides(version: str | None, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "torch_twin", lambda: None)
    monkeypatch.setattr(module, "torch_version", lambda: version)
    report = check("numpy")
    assert report.passed
    found = report.to_json()
    assert (found["autograd"], found["autograd_reason"]) == (None, reason)
    assert found["linear"]["against"] == "exact fractions"
    assert any(reason in line for line in report.lines())
    assert max(map(len, report.lines())) <= 80


def scaled(d: Any, dy: Any, x: Any, weight: Any, dx: Any, dweight: Any, dbias: Any) -> None:
    """dweight a trillionth too large."""
    before = dweight.copy()
    LINEAR.backward(d, dy, x, weight, dx, dweight, dbias)  # type: ignore[misc]
    dweight += (dweight - before) * 1e-12


def unprojected(d: Any, dy: Any, x: Any, weight: Any, mean: Any, rstd: Any, dx: Any, dweight: Any, dbias: Any) -> None:
    """dx without the part along x̂ taken out."""
    LAYERNORM.backward(d, dy, x, weight, mean, rstd, dx, dweight, dbias)  # type: ignore[misc]
    g = dy * weight
    dx[:] = (g - g.mean(axis=1, keepdims=True)) * rstd[:, None]


def not_a_number(*arguments: Any) -> None:
    arguments[-1][:] = np.nan


@TORCH
@pytest.mark.parametrize(
    ("op", "backward", "parts"),
    [
        ("linear", scaled, {"autograd", "linear"}),
        ("layernorm", unprojected, {"autograd", "finite difference", "layernorm", "residual"}),
        ("attention", not_a_number, {"autograd", "finite difference", "softmax", "residual"}),
    ],
)
def test_a_planted_error_fails_where_it_should(
    op: str, backward: Callable[..., None], parts: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OPS, op, replace(OPS[op], backward=backward))
    report = check("numpy")
    failed = [figure for figure in report.figures if not figure.passed]
    assert not report.passed
    assert {figure.part for figure in failed} == parts
    json.dumps(report.to_json(), allow_nan=False)
    assert report.to_json()["passed"] is False
    lines = report.lines()
    assert sum(line.startswith("✗") for line in lines) == len(failed)
    assert lines[-1] == f"{len(failed)} FAILED"
    assert any("worst at" in line for line in lines)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("relation", "limit", "value", "passes"),
    [
        ("≤", 1.0, 1.0, True),
        ("≤", 1.0, 1.1, False),
        ("≤", 1.0, np.nan, False),
        ("=", 4, 4, True),
        ("=", 4, 3, False),
        ("=", 4, 5, False),
        ("=", 0, np.nan, False),
        (">", 0, 1e-9, True),
        (">", 0, 0.0, False),
        (">", 0, np.nan, False),
        (">", 0, np.inf, False),
    ],
)
def test_a_figure_keeps_its_limit(relation: str, limit: float, value: float, passes: bool) -> None:
    figure = Figure("part", "what", value, relation, limit)
    assert figure.passed == passes
    assert figure.line()[0] == ("✓" if passes else "✗")


def test_what_cannot_be_checked_is_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'numpy'"):
        check("nunpy")
    with pytest.raises(InputError, match="seed"):
        check("numpy", seed=-1)


def test_progress_hears_the_name_of_a_kernel_that_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba_backend, "_compiled", {})
    heard: list[str] = []
    check("numba", progress=heard.append)
    assert "layernorm backward" in heard
