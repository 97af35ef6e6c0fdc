"""Choosing a backend by name."""

from __future__ import annotations

import pytest

from fastbp.base.errors import InputError
from fastbp.run import backend as module
from fastbp.run.backend import BACKENDS, choose_backend


@pytest.mark.parametrize("name", ["numba", "cython", "numpy"])
def test_a_backend_that_is_asked_for_is_taken(name: str) -> None:
    backend = choose_backend(name)
    assert (backend.name, backend.why) == (name, "asked for")
    assert backend.compiled == (name != "numpy")


@pytest.mark.parametrize("built", ["avx512", "avx2", "baseline"])
def test_auto_takes_cython_and_says_what_it_is_built_for(built: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "instruction_set", lambda: built)
    backend = choose_backend("auto")
    assert backend.name == "cython"
    assert built in backend.why


def test_an_unknown_one_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        InputError, match=r"^backend 'numbra' is unknown \(did you mean 'numba'\?\): choose auto, numba, cy"
    ):
        choose_backend("numbra")
    assert set(BACKENDS) == {"auto", "numba", "cython", "numpy"}


@pytest.mark.parametrize("name", ["numba", "cython"])
def test_addresses_come_from_the_backend_itself(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def numba_address(*what: str) -> int:
        asked.append(("numba", *what[:3]))
        return 1

    def cython_address(*what: str) -> int:
        asked.append(("cython", *what))
        return 2

    monkeypatch.setattr(module, "numba_address", numba_address)
    monkeypatch.setattr(module, "cython_address", cython_address)
    assert choose_backend(name).address("gelu", "forward", "float64") == {"numba": 1, "cython": 2}[name]
    assert asked == [(name, "gelu", "forward", "float64")]
