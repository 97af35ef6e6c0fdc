"""Tuned blocks: kept per CPU, never beyond what the scratch holds, and without a trace in the bits."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fastbp.graph.config import DecoderConfig
from fastbp.run import blocking
from fastbp.run.backend import Backend, choose_backend
from fastbp.run.blocking import Blocking, remember, remembered
from fastbp.run.decoder import Decoder
from fastbp.run.products import Product
from fastbp.run.tune import CANDIDATES, tune
from fastbp.run.workers import Workers

WIDE = DecoderConfig(blocks=1, width=208, heads=2, feed_forward=640, context=41, vocab=70)
"""Its products take several blocks in every direction, and ragged ones."""
ALL = [replace(Blocking(), **{name: value}) for name, values in CANDIDATES.items() for value in values]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FASTBP_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(params=["cython", "numba"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    chosen = choose_backend(request.param)
    yield chosen
    chosen.set_blocking(Blocking(), "float32")


def gradients(backend: Backend) -> np.ndarray:
    decoder = Decoder(WIDE, 8, backend=backend.name)
    decoder.initialise(0)
    decoder.tokens[:] = np.arange(8 * 41).reshape(8, 41) % 70
    decoder.targets[:] = (decoder.tokens + 1) % 70
    decoder.forward_backward()
    return decoder.gradients.flat


def test_no_block_moves_a_bit(backend: Backend) -> None:
    expected = gradients(backend)
    for sizes in [*ALL, Blocking(1, 1, 1), Blocking(100, 9, 3)]:
        backend.set_blocking(sizes, "float32")
        np.testing.assert_array_equal(gradients(backend), expected, err_msg=str(sizes))


@pytest.mark.parametrize("sizes", [(385, 128, 12), (384, 129, 12), (384, 128, 13), (0, 1, 1), (1, -1, 1), (1.0, 1, 1)])
def test_more_than_the_scratch_holds_is_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="at most"):
        Blocking(*sizes)


def test_each_backend_and_dtype_remembers_its_own(folder: Path) -> None:
    assert remembered("cython", "float32") == Blocking()
    assert remember("cython", "float32", Blocking(192, 64, 8)) == folder / "blocking.json"
    remember("numba", "float32", Blocking(256, 32, 4))
    assert remembered("cython", "float32") == Blocking(192, 64, 8)
    assert remembered("numba", "float32") == Blocking(256, 32, 4)
    assert remembered("cython", "float64") == Blocking()
    assert [path.name for path in folder.iterdir()] == ["blocking.json"]


def test_another_cpu_does_not_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    remember("cython", "float32", Blocking(192, 64, 8))
    monkeypatch.setattr(blocking, "cpu_name", lambda: "another")
    assert remembered("cython", "float32") == Blocking()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"KEY": [9999, 1, 1]}', '{"KEY": 5}', '{"KEY": ["a", 1, 1]}'])
def test_a_broken_file_counts_for_nothing(folder: Path, text: str) -> None:
    remember("cython", "float32", Blocking(192, 64, 8))
    (key,) = json.loads((folder / "blocking.json").read_text())
    (folder / "blocking.json").write_text(text.replace("KEY", key))
    assert remembered("cython", "float32") == Blocking()


class Recorded:
    """A backend that only notes which blocks it is given; its programs come from Cython."""

    name, compiled = "cython", True

    def __init__(self) -> None:
        self.used: list[Blocking] = []

    def set_blocking(self, sizes: Blocking, dtype: str) -> None:
        assert dtype == "float32"
        self.used.append(sizes)


def test_the_fastest_is_found_and_set(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Recorded()
    product = Product("forward", 8, 8, 8, (8, 1), (8, 1), 8)

    def seconds(run: object) -> float:
        now = backend.used[-1]
        return 1.0 + 0.2 * (now.depth != 192) + 0.1 * (now.rows != 64) + 0.005 * (now.panels != 8)

    monkeypatch.setattr("fastbp.run.tune.seconds_of", seconds)
    found = tune([product], backend, "float32", Workers(1), 0.0)  # type: ignore[arg-type]
    # 0.5 % for panels of 8 is not worth a change.
    assert found.blocking == backend.used[-1] == Blocking(192, 64, 12)
    assert found.time_share == pytest.approx(1.005 / 1.305)
