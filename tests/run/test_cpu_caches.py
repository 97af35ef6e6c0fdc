"""What the system says of the caches, and what it leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastbp.run import cpu_caches


def test_caches_by_level_and_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i, words in enumerate([("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2048K"), ("3",)]):
        folder = tmp_path / f"index{i}"
        folder.mkdir()
        for name, word in zip(("level", "type", "size"), words, strict=False):
            (folder / name).write_text(word + "\n")
    monkeypatch.setattr(cpu_caches, "FOLDER", tmp_path)
    assert cpu_caches.cpu_caches() == {"L1d": 49152, "L1i": 32768, "L2": 2 << 20}


def test_nothing_where_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_caches, "FOLDER", tmp_path / "none")
    assert cpu_caches.cpu_caches() == {}
