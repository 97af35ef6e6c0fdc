from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest

from fastbp.check import torch_available


def test_version_is_that_of_the_module() -> None:
    torch = pytest.importorskip("torch")
    assert torch_available.torch_version() == str(torch.__version__)


def test_asking_does_not_import_torch() -> None:
    code = (
        "import sys; from fastbp.check.torch_available import torch_version; torch_version(); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_none_without_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_available, "find_spec", lambda name: None)
    monkeypatch.setattr(torch_available, "version", lambda name: "2.0")
    assert torch_available.torch_version() is None


def test_none_without_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(torch_available, "find_spec", lambda name: object())
    monkeypatch.setattr(torch_available, "version", missing)
    assert torch_available.torch_version() is None
