"""Where compiled kernels are kept, and that they work where nothing can be kept."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numba
import pytest

from fastbp.run import numba_backend
from fastbp.run.cache import cache_root
from fastbp.run.numba_backend import SOURCE_HASH, address, cache_folder, source_hash

PACKAGE = Path(numba_backend.__file__).parents[1]

RUN_GELU = """
import ctypes, sys
import numpy as np
from fastbp.run import numba_backend
from fastbp.run.apply import bind_op
from fastbp.ops.gelu import OP
from fastbp.run.runner import Runner
x, y = np.linspace(-3, 3, 50, dtype=np.float32), np.empty(50, np.float32)
program = bind_op(OP, "forward", {"N": 1, "F": 50}, {"x": x, "y": y}, attributes={"tanh": 1.0}, backend="numba")
Runner(1).run(program)
expected = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
assert np.abs(y - expected).max() < 1e-6, y
print(numba_backend.cache_folder())
"""


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """The folder is found once a process; here it is found anew."""
    cache_folder.cache_clear()
    yield
    cache_folder.cache_clear()


def run(script: str, cache: Path | str) -> str:
    environment = {**os.environ, "FASTBP_CACHE_DIR": str(cache), "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FASTBP_CACHE_DIR", str(tmp_path / "mine"))
    assert cache_root() == tmp_path / "mine"
    monkeypatch.delenv("FASTBP_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "fastbp"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_root() == tmp_path / "home" / ".cache" / "fastbp"


def test_the_folder_is_made_and_left_clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FASTBP_CACHE_DIR", str(tmp_path / "a" / "b"))
    folder = cache_folder()
    assert folder == tmp_path / "a" / "b" / f"kernels-{SOURCE_HASH}"
    assert not list(folder.iterdir())


def test_a_folder_that_cannot_be_made_is_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Below a regular file nobody can write, not even root, whom permissions do not stop.
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FASTBP_CACHE_DIR", str(tmp_path / "file" / "below"))
    assert cache_folder() is None


@pytest.mark.parametrize("changed", ["base/philox.py", "ops/gelu.py", "kernels/gelu.py", "simd/gemm.py"])
def test_a_change_in_any_kernels_source_changes_the_folder(
    changed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "fastbp"
    for folder in ("base", "ops", "kernels", "simd", "run"):
        (package / folder).mkdir(parents=True)
        for path in (PACKAGE / folder).glob("*.py"):
            (package / folder / path.name).write_bytes(path.read_bytes())
    real = source_hash()
    monkeypatch.setattr(numba_backend, "__file__", str(package / "run" / "numba_backend.py"))
    hashes = [real]
    for text in ("", "# a comment\n", "# another one\n"):
        (package / changed).write_bytes((PACKAGE / changed).read_bytes() + text.encode())
        hashes.append(source_hash())
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3
    monkeypatch.setenv("FASTBP_CACHE_DIR", str(tmp_path / "cache"))
    assert cache_folder() == tmp_path / "cache" / f"kernels-{real}", "an edit after the import took effect"


def test_numbas_version_changes_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    before = source_hash()
    monkeypatch.setattr(numba, "__version__", "0.0.1")
    assert source_hash() != before


def test_the_callers_numba_settings_come_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = []

    def compiled(*_: object, **options: object) -> object:
        seen.append((numba.config.CACHE_DIR, options["cache"]))  # type: ignore[attr-defined]
        raise RuntimeError("no compiler today")

    monkeypatch.setenv("FASTBP_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(numba.config, "CACHE_DIR", "the caller's own", raising=False)
    monkeypatch.setattr(numba_backend, "_compiled", {})
    monkeypatch.setattr(numba_backend, "cfunc", compiled)
    monkeypatch.setattr(numba_backend, "register_gemm", lambda dtype, cache: seen.append((dtype, cache)))
    monkeypatch.setattr(numba_backend, "register_strips", lambda dtype, cache: None)
    with pytest.raises(RuntimeError, match="no compiler today"):
        address("gelu", "forward", "float32")
    assert seen == [("float32", True), (str(cache_folder()), True)]
    assert numba.config.CACHE_DIR == "the caller's own"  # type: ignore[attr-defined]


def test_a_kernel_is_compiled_once_a_process_and_announced_before() -> None:
    heard: list[str] = []
    numba_backend._compiled.pop(("residual forward", "float32"), None)
    first = address("residual", "forward", "float32", heard.append)
    again = address("residual", "forward", "float32", heard.append)
    assert first == again != 0
    assert heard == ["residual forward"]


def test_kernels_work_where_nothing_can_be_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    before = set(PACKAGE.rglob("*.nbi"))
    assert run(RUN_GELU, tmp_path / "file" / "below") == "None"
    assert set(PACKAGE.rglob("*.nbi")) == before, "numba wrote beside the source"


def test_kernels_are_kept_in_the_folder_and_found_again(tmp_path: Path) -> None:
    folder = Path(run(RUN_GELU, tmp_path))
    assert folder.parent == tmp_path
    kept = {path: path.stat().st_mtime_ns for path in folder.rglob("*.nb*")}
    assert {path.name.split("-")[0] for path in kept} >= {"gelu.numba_forward", "gemm.gemm_entry", "blocks.panel_entry"}
    assert Path(run(RUN_GELU, tmp_path)) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.nb*")} == kept
