"""The picture of a run: whole or not at all, drawn beside the training, seldom, and never in its way."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from fastbp.report import picture
from fastbp.report.picture import NAME, Redrawing, draw, redrawing
from fastbp.train.metrics import Metrics

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a run of three updates."""
    metrics = Metrics(tmp_path, 0)
    for update in range(1, 4):
        metrics.add(update=update, loss=1 / update)
    return tmp_path


class Clock:
    """`time.monotonic` as a test sets it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr("fastbp.report.picture.time.monotonic", found)
    return found


def wait_for(done: Callable[[], bool]) -> None:
    for _ in range(6000):
        if done():
            return
        time.sleep(0.01)
    pytest.fail("it takes more than a minute")


def test_a_picture_replaces_the_one_before(folder: Path) -> None:
    assert draw(folder) == folder / NAME
    first = (folder / NAME).read_bytes()
    Metrics(folder, 2).add(update=3, loss=7.0)
    draw(folder)
    assert (folder / NAME).read_bytes() != first
    assert first.startswith(PNG)
    assert sorted(path.name for path in folder.iterdir()) == [NAME, "metrics.jsonl"]


@pytest.mark.parametrize("error", [OSError("No space left on device"), KeyboardInterrupt(130)], ids=["disk", "Ctrl-C"])
def test_a_drawing_that_fails_leaves_the_one_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    draw(folder)
    before = (folder / NAME).read_bytes()

    def fail(panels: object, title: str, path: Path) -> None:
        path.write_bytes(PNG)
        raise error

    monkeypatch.setattr(picture, "_training_curves", fail)
    with pytest.raises(type(error)):
        draw(folder)
    assert (folder / NAME).read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == [NAME, "metrics.jsonl"]


def test_another_process_draws(folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "_give_way", lambda process: None)  # the machine may be busy with other things
    with redrawing(folder) as redraw:
        redraw()
        assert redraw._process is None, "it is too early"
        clock.now += picture.FIRST_SECONDS
        redraw()
        process = redraw._process
        assert process is not None
        wait_for(lambda: process.poll() is not None)
        assert process.returncode == 0
    assert (folder / NAME).read_bytes().startswith(PNG)


def test_the_process_that_draws_is_in_nobodys_way(folder: Path, clock: Clock) -> None:
    with redrawing(folder) as redraw:
        clock.now += picture.FIRST_SECONDS
        redraw()
        process = redraw._process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)  # it stays to be looked at
        assert os.getpgid(process.pid) == process.pid, "Ctrl-C would reach it"
        assert os.getsid(process.pid) == os.getsid(0), "Linux gives each session as much of the processor"
        if sys.platform == "linux":
            assert os.sched_getscheduler(process.pid) == os.SCHED_IDLE


def test_it_draws_for_a_hundredth_of_the_time(folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    children, begun = [3.0], []

    class Process:
        """Ends when it is looked at for the second time."""

        def __init__(self) -> None:
            self.looks = 0
            begun.append(clock.now)

        def poll(self) -> int | None:
            self.looks += 1
            if self.looks < 2:
                return None
            children[0] += 0.75
            return 0

    monkeypatch.setattr(picture, "_begin", lambda folder: Process())
    monkeypatch.setattr(picture, "_children_seconds", lambda: children[0])
    redraw = Redrawing(folder)
    while clock.now < 100 + 3600:
        redraw()
        clock.now += 0.25
    assert begun[0] == 100 + picture.FIRST_SECONDS
    assert {later - before for before, later in pairwise(begun)} == {75.0}


def test_a_drawing_under_way_ends_with_the_run(folder: Path, clock: Clock) -> None:
    draw(folder)
    before = (folder / NAME).read_bytes()
    with redrawing(folder) as redraw:
        clock.now += picture.FIRST_SECONDS
        redraw()
        process = redraw._process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)  # it will not have come to anything
    assert process.returncode == -signal.SIGKILL
    assert (folder / NAME).read_bytes() == before


def test_a_machine_without_another_process_goes_on_without_pictures(
    folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("subprocess.Popen", refuse)
    with redrawing(folder) as redraw:
        for _ in range(10):
            clock.now += 10
            redraw()
    assert not (folder / NAME).exists()
