"""The runner: watched or not the same bits, nothing allocated, and nothing read that was freed."""

from __future__ import annotations

import gc
import mmap
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fastbp.graph.config import DecoderConfig
from fastbp.run.decoder import Decoder
from fastbp.run.instruction import Instruction
from fastbp.schedule.actions import Free

BACKENDS = ("numpy", "numba", "cython")
COMPILED = ("numba", "cython")
SEED = DecoderConfig.preset("seed")
BIASED = DecoderConfig(3, 24, 3, 40, 20, 50, gelu="erf")
POLICIES = ("save_all", "full", "every(2)", "selective(core_attn, gelu)", "save_only(qkv, mid)", "save_only(u)")
UPDATES = 1000
PAGE_BYTES = mmap.PAGESIZE
SLACK_PAGES = 8
"""The interpreter itself may touch a page or two (a frame, a free list); one buffer an update would be hundreds."""


@pytest.fixture(autouse=True)
def _cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("fastbp.run.workers.physical_cores", lambda: 4)
    yield
    gc.collect()


def ready(
    backend: str, workers: int = 1, config: DecoderConfig = SEED, policy: str = "full", batch: int = 2
) -> Decoder:
    decoder = Decoder(config, batch, policy=policy, backend=backend, workers=workers)
    random = np.random.default_rng(3)
    for values in decoder.parameters.values():
        values[...] = 0.3 * random.standard_normal(values.shape)
    for ids in (decoder.tokens, decoder.targets):
        ids[:] = random.integers(0, config.vocab, ids.shape)
    return decoder


def bits(decoder: Decoder) -> tuple[bytes, bytes]:
    return decoder.losses.tobytes(), decoder.gradients.flat.tobytes()


# --- watched --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("workers", [1, 3])
def test_a_watched_run_gives_the_same_bits(workers: int, backend: str) -> None:
    decoder = ready(backend, workers)
    decoder.forward_backward()
    expected = bits(decoder)
    decoder.zero_gradients()
    decoder.losses[:] = 0
    seen: list[Instruction] = []

    def watch(instruction: Instruction) -> bool:
        seen.append(instruction)
        return True

    assert decoder.runner.run_watched(decoder.gradients_program, watch)
    assert bits(decoder) == expected
    assert tuple(seen) == decoder.gradients_program.instructions


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_watched_run_stops_where_it_is_told_to(backend: str) -> None:
    decoder = ready(backend)
    whole = decoder.arena.view(0, (decoder.arena.size_bytes,), "uint8")
    seen: list[str] = []

    def watch(instruction: Instruction) -> bool:
        seen.append(instruction.node)
        assert np.isfinite(instruction.outputs[0][1]).all()
        return instruction.node != "blocks.0.qkv"

    before = whole.copy()
    assert not decoder.runner.run_watched(decoder.gradients_program, watch)
    assert seen == ["blocks.0.x", "blocks.0.ln1", "blocks.0.qkv"]
    assert not decoder.gradients.flat.any()
    assert (whole != before).any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_overflow_is_a_number_and_no_warning(backend: str) -> None:
    decoder = ready(backend)
    decoder.parameters["blocks.0.mlp.w1"][:] = 3e38
    decoder.forward_backward()
    decoder.runner.run_watched(decoder.gradients_program, lambda each: True)
    assert not np.isfinite(decoder.losses).all()


# --- nothing is allocated -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", COMPILED)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_step_allocates_no_python_memory(workers: int, backend: str) -> None:
    decoder = ready(backend, workers)
    for _ in range(10):
        decoder.forward_backward()
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(10):
            decoder.forward_backward()  # what the interpreter keeps for the next call
        before = tracemalloc.take_snapshot()
        tracemalloc.reset_peak()
        base = tracemalloc.get_traced_memory()[0]
        for _ in range(UPDATES):
            decoder.forward_backward()
        now, peak = tracemalloc.get_traced_memory()
        after = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    ours = [each for each in after.compare_to(before, "filename") if "/fastbp/" in each.traceback[0].filename]
    assert sum(each.size_diff for each in ours) <= 0, ours
    assert sum(each.count_diff for each in ours) <= 0, ours
    # In between nothing but small change: frames, an int. NumPy reports its arrays to tracemalloc, so one would show.
    assert peak - base < 1024
    assert now - base < 1024


