"""A late function: its module is imported at the first call, and then it is that function."""

from __future__ import annotations

import sys

import pytest

from fastbp.base.late import Late


def test_the_module_is_imported_at_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    convert = Late("colorsys", "rgb_to_hsv")
    assert "colorsys" not in sys.modules
    assert convert(0.0, 0.5, b=0.5) == (0.5, 1.0, 0.5)
    assert "colorsys" in sys.modules


def test_a_name_that_is_not_there_is_said_at_the_call() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        Late("colorsys", "no_such_name")()
