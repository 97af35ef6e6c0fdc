"""What is kept is found again, beside what was kept before; a broken file is as good as none."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastbp.run.kept import keep, kept


def test_values_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTBP_CACHE_DIR", str(tmp_path / "deep" / "er"))
    assert kept("file.json") == {}
    keep("file.json", "a", [1, 2])
    path = keep("file.json", "b", "x")
    assert kept("file.json") == {"a": [1, 2], "b": "x"}
    assert [each.name for each in path.parent.iterdir()] == ["file.json"]
    for broken in ("", "[1]", "\x00"):
        path.write_text(broken)
        assert kept("file.json") == {}
