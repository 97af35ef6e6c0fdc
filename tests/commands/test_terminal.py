"""What a person sees: progress within 80 columns on a terminal, nothing elsewhere."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from fastbp.base.errors import Stopped
from fastbp.commands import terminal
from fastbp.commands.terminal import compiling, measuring, say, training_progress, warn

ROOT = Path(__file__).parents[2]
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_a_terminal(*arguments: object, **more: str) -> list[str]:
    """Every line that `fastbp` shows on a terminal of 80 columns, also those that it overwrites; no colours."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    unwanted = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
    environment = {key: value for key, value in os.environ.items() if key not in unwanted}
    environment |= {"PYTHONPATH": str(ROOT), "TERM": "xterm"} | more
    command = [sys.executable, "-m", "fastbp", *map(str, arguments)]
    chunks = []
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment) as process:
        os.close(slave)
        while True:
            try:
                chunk = os.read(master, 1 << 16)
            except OSError:  # Linux: the other end is closed
                break
            if not chunk:
                break
            chunks.append(chunk)
        assert process.wait(60) == 0
    os.close(master)
    text = ESCAPE.sub("", b"".join(chunks).decode())
    return [line for line in re.split(r"[\r\n]+", text) if line.strip()]


def test_training_on_a_terminal(tmp_path: Path) -> None:
    text = tmp_path / "[red]:smile:.txt"
    text.write_text("it is what it is, and nothing else. " * 20)
    lines = on_a_terminal(
        "train", "--preset", "seed", "--steps", 300, "--eval-every", 100, "--eval-windows", 2,
        "--backend", "numba",
        "--out", tmp_path / "run", text,
    )  # fmt: skip
    paths = [line for line in lines if str(tmp_path) in line]
    assert max(len(line) for line in lines if line not in paths) <= 80
    assert any(line.startswith(f"{text}: 720 characters, ") for line in lines)
    assert any(line.startswith("kernels...") or line.lstrip("⠀⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏ ").startswith("kernels: ") for line in lines)
    assert [line for line in lines if line.startswith("update    200: training loss ")]
    bars = [line for line in lines if " update " in line and " left" in line]
    last = re.search(r"update 300/300 loss \d\.\d{3}  [\d,.]+ M? ?tokens/s 00:00 left", bars[-1])
    assert last, bars[-1]
    assert any(line.startswith("validation loss  ") for line in lines)


def test_a_benchmark_says_what_it_measures(tmp_path: Path) -> None:
    lines = on_a_terminal("bench", "--preset", "seed", "--seconds", 0.5, "--backend", "cython", "--dtype", "float64")
    assert max(map(len, lines)) <= 80
    assert any(re.match(r"measuring: (forward|dX|dW) \d+ × \d+ × \d+ ", line) for line in lines)


def test_nothing_is_said_off_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    say("hello")
    with compiling() as progress:
        progress("linear forward")
    with measuring() as progress:
        progress("ops")
    with training_progress(0, 2, 16) as bar:
        bar(1, 2.5, 0.1)
        bar(2, 2.25, 0.0)
    assert capfd.readouterr() == ("", "")


def test_a_warning_is_said_anywhere(capfd: pytest.CaptureFixture[str]) -> None:
    warn("snapshot [red]x[/red] is damaged " + "x" * 100)
    assert capfd.readouterr() == ("", f"fastbp: snapshot [red]x[/red] is damaged {'x' * 100}\n")


def test_without_standard_error_nothing_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    assert not terminal.is_terminal()
    say("hello")
    warn("hello")
    with training_progress(0, 1, 1) as bar:
        bar(1, 2.5, 0.1)


def test_a_stop_is_heard_before_every_kernel() -> None:
    polls: list[int] = []

    def poll() -> None:
        polls.append(1)
        if len(polls) == 2:
            raise Stopped("stopped by Ctrl-C", 130)

    with pytest.raises(Stopped), compiling(poll) as progress:
        progress("embedding forward")
        progress("qkv forward")
        progress("never")
    assert len(polls) == 2
