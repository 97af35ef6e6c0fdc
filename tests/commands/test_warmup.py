"""`fastbp warmup`: every kernel of every op, compiled once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastbp.ops.registry import OPS

RunCommand = Callable[..., Any]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str]]:
    """The kernels that were asked for; nothing is compiled."""
    asked: list[tuple[str, str, str]] = []

    def address(name: str, direction: str, dtype: str, progress: Callable[[str], None]) -> int:
        progress(f"{name} {direction}")
        asked.append((name, direction, dtype))
        return 0

    monkeypatch.setattr("fastbp.commands.warmup.address", address)
    return asked


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_kernel_is_compiled(fastbp: RunCommand, compiled: list[tuple[str, str, str]], dtype: str) -> None:
    result = fastbp("warmup", "--dtype", dtype, "--json").json
    assert set(result) == {"seconds"}
    assert result["seconds"] > 0
    expected = {
        (name, direction, dtype)
        for name, op in OPS.items()
        for direction in ("forward", "backward")
        if op.numba_kernel(direction) is not None
    }
    assert set(compiled) == expected
    assert {("adamw", "forward", dtype), ("attention", "backward", dtype)} <= expected


def test_the_folder_is_named(
    fastbp: RunCommand, compiled: list[tuple[str, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastbp.commands.warmup.cache_folder", lambda: None)
    ran = fastbp("warmup")
    assert (ran.code, ran.err) == (0, "")
    assert f"{len(compiled)} kernels ready in " in ran.out
    assert "the cache folder cannot be written" in " ".join(ran.out.split())
    assert max(map(len, ran.out.splitlines())) <= 80


def test_an_unknown_dtype_is_refused(fastbp: RunCommand, compiled: list[tuple[str, str, str]]) -> None:
    fastbp("warmup", "--dtype", "float23").refused("(did you mean 'float32'?)")
    assert not compiled


def test_costs_are_measured_once(fastbp: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTBP_CACHE_DIR", str(tmp_path))
    first = fastbp("warmup", "--costs", "--preset", "seed", "--json").json
    assert first["calls"] > 20
    before = (tmp_path / "seconds.json").read_bytes()
    assert fastbp("warmup", "--costs", "--preset", "seed", "--json").json["calls"] == first["calls"]
    assert (tmp_path / "seconds.json").read_bytes() == before
