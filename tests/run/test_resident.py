"""The most resident memory, of this process and of another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fastbp.run import resident
from fastbp.run.resident import forget_rss_peak, give_back, rss_peak_bytes


def test_the_most_resident_memory_is_never_given_back() -> None:
    rough = 1 << 20  # the system counts pages in batches
    before = rss_peak_bytes()
    block = np.ones(before + (16 << 20), np.uint8)
    during = rss_peak_bytes()
    del block
    assert before > 1 << 24
    assert during >= before + (16 << 20) - rough
    assert rss_peak_bytes() >= during - rough


def writable() -> bool:
    try:
        resident.CLEAR_REFS.write_text("5")
    except OSError:
        return False
    return True


@pytest.mark.skipif(not writable(), reason="the system does not forget peaks")
def test_a_peak_that_is_forgotten_begins_anew() -> None:
    block = np.ones(200 << 20, np.uint8)
    during = rss_peak_bytes()
    del block
    assert rss_peak_bytes() > during - (1 << 20)
    assert forget_rss_peak()
    assert rss_peak_bytes() < during - (190 << 20)


def test_a_system_that_forgets_no_peak_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resident, "CLEAR_REFS", tmp_path / "none" / "clear_refs")
    assert not forget_rss_peak()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell peaks")
def test_another_process_is_asked_for_its_own() -> None:
    script = "b = bytearray(b'1') * (50 << 20); del b; print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert 50 << 20 < rss_peak_bytes(process.pid) < 200 << 20
        process.kill()


def test_where_the_system_does_not_tell_the_present_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: Path) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    assert rss_peak_bytes() > 1 << 24


@pytest.mark.skipif(not writable(), reason="the system does not forget peaks")
def test_pages_that_are_given_back_are_not_resident_until_they_are_touched() -> None:
    block = np.ones(64 << 20, np.uint8)
    assert give_back(block)
    forget_rss_peak()
    before = rss_peak_bytes()
    assert block[5000] == 0
    block[: 32 << 20] = 2
    assert 31 << 20 < rss_peak_bytes() - before < 40 << 20


def test_a_system_that_takes_no_pages_back_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: None) -> None:
        raise OSError(name)

    monkeypatch.setattr(resident.ctypes, "CDLL", missing)
    block = np.ones(1 << 20, np.uint8)
    assert not give_back(block)
    assert block.all()
