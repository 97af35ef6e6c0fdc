"""Workers: how many, and that threads, forks and several decoders get on with each other."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection

import numpy as np
import pytest

from fastbp.base.errors import InputError
from fastbp.graph.config import DecoderConfig
from fastbp.run import workers as module
from fastbp.run.decoder import Decoder
from fastbp.run.program import Program
from fastbp.run.workers import TASKS_A_WORKER, TINY_FLOPS, Workers, choose_parts, choose_workers

BACKENDS = ("numpy", "numba", "cython")
PATIENCE_SECONDS = 300


@pytest.fixture(autouse=True)
def _cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Four cores, on any machine."""
    monkeypatch.setattr(module, "physical_cores", lambda: 4)
    yield
    gc.collect()


def ready(backend: str, workers: int, seed: int = 1, policy: str = "full", batch: int = 2) -> Decoder:
    decoder = Decoder(DecoderConfig.preset("seed"), batch, policy=policy, backend=backend, workers=workers)
    decoder.initialise(seed)
    random = np.random.default_rng(seed)
    for ids in (decoder.tokens, decoder.targets):
        ids[:] = random.integers(0, 64, ids.shape)
    return decoder


def gradients(decoder: Decoder, passes: int = 1) -> bytes:
    decoder.zero_gradients()
    for _ in range(passes):
        decoder.forward_backward()
    return decoder.gradients.flat.tobytes()


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("fastbp-")}


def assert_ended(some: set[threading.Thread]) -> None:
    for thread in some:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


# --- how many -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [5, 64, 0, -1])
def test_more_workers_than_cores_or_none_are_refused(asked: int) -> None:
    with pytest.raises(InputError, match=rf"^--workers {asked}: this machine offers 1 to 4 physical cores$"):
        choose_workers(asked, 10**9)


@pytest.mark.parametrize("asked", [1, 4])
def test_what_is_asked_for_is_taken(asked: int) -> None:
    assert choose_workers(asked, 1) == choose_workers(asked, 10**12) == asked


def test_unasked_a_tiny_model_gets_one_and_others_every_core() -> None:
    assert choose_workers(None, TINY_FLOPS - 1) == 1
    assert choose_workers(None, TINY_FLOPS) == 4


def test_the_decoder_refuses_too_many() -> None:
    with pytest.raises(InputError, match="--workers 5: this machine offers 1 to 4"):
        Decoder(DecoderConfig.preset("seed"), 1, workers=5)


# --- fast and small cores -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "alike", "parts"), [(1, False, 1), (3, True, 3), (3, False, 12)])
def test_kernels_are_cut_finer_where_cores_differ(
    workers: int, alike: bool, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "cores_are_alike", lambda: alike)
    assert choose_parts(workers) == parts


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("workers", [2, 3])
def test_tasks_change_no_bit_and_the_plan_counts_their_scratch(
    workers: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = gradients(ready(backend, 1), 3)
    monkeypatch.setattr(module, "cores_are_alike", lambda: False)
    decoder = ready(backend, workers)
    tasks = {instruction.tasks for instruction in decoder.gradients_program.instructions}
    assert tasks == {0 if backend == "numpy" else workers * TASKS_A_WORKER}
    assert gradients(decoder, 3) == expected
    assert decoder.measure_peak_bytes() == decoder.peak_bytes_predicted


# --- threads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3])
def test_threads_start_at_the_first_run_and_stay(count: int) -> None:
    before = threads()
    decoder = ready("numba", count)
    assert threads() == before
    decoder.forward_backward()
    started = threads() - before
    assert sorted(thread.name for thread in started) == [f"fastbp-{worker}" for worker in range(1, count)]
    decoder.forward_backward()
    assert threads() - before == started


def test_close_ends_the_threads_and_a_later_run_starts_new_ones() -> None:
    before = threads()
    decoder = ready("numba", 3)
    expected = gradients(decoder)
    started = threads() - before
    assert len(started) == 2
    decoder.runner.workers.close()
    assert_ended(started)
    decoder.runner.workers.close()  # once more does no harm
    assert gradients(decoder) == expected
    assert len(threads() - before) == 2


def test_threads_end_with_the_decoder() -> None:
    before = threads()
    decoder = ready("numba", 3)
    decoder.forward_backward()
    started = threads() - before
    assert len(started) == 2
    del decoder
    gc.collect()
    assert_ended(started)


def test_workers_that_never_ran_close_without_a_team() -> None:
    before = threads()
    Workers(3).close()
    assert threads() == before


def test_a_thread_that_does_not_start_leaves_no_team_that_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = ready("numba", 3)
    expected = gradients(ready("numba", 1))
    before, start = threads(), threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "fastbp-2":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            decoder.forward_backward()
        assert_ended(threads() - before)
    assert gradients(decoder) == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_several_decoders_take_turns(backend: str) -> None:
    shapes = [(1, 1), (2, 1), (3, 2), (2, 5)]
    decoders = [ready(backend, workers, seed, batch=batch) for seed, (workers, batch) in enumerate(shapes)]
    expected = [gradients(decoder) for decoder in decoders]
    assert len(set(expected)) == len(shapes)
    for _ in range(8):
        for decoder, alone in zip(decoders, expected, strict=True):
            assert gradients(decoder) == alone
            decoder.evaluate()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("workers", [1, 2])
def test_two_threads_may_run_one_decoder(workers: int, backend: str) -> None:
    passes = 20
    decoder = ready(backend, workers, batch=16)
    expected = gradients(decoder, 2 * passes)  # the same sums in the same order, whoever's turn it is
    decoder.zero_gradients()
    gate = threading.Barrier(2)

    def run() -> None:
        gate.wait(PATIENCE_SECONDS)
        for _ in range(passes):
            decoder.forward_backward()

    both = {threading.Thread(target=run, daemon=True) for _ in range(2)}
    for thread in both:
        thread.start()
    assert_ended(both)
    assert decoder.gradients.flat.tobytes() == expected


def test_two_threads_may_run_two_decoders() -> None:
    decoders = [ready("numba", 2, seed, batch=8) for seed in (1, 2)]
    expected = [gradients(decoder, 20) for decoder in decoders]
    found: dict[int, bytes] = {}

    def run(i: int) -> None:
        found[i] = gradients(decoders[i], 20)

    both = {threading.Thread(target=run, args=(i,), daemon=True) for i in range(2)}
    for thread in both:
        thread.start()
    assert_ended(both)
    assert [found[0], found[1]] == expected


# --- fork -----------------------------------------------------------------------------------------------------------


def in_child(decoder: Decoder) -> bytes:
    """The gradients of one pass in a forked child, through a pipe."""
    receive, send = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of any fork beside threads
        child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(20)  # a child that hangs is ended, and the pipe with it
            os.close(receive)
            with os.fdopen(send, "wb") as pipe:
                pipe.write(gradients(decoder))
            decoder.runner.workers.close()
            code = 0
        finally:
            os._exit(code)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        found = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return found


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("backend", ["numba", "cython"])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("ran", [False, True])
def test_a_forked_child_starts_threads_of_its_own(ran: bool, workers: int, backend: str) -> None:
    decoder = ready(backend, workers)
    expected = gradients(ready(backend, workers))
    if ran:
        decoder.forward_backward()
    assert in_child(decoder) == expected
    assert gradients(decoder) == expected
    assert in_child(decoder) == expected


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_that_is_forked_during_a_run_does_not_wait_for_it() -> None:
    # In the child the thread that held the lock is gone, and no one would ever give it back.
    decoder = ready("cython", 2)
    expected = gradients(decoder)
    with decoder.runner.workers.lock:
        assert in_child(decoder) == expected
    assert gradients(decoder) == expected


def _train(send: Connection, decoder: Decoder) -> None:
    send.send(gradients(decoder))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
def test_processes_of_multiprocessing_train_side_by_side() -> None:
    decoder = ready("cython", 2)
    expected = gradients(decoder)
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(2)]
    children = [context.Process(target=_train, args=(send, decoder), daemon=True) for _, send in pipes]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of any fork beside threads
        for child in children:
            child.start()
    for (receive, _), child in zip(pipes, children, strict=True):
        assert receive.poll(PATIENCE_SECONDS)
        assert receive.recv() == expected
        child.join(PATIENCE_SECONDS)
        assert child.exitcode == 0


