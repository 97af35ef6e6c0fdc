"""The loop without the GIL: every worker runs every instruction, and none begins before all have ended the one before.

Kernels here are Python functions behind C addresses; they take the GIL back for as long as they run.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from fastbp.run._loop import Instructions, Team

KERNEL = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_int64), ctypes.c_int64, ctypes.c_int64)
PATIENCE_SECONDS = 60

Call = tuple[int, int, int, int]
"""First and last argument, worker, workers."""


class Kernels:
    """C kernels that write down their calls; `program` makes instructions of (kernel, row)."""

    def __init__(self, width: int = 3) -> None:
        self.calls: list[Call] = []
        self.width = width
        self.note = KERNEL(lambda args, worker, workers: self.calls.append((args[0], args[width - 1], worker, workers)))

    def program(self, count: int, first: int = 0, tasks: list[int] | None = None) -> Instructions:
        rows = np.zeros((count, self.width), np.int64)
        rows[:, 0], rows[:, -1] = np.arange(first, first + count), -np.arange(first, first + count)
        numbers = None if tasks is None else np.array(tasks, np.int64)
        return Instructions(np.full(count, address(self.note), np.int64), rows, numbers)


def address(kernel: Callable[..., None]) -> int:
    found = ctypes.cast(kernel, ctypes.c_void_p).value  # type: ignore[arg-type]
    assert found
    return found


@contextmanager
def serving(workers: int) -> Iterator[Team]:
    team = Team(workers)
    threads = [threading.Thread(target=team.serve, args=(worker,), daemon=True) for worker in range(1, workers)]
    for thread in threads:
        thread.start()
    yield team
    team.stop()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def test_tables_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="2 kernels, but 3 rows of arguments"):
        Instructions(np.zeros(2, np.int64), np.zeros((3, 1), np.int64))


def test_numbers_of_tasks_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="2 kernels, but 3 numbers of tasks"):
        Kernels().program(2, tasks=[1, 2, 3])


TASKS = [0, 7, 7, 0, 0, 1, 2, 12, 3]
"""For nine instructions: shares and tasks in every order, fewer tasks than workers, and no multiple of them."""


@pytest.mark.parametrize("workers", [2, 3])
def test_every_task_is_run_once_and_instructions_stay_in_step(workers: int) -> None:
    kernels = Kernels()
    program = kernels.program(9, tasks=TASKS)
    runs = 40
    with serving(workers) as team:
        for _ in range(runs):
            team.run(program)
    parts = [tasks or workers for tasks in TASKS]
    once = [(i, -i, part, count) for i, count in enumerate(parts) for part in range(count)]
    assert sorted(kernels.calls) == sorted(once * runs)
    assert [call[0] for call in kernels.calls] == [call[0] for call in once] * runs


def test_a_slow_workers_tasks_are_taken_by_others() -> None:
    # Whoever takes task 0 is held up until the other has done all the rest, its own share and the slow one's.
    done: list[int] = []
    rest = threading.Event()

    def kernel(args: object, task: int, tasks: int) -> None:
        if task == 0:
            assert rest.wait(PATIENCE_SECONDS)
        done.append(task)
        if len(done) == 7:
            rest.set()

    pointer = KERNEL(kernel)
    row, tasks = np.zeros((1, 1), np.int64), np.array([8], np.int64)
    with serving(2) as team:
        team.run(Instructions(np.array([address(pointer)], np.int64), row, tasks))
    assert done[-1] == 0
    assert sorted(done) == list(range(8))


def test_one_worker_has_no_one_to_share_tasks_with() -> None:
    kernels = Kernels()
    program = kernels.program(2, tasks=[4, 0])
    Team(1).run(program)
    program.run_alone(0, 2, 1)
    assert kernels.calls == [(0, 0, 0, 1), (1, -1, 0, 1)] * 2


def test_run_alone_plays_each_task_in_turn() -> None:
    kernels = Kernels()
    kernels.program(2, tasks=[3, 0]).run_alone(0, 2, 2)
    assert kernels.calls == [(0, 0, 0, 3), (0, 0, 1, 3), (0, 0, 2, 3), (1, -1, 0, 2), (1, -1, 1, 2)]


def test_run_alone_plays_each_worker_in_turn() -> None:
    kernels = Kernels()
    kernels.program(4).run_alone(1, 3, 2)
    assert kernels.calls == [(1, -1, 0, 2), (1, -1, 1, 2), (2, -2, 0, 2), (2, -2, 1, 2)]


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (2, 1), (0, 5), (5, 5)])
def test_run_alone_stays_within_the_program(start: int, stop: int) -> None:
    kernels = Kernels()
    with pytest.raises(IndexError, match=f"instructions {start} to {stop} of 4"):
        kernels.program(4).run_alone(start, stop, 1)
    assert not kernels.calls


def test_a_team_has_someone_in_it() -> None:
    with pytest.raises(ValueError, match="a team of 0 workers"):
        Team(0)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_every_worker_runs_every_instruction_in_step(workers: int) -> None:
    kernels = Kernels()
    program = kernels.program(40)
    with serving(workers) as team:
        assert team.workers == workers
        team.run(program)
    assert sorted(kernels.calls) == sorted((i, -i, w, workers) for i in range(40) for w in range(workers))
    assert [call[0] for call in kernels.calls] == [i for i in range(40) for _ in range(workers)]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_programs_of_different_length_follow_each_other(workers: int) -> None:
    # A worker that leaves the last barrier late must not see the next program before it is posted.
    kernels = Kernels()
    programs = [kernels.program(1), kernels.program(17, 100), kernels.program(2, 200)]
    with serving(workers) as team:
        for _ in range(60):
            for program in programs:
                team.run(program)
    expected = [i for first, count in ((0, 1), (100, 17), (200, 2)) for i in range(first, first + count)]
    assert [call[0] for call in kernels.calls] == [i for _ in range(60) for i in expected for _ in range(workers)]


def test_rows_of_different_width_follow_each_other() -> None:
    wide, narrow = Kernels(9), Kernels(2)
    with serving(2) as team:
        for _ in range(50):
            team.run(wide.program(3))
            team.run(narrow.program(5))
    assert sorted(wide.calls) == sorted((i, -i, w, 2) for i in range(3) for w in range(2) for _ in range(50))
    assert sorted(narrow.calls) == sorted((i, -i, w, 2) for i in range(5) for w in range(2) for _ in range(50))


def test_a_sleeping_worker_wakes_up() -> None:
    kernels = Kernels()
    with serving(2) as team:
        for _ in range(3):
            threading.Event().wait(0.05)  # far longer than a worker spins
            team.run(kernels.program(2))
    assert len(kernels.calls) == 3 * 2 * 2


def test_an_empty_program_ends_at_once() -> None:
    empty, kernels = Instructions(np.zeros(0, np.int64), np.zeros((0, 0), np.int64)), Kernels()
    with serving(2) as team:
        for _ in range(50):
            team.run(empty)
            team.run(kernels.program(1))
            team.run(empty)
    assert len(kernels.calls) == 50 * 2


def test_the_tables_are_kept_alive() -> None:
    kernels = Kernels()
    program = kernels.program(500)  # the arrays it was made of have no other owner
    filler = [np.full((500, 3), 77, np.int64) for _ in range(50)]
    program.run_alone(0, 500, 1)
    assert [call[0] for call in kernels.calls] == list(range(500))
    assert len(filler) == 50
