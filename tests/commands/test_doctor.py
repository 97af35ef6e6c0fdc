"""`fastbp doctor`: what it finds, also where something is missing."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from fastbp.run.backend import BACKENDS
from fastbp.run.workers import physical_cores

RunCommand = Callable[..., Any]


def test_the_findings_in_json(fastbp: RunCommand) -> None:
    result = fastbp("doctor", "--json").json
    assert {"cpu", "cpu_features", "cores", "threads", "backends", "kernel_cache", "memory", "torch"} <= set(result)
    assert result["cores"] == {"physical": physical_cores(), "logical": os.cpu_count()}
    assert set(result["backends"]) == set(BACKENDS)
    assert result["backends"]["auto"].startswith(("cython: ", "numba: "))
    assert 0 < result["memory"]["available_bytes"] <= result["memory"]["total_bytes"]
    assert result["packages"]["numpy"]
    assert all(size % 1024 == 0 for size in result["cpu_caches"].values())


def test_the_findings_for_people_fit_a_terminal(fastbp: RunCommand) -> None:
    ran = fastbp("doctor")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert max(map(len, lines)) <= 80
    for name in ("CPU", "features", "caches", "cores", "threads", "memory", "auto", "  numba", "  cython", "kernels"):
        assert any(line.startswith(name) for line in lines), name


def test_a_broken_installation_is_described(fastbp: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise ImportError("no module fastbp._kernels")

    monkeypatch.setattr("fastbp.commands.doctor.instruction_set", fail)
    monkeypatch.setattr("fastbp.commands.doctor.cache_folder", lambda: None)
    monkeypatch.setattr("fastbp.commands.doctor.torch_version", lambda: None)
    ran = fastbp("doctor")
    assert (ran.code, ran.err) == (0, "")
    words = " ".join(ran.out.split())
    for part in ("does not load: no module fastbp._kernels", "not writable", "not installed"):
        assert part in words
    assert max(map(len, ran.out.splitlines())) <= 80