# --- the end --------------------------------------------------------------------------------------------------------

SCRIPT = """
import gc, os, signal, sys, threading, time
from fastbp.graph.config import DecoderConfig
from fastbp.run import workers
from fastbp.run.decoder import Decoder

workers.physical_cores = lambda: 4
decoder = Decoder(DecoderConfig.preset("seed"), 2, backend="cython", workers=3)
decoder.initialise(0)
decoder.forward_backward()
"""

ENDS = {
    "workers spin": "",
    "workers sleep": "time.sleep(0.2)",
    "a cycle holds the decoder": "decoder.itself = decoder; del decoder; gc.collect()",
    "a thread runs it": """
def run():
    while True:
        decoder.forward_backward()
threading.Thread(target=run, daemon=True).start()
time.sleep(0.1)
""",
    "an exception": "sys.exit(0)",
}


@pytest.mark.parametrize("end", ENDS)
def test_the_interpreter_ends_whatever_the_workers_do(end: str) -> None:
    found = subprocess.run([sys.executable, "-c", SCRIPT + ENDS[end]], capture_output=True, timeout=PATIENCE_SECONDS)
    assert (found.returncode, found.stderr) == (0, b"")


def test_an_interrupt_ends_a_run_and_the_next_one_is_whole() -> None:
    script = (
        SCRIPT
        + """
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it, and so would this one
decoder.zero_gradients(); decoder.forward_backward()
expected = decoder.gradients.flat.tobytes()
for delay in range(20):
    try:
        threading.Timer(0.002 * delay, os.kill, (os.getpid(), signal.SIGINT)).start()
        while True:
            decoder.forward_backward()
    except KeyboardInterrupt:
        pass
    decoder.zero_gradients(); decoder.forward_backward()
    assert decoder.gradients.flat.tobytes() == expected
print("whole")
"""
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=PATIENCE_SECONDS)
    assert (found.returncode, found.stdout, found.stderr) == (0, b"whole\n", b"")


def test_a_watched_run_waits_for_its_turn() -> None:
    decoder = ready("cython", 2)
    order: list[str] = []

    def watched() -> None:
        decoder.runner.run_watched(decoder.evaluation_program, lambda each: bool(order.append("watched")))

    thread = threading.Thread(target=watched, daemon=True)
    with decoder.runner.workers.lock:
        thread.start()
        thread.join(0.05)
        order.append("the run before")
    assert_ended({thread})
    assert order == ["the run before", "watched"]


def test_a_program_of_nothing_needs_no_threads_to_end() -> None:
    workers = Workers(2)
    empty = Program(()).compiled
    assert empty is not None
    workers.run(empty)
    workers.close()
