"""What a person sees while a command works: lines and progress on standard error, nothing where it is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn
from rich.progress import Task, TimeElapsedColumn, TimeRemainingColumn

err = Console(file=sys.stderr, stderr=True, highlight=False)


def say(text: str) -> None:
    """A line for people, on a terminal only."""
    if err.is_terminal:
        err.print(text, soft_wrap=True)


@contextmanager
def compiling(poll: Callable[[], None] = lambda: None) -> Iterator[Callable[[str], None]]:
    """A progress line that names the kernel which is compiled or loaded; `poll` is called before each."""
    columns = (SpinnerColumn(), TextColumn("kernels: {task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("", total=None)

        def report(kernel: str) -> None:
            poll()
            progress.update(task, description=kernel)

        yield report


class _Fields(ProgressColumn):
    """Loss and speed."""

    def render(self, task: Task) -> str:
        fields = task.fields
        if "loss" not in fields:
            return ""
        return f"loss {fields['loss']:.3f}  {fields['speed']}"


@contextmanager
def training_progress(done: int, total: int) -> Iterator[Callable[[int, float, str], None]]:
    """A bar with update, loss, tokens a second and time left: call it with (updates done, loss, speed)."""
    columns = (BarColumn(20), MofNCompleteColumn(), _Fields(), TimeRemainingColumn())
    with Progress(*columns, console=err, disable=not err.is_terminal, refresh_per_second=5) as progress:
        task = progress.add_task("", total=total, completed=done)

        def report(update: int, loss: float, speed: str) -> None:
            progress.update(task, completed=update, loss=loss, speed=speed)

        yield report
