"""What a person sees while a command works: lines and progress on standard error, silent where it is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fastbp.base.units import format_count

REFRESH_SECONDS = 0.2

# No markup: a file may be called "[red].txt".
_console = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)


def is_terminal() -> bool:
    """Whether a person watches standard error. FORCE_COLOR, which rich takes for a yes, does not make it a terminal."""
    return sys.stderr is not None and sys.stderr.isatty() and _console.is_terminal


def say(text: str) -> None:
    """A line for people, on a terminal only."""
    if is_terminal():
        _console.print(text)


def warn(text: str) -> None:
    """A line that counts for scripts too: on standard error, terminal or not."""
    if sys.stderr is not None:
        _console.print(f"fastbp: {text}")


@contextmanager
def compiling(poll: Callable[[], None] = lambda: None) -> Iterator[Callable[[str], None]]:
    """A progress line that names the kernel which is compiled or loaded; `poll` is called before each."""
    columns = (SpinnerColumn(), TextColumn("kernels: {task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=_console, transient=True, disable=not is_terminal()) as progress:
        task = progress.add_task("", total=None)

        def report(kernel: str) -> None:
            poll()
            progress.update(task, description=kernel)

        yield report


@contextmanager
def measuring(doing: str = "measuring") -> Iterator[Callable[[str], None]]:
    """A progress line that names what is measured, or whatever is being done. It moves when it is told to: a thread of
    its own would take time from what is measured.
    """
    columns = (TextColumn(doing + ": {task.description}", markup=False), TimeElapsedColumn())
    watched = is_terminal()
    with Progress(*columns, console=_console, transient=True, disable=not watched, auto_refresh=False) as progress:
        task = progress.add_task("", total=None)
        shown_at = -REFRESH_SECONDS

        def report(what: str) -> None:
            nonlocal shown_at
            if watched and time.monotonic() - shown_at >= REFRESH_SECONDS:
                progress.update(task, description=what, refresh=True)
                shown_at = time.monotonic()

        yield report


@contextmanager
def training_progress(done: int, total: int, tokens_per_update: int) -> Iterator[Callable[[int, float, float], None]]:
    """A bar with update, loss, speed and time left: call it with (updates done, loss, seconds of the update)."""
    columns = (
        BarColumn(16),
        TextColumn("update"),
        MofNCompleteColumn(),
        TextColumn("{task.description}", markup=False),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
    )
    shown_at, shown, busy_seconds = -REFRESH_SECONDS, done, 0.0
    with Progress(*columns, console=_console, disable=not is_terminal(), refresh_per_second=5) as progress:
        task = progress.add_task("", total=total, completed=done)

        def report(update: int, loss: float, seconds: float) -> None:
            nonlocal shown_at, shown, busy_seconds
            busy_seconds += seconds
            now = time.monotonic()
            # An update of a tiny decoder takes less time than telling rich of it.
            if progress.disable or (now - shown_at < REFRESH_SECONDS and update < total):
                return
            speed = format_count((update - shown) * tokens_per_update / busy_seconds)
            progress.update(task, completed=update, description=f"loss {loss:.3f}  {speed} tokens/s")
            shown_at, shown, busy_seconds = now, update, 0.0

        yield report
