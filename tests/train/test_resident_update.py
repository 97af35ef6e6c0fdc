"""Resident memory of an update: the system sees what the ledger foretells."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from fastbp.graph.config import DecoderConfig
from fastbp.run import resident
from fastbp.run.decoder import Decoder
from fastbp.train.resident_update import ResidentFailed, judged, resident_update

MIB = 1 << 20


def test_what_no_part_explains_is_a_share_of_the_peak() -> None:
    found = judged({"interpreter": 60, "activations": 30}, 100)
    assert (found["predicted_bytes"], found["unexplained_bytes"], found["unexplained_share"]) == (90, 10, 0.1)
    assert judged({"activations": 30}, 20)["unexplained_share"] == -0.5


def check(found: dict[str, Any], decoder: Decoder) -> None:
    """Parts are those of the decoder; the line rises over the schedule's ticks up to the peak."""
    parts = found["parts"]
    assert parts["activations"] == decoder.peak_bytes_predicted
    assert parts["parameters"] == parts["parameter gradients"] == decoder.parameters.flat.nbytes
    assert parts["optimiser state"] == 2 * parts["parameters"]
    assert 10 * MIB < parts["interpreter, libraries, kernels"] < 300 * MIB
    assert found["predicted_bytes"] == sum(parts.values())
    assert found["peak_bytes"] == max(found["line"]["bytes"])
    ticks = found["line"]["ticks"]
    assert ticks == sorted(ticks)
    assert ticks[0] == 0
    assert ticks[-1] <= len(decoder.schedule.actions) + 1
    assert len(ticks) == len(found["line"]["bytes"])


@pytest.mark.parametrize("backend", ["cython", "numpy"])
def test_a_process_of_its_own_watches_an_update(backend: str) -> None:
    # Of sinusoidal positions a table lies beside the parameters.
    config = DecoderConfig(2, 64, 2, 256, 64, 256, positions="sinusoidal")
    decoder = Decoder(config, 8, policy="full", backend=backend, workers=1)
    found = resident_update(decoder, 0.01)
    check(found, decoder)
    assert abs(found["unexplained_share"]) < 0.2


@pytest.mark.slow
@pytest.mark.skipif(not resident.CLEAR_REFS.exists(), reason="the system gives back no pages")
@pytest.mark.parametrize("policy", ["save_all", "full", "optimal(40MiB)"])
def test_at_medium_all_but_a_twentieth_is_explained(policy: str) -> None:
    decoder = Decoder(DecoderConfig.preset("medium"), 8, policy=policy, backend="cython")
    found = resident_update(decoder, 1)
    check(found, decoder)
    assert abs(found["unexplained_share"]) <= 0.05


def test_a_process_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = Decoder(DecoderConfig.preset("seed"), 1, backend="numpy")

    def ended(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 3, "", "Traceback\n  it broke\n\n")

    monkeypatch.setattr("fastbp.train.resident_update.subprocess.run", ended)
    with pytest.raises(ResidentFailed, match=r"^--rss: it broke$"):
        resident_update(decoder, 1)