def anonymous_bytes() -> int:
    """Pages of this process that hold what it wrote itself. The kernel may drop pages of files and bring them back."""
    rollup = Path("/proc/self/smaps_rollup").read_text()
    return int(next(line.split()[1] for line in rollup.splitlines() if line.startswith("Anonymous:"))) * 1024


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="the kernel does not count pages here")
@pytest.mark.parametrize("backend", COMPILED)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_step_takes_no_pages(workers: int, backend: str) -> None:
    """What a kernel took with malloc would show in no Python tool; what it did not give back shows here."""
    decoder = ready(backend, workers)
    for _ in range(100):
        decoder.forward_backward()
        decoder.zero_gradients()
    gc.collect()
    anonymous_bytes()
    before = anonymous_bytes()
    for _ in range(UPDATES):
        decoder.forward_backward()
        decoder.zero_gradients()
    assert anonymous_bytes() - before <= SLACK_PAGES * PAGE_BYTES
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with mmap.mmap(-1, 4 * SLACK_PAGES * PAGE_BYTES, flags=private) as kept:  # the measure does see what is taken
        kept.write(b"x" * len(kept))
        assert anonymous_bytes() - before > SLACK_PAGES * PAGE_BYTES


# --- nothing is read that was freed ---------------------------------------------------------------------------------


def poison(decoder: Decoder, tick: int, until: int) -> int:
    """Fills every buffer that dies in (tick, until] with NaN: all bits one. Returns how many there were."""
    count = 0
    for buffer, offset in zip(decoder.layout.buffers, decoder.layout.offsets, strict=True):
        if tick < buffer.dies <= until:
            decoder.arena.view(offset, (buffer.nbytes,), "uint8")[:] = 0xFF
            count += 1
    return count


def run_poisoned(decoder: Decoder) -> int:
    """Runs with NaN in everything that is not written yet, and in every buffer from its Free on."""
    decoder.arena.view(0, (decoder.arena.size_bytes,), "uint8")[:] = 0xFF
    ticks = [instruction.tick for instruction in decoder.gradients_program.instructions]
    following = iter([*ticks[1:], len(decoder.schedule.actions)])
    poisoned = 0

    def watch(instruction: Instruction) -> bool:
        nonlocal poisoned
        poisoned += poison(decoder, instruction.tick, next(following))
        return True

    assert decoder.runner.run_watched(decoder.gradients_program, watch)
    return poisoned


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("config", [SEED, BIASED], ids=["seed", "biased"])
@pytest.mark.parametrize("policy", POLICIES)
def test_nan_in_all_that_is_freed_changes_nothing(policy: str, config: DecoderConfig, backend: str) -> None:
    decoder = ready(backend, 2, config, policy)
    decoder.forward_backward()
    expected = bits(decoder)
    decoder.zero_gradients()
    assert run_poisoned(decoder) == len(decoder.layout.buffers)
    assert np.isfinite(decoder.gradients.flat).all()
    assert bits(decoder) == expected


@pytest.mark.parametrize("name", ["blocks.1.qkv", "blocks.1.g", "d:final.x"])
def test_the_poison_is_strong_enough_to_be_seen(name: str) -> None:
    # The same run with one buffer said to die before its last reader: what is read then is NaN.
    decoder = ready("numpy", policy="save_all")
    buffers = []
    for buffer in decoder.layout.buffers:
        actions = decoder.schedule.actions[: buffer.dies]
        last = max(tick for tick, action in enumerate(actions) if not isinstance(action, Free))
        buffers.append(buffer._replace(dies=last) if name in buffer.names else buffer)
    decoder.layout = replace(decoder.layout, buffers=tuple(buffers))
    run_poisoned(decoder)
    assert np.isnan(decoder.gradients.flat).any()
