"""The arena shows what a run touched, to the byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fastbp.memory import arena as module
from fastbp.memory.arena import ALIGNMENT, GUARD_BYTES, Arena, aligned_bytes


@pytest.mark.parametrize("size", [1, 64, 1000, 4096])
def test_bytes_begin_on_a_cache_line(size: int) -> None:
    kept = [aligned_bytes(size) for _ in range(8)]
    for block in kept:
        assert block.nbytes == size
        assert block.ctypes.data % ALIGNMENT == 0


def wants_huge_pages(address: int) -> bool:
    """Whether the mapping that holds an address was advised to use huge pages ("hg")."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head:
            begin, end = (int(part, 16) for part in head.split("-"))
            inside = begin <= address < end
        elif inside and head == "VmFlags:":
            return "hg" in line.split()[1:]
    raise AssertionError(f"{address:#x} is in no mapping")


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="no huge pages here")
def test_large_buffers_ask_for_huge_pages() -> None:
    arena = Arena(16 << 20)
    assert wants_huge_pages(arena.address + (8 << 20))


def test_a_size_that_is_no_whole_number_of_lines_is_refused() -> None:
    with pytest.raises(ValueError, match="an arena of 100 bytes is no multiple of 64"):
        Arena(100)


def test_views_lie_where_they_are_asked_for_and_share_the_memory() -> None:
    arena = Arena(1024)
    view = arena.view(128, (3, 4), "float32")
    assert view.ctypes.data == arena.address + 128
    assert arena.address % ALIGNMENT == 0
    view[:] = 7
    assert arena.view(128 + 16, (4,), "float32").tolist() == [7, 7, 7, 7]


def test_a_fresh_arena_is_untouched() -> None:
    arena = Arena(1024)
    assert arena.last_touched() == 0
    assert not arena.touched(0, 1024)
    assert arena.high_water_bytes([(0, 1024)]) == 0


@pytest.mark.parametrize("at", [0, 63, 64, 500, 1023])
def test_one_byte_is_seen(at: int) -> None:
    arena = Arena(1024)
    arena.view(at, (1,), "uint8")[:] = 1
    assert arena.touched(at, 1)
    assert arena.touched(0, 1024)
    assert not arena.touched(0, at)
    assert not arena.touched(at + 1, 1024 - at - 1)
    assert arena.last_touched() == (at // 64 + 1) * 64


def test_marking_again_forgets_and_takes_another_pattern() -> None:
    arena = Arena(256)
    arena.view(0, (256,), "uint8")[:] = 0x5A
    assert arena.last_touched() == 256
    arena.mark(0x5A)
    assert arena.last_touched() == 0
    arena.view(0, (4,), "uint8")[:] = 0x5A
    assert not arena.touched(0, 256)  # what equals the pattern cannot be seen
    arena.view(0, (4,), "uint8")[:] = 0xA5
    assert arena.last_touched() == 64


def test_the_search_from_the_end_crosses_its_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SEARCH_BYTES", 96)
    for at in range(512):
        arena = Arena(512)
        arena.view(at, (1,), "uint8")[:] = 1
        assert arena.last_touched() == (at // 64 + 1) * 64


def test_the_high_water_is_the_end_of_the_highest_place_that_was_written() -> None:
    places = [(0, 128), (512, 256), (128, 128), (768, 256)]
    arena = Arena(1024)
    arena.view(512, (1,), "uint8")[:] = 1  # one byte of the place; nothing higher
    assert arena.high_water_bytes(places) == 768
    arena.view(0, (1,), "uint8")[:] = 1
    assert arena.high_water_bytes(iter(places)) == 768


def test_a_stray_write_above_every_place_is_counted() -> None:
    arena = Arena(1024)
    arena.view(0, (1,), "uint8")[:] = 1
    arena.view(900, (1,), "uint8")[:] = 1
    assert arena.high_water_bytes([(0, 128)]) == 960
    assert arena.high_water_bytes([(128, 64)]) == 960


def test_a_write_past_the_end_shows_in_the_guard() -> None:
    arena = Arena(1024)
    arena.view(0, (1024 + 4,), "uint8")[:] = 1
    assert arena.high_water_bytes([(0, 1024)]) == 1024 + 64 > arena.size_bytes
    assert GUARD_BYTES >= 64


def test_an_empty_arena_has_its_guard_alone() -> None:
    arena = Arena(0)
    assert arena.last_touched() == 0
    assert np.asarray(arena.view(0, (0,), "float64")).size == 0
