"""Contenders of a benchmark, each a process of its own: its threads disturb nobody, and its memory is its own.

The process runs `benchmarks/peers/serve.py` with what to build as one JSON argument. It answers a line once it has done
an update, and from then on each line "n" with the seconds of n updates and the line "memory" with a `Memory`. It ends
with its standard input.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

from fastbp.base.errors import FastbpError, InputError
from fastbp.run.resident import rss_peak_bytes

SERVER = Path(__file__).parents[2] / "benchmarks" / "peers" / "serve.py"

PEERS = {
    "torch": ("torch eager", "torch compile", "torch compile@0.75"),
    "jax": ("jax unrolled", "jax scan-dots"),
}
"""Libraries, and their contenders: how most people run them, and the settings that were found fastest at some size."""

TURN_SECONDS = 0.3
"""A turn is as many updates as fit, at least two, or one that takes over two seconds, behind one that is not counted:
it finds its data in no cache, as no update in a row does."""

MOST_UPDATES = 500
"""Of a turn, however short they are."""


class ContenderFailed(FastbpError):
    """A contender's process ended before its time; says what it said last."""


@dataclass(frozen=True)
class Memory:
    """What a contender says of its memory; None where it cannot say. Parameters, the optimiser's state and the
    gradients of parameters are in none of it, but for gradients in `step_rss_bytes` where an update makes them anew.
    """

    activation_peak_bytes: int | None = None
    """The most bytes of activations that were live at once in an update, as measured."""
    step_rss_bytes: int | None = None
    """Resident memory that an update adds at its peak to what lies there between updates."""
    predicted_peak_bytes: int | None = None
    kept_bytes: int | None = None
    """Bytes that wait for backward when forward is over."""
    extra_flops_share: float | None = None
    """Recomputed FLOPs over those of a forward and backward pass."""


def installed(library: str) -> bool:
    """Whether a library is there, without importing it."""
    return find_spec(library) is not None


def require_server() -> None:
    """Raises InputError where the peers are not at hand: they are part of a checkout, not of the package."""
    if not SERVER.exists():
        raise InputError("--peers needs benchmarks/peers, which comes with a checkout and not with the package")


class Contender:
    """A running contender; it ends with the context that it is the manager of."""

    def __init__(self, name: str, description: Mapping[str, Any]) -> None:
        self.name = name
        self._streams = ExitStack()
        self._errors = self._streams.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, str(SERVER), json.dumps({"contender": name, **description})],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, bufsize=0,
            start_new_session=True,  # Ctrl-C is for the parent, which ends it
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._questions = self._streams.enter_context(self._process.stdin)
        self._answers = self._streams.enter_context(self._process.stdout)
        self._updates = 1
        self._rss_peak_bytes: int | None = None

    def __enter__(self) -> Contender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._streams.close()

    def wait(self) -> None:
        """Until it has done its first update. Raises ContenderFailed."""
        self._plan(self._answer())

    def turn(self) -> list[float]:
        """Seconds of the counted updates of one turn. Raises ContenderFailed."""
        seconds: list[float] = self._ask(str(self._updates + 1))
        self._plan(seconds)
        return seconds[1:]

    def _plan(self, seconds: list[float]) -> None:
        """The next turn's updates, from what the last ones took."""
        fastest = max(min(seconds), 1e-9)
        self._updates = max(1 if fastest > 2 else 2, min(MOST_UPDATES, round(TURN_SECONDS / fastest)))

    def rss_peak_bytes(self) -> int:
        """The most resident memory that it had, up to now or until it was asked for its memory: measuring takes some,
        and makes the system forget the peak.
        """
        return self._rss_peak_bytes or rss_peak_bytes(self._process.pid)

    def memory(self) -> Memory:
        """What it knows of its memory; costs a few updates. Raises ContenderFailed."""
        self._rss_peak_bytes = self.rss_peak_bytes()
        return Memory(**self._ask("memory"))

    def _ask(self, question: str) -> Any:
        try:
            self._questions.write(f"{question}\n".encode())
        except BrokenPipeError:
            raise self._failure() from None
        return self._answer()

    def _answer(self) -> Any:
        line = self._answers.readline()
        if not line:
            raise self._failure()
        return json.loads(line)

    def _failure(self) -> ContenderFailed:
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().split("\n")
        last = next((line.strip() for line in reversed(said) if line.strip()), f"exit code {code}")
        return ContenderFailed(last)
