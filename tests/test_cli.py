"""The command line as a whole: what goes where, exit codes, and that no bad usage shows a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastbp import __version__
from fastbp.base.errors import CheckFailed, DoesNotFit, InputError, NonFinite, Stopped
from fastbp.cli import COMMANDS, main

RunCommand = Callable[..., Any]
ROOT = Path(__file__).parents[1]
TINY = ("--preset", "seed", "--eval-windows", "2")


def environment(**more: str) -> dict[str, str]:
    """This process's, with the package on the path and no wishes for colours, columns or buffers."""
    unwanted = ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "PYTHONUNBUFFERED")
    kept = {key: value for key, value in os.environ.items() if key not in unwanted}
    return kept | {"PYTHONPATH": str(ROOT)} | more


def spawn(*arguments: object, **options: object) -> subprocess.CompletedProcess[bytes]:
    """`python -m fastbp` in a process of its own."""
    settings = {"env": environment(), "capture_output": True, "timeout": 120} | options
    return subprocess.run([sys.executable, "-m", "fastbp", *map(str, arguments)], check=False, **settings)  # type: ignore[call-overload]


def fake_command(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """`doctor` fails with `error`."""

    def run(options: object) -> object:
        raise error

    monkeypatch.setattr("fastbp.commands.doctor.run", run)


def test_help_lists_every_command(fastbp: RunCommand) -> None:
    for flag in ("--help", "-h"):
        ran = fastbp(flag)
        assert (ran.code, ran.err) == (0, "")
        assert all(f"  {name} " in ran.out for name in COMMANDS)
        assert max(map(len, ran.out.splitlines())) <= 80
    assert fastbp("--version").out == f"fastbp {__version__}\n"


def test_no_command_shows_the_help_and_fails(fastbp: RunCommand) -> None:
    ran = fastbp()
    assert (ran.code, ran.out) == (2, "")
    assert "commands:" in ran.err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command(command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: fastbp {command}")
    assert max(map(len, text.splitlines())) <= 80
    # Every option says what it is when it is left out; these two are off.
    options = text.partition("options:\n")[2]
    entries = [
        entry for entry in (" " + options).split("\n  -")[1:] if not entry.startswith(("h,", "-json", "-schedule  "))
    ]
    for entry in entries:
        words = " ".join(entry.split())
        assert "default" in words or words.startswith("-resume"), words


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["trian"], ["'trian' is no command (did you mean 'train'?)", *COMMANDS]),
        (["xyz"], ["'xyz' is no command: choose train"]),
        (["--jsn"], ["'--jsn' is no command"]),
        (["plan", "--polcy", "full"], ["unknown argument --polcy (did you mean '--policy'?)", "fastbp plan --help"]),
        (["plan", "--polcy=full"], ["unknown argument --polcy (did you mean '--policy'?)"]),
        (["plan", "--pol", "full"], ["unknown argument --pol"]),  # no abbreviations: the next option would break them
        (["plan", "more"], ["unknown argument more"]),
        (["plan", "--batch"], ["--batch", "expected one argument"]),
        (["sample"], ["DIR"]),
        (["doctor", "--json=yes"], ["--json"]),
        (["plan", "--batch", "a\nb"], ["--batch", r"a\nb"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_bad_usage_is_one_line(fastbp: RunCommand, arguments: list[str], parts: list[str]) -> None:
    fastbp(*arguments).refused(*parts)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("width is 0"), 2, "width is 0"),
        (CheckFailed("worse"), 1, "worse"),
        (NonFinite("nan in x"), 1, "nan in x"),
        (DoesNotFit("too large"), 3, "too large"),
        (Stopped("stopped by Ctrl-C", 130), 130, "stopped by Ctrl-C"),
        (KeyboardInterrupt(), 130, "stopped at once"),
        (KeyboardInterrupt(143), 143, "stopped at once"),
        (MemoryError(), 3, "out of memory"),
        (PermissionError(13, "Permission denied", "a\nb"), 2, r"a\nb: Permission denied"),
        (OSError("no number"), 2, "no number"),
    ],
    ids=repr,
)
def test_expected_errors_have_a_code_and_one_line(
    fastbp: RunCommand, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, line: str
) -> None:
    fake_command(monkeypatch, error)
    fastbp("doctor").refused(line, code=code)


def test_a_defect_shows_its_traceback(fastbp: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_command(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        fastbp("doctor")


def test_numbers_that_json_lacks_are_a_defect(fastbp: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastbp.commands.doctor.run", lambda options: ({"loss": float("nan")}, [], 0))
    with pytest.raises(ValueError, match="JSON"):
        fastbp("doctor", "--json")


def test_the_code_of_a_check_is_passed_on(fastbp: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastbp.commands.doctor.run", lambda options: ({}, ["1 FAILED"], 1))
    ran = fastbp("doctor")
    assert (ran.code, ran.out, ran.err) == (1, "1 FAILED\n", "")


class Terminal:
    """Standard output that says it is one."""

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


def test_a_terminal_is_spared_control_characters(fastbp: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a\tb\n\x1b[31mred\x07 \x9b2J\x7f naïve 漢字 \xa0😀"
    monkeypatch.setattr("fastbp.commands.doctor.run", lambda options: ({}, [text], 0))
    assert fastbp("doctor").out == text + "\n"  # a file gets all of it
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    main(["doctor"])
    assert terminal.text == "a\tb\n\ufffd[31mred\ufffd \ufffd2J\ufffd naïve 漢字 \xa0😀\n"


def test_the_module_is_the_command(tmp_path: Path) -> None:
    done = spawn("plan", "--preset", "seed", "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.count(b"\n") == 1
    assert spawn("plan", "--polcy", cwd=tmp_path).returncode == 2


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fastbp", "plan", "--schedule", "--preset", "gpt2"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_output_that_takes_nothing_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        done = spawn("plan", "--preset", "seed", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr == b"fastbp: standard output cannot be written: No space left on device\n"


def test_closed_streams_are_no_error() -> None:
    command = f"{sys.executable} -m fastbp plan --preset seed"
    for redirection, code in ((">&-", 0), ("2>&-", 0), (">&- 2>&-", 0), ("--polcy 2>&-", 2)):
        done = subprocess.run(
            f"{command} {redirection}", shell=True, env=environment(), capture_output=True, check=False
        )
        assert (done.returncode, done.stderr) == (code, b"")
        assert redirection.startswith("2") == bool(done.stdout)


def test_nothing_is_said_where_nobody_watches(tmp_path: Path) -> None:
    # FORCE_COLOR, which CI services set, asks for colours; it does not make a file a terminal.
    done = spawn("train", *TINY, "--steps", 3, "--out", tmp_path / "run", env=environment(FORCE_COLOR="1"))
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"validation loss" in done.stdout
    assert b"\x1b" not in done.stdout


def test_a_locale_without_the_characters_of_the_text(tmp_path: Path) -> None:
    """lad-gpt #1, textgenrnn #8, gpt-2 #52: the charmap codec cannot encode."""
    text = tmp_path / "text.txt"
    text.write_text("😀漢字ï" * 40, encoding="utf-8")
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = spawn("train", *TINY, "--steps", 3, "--out", tmp_path / "run", text, env=environment(**ascii_only))
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\U0001f600" in done.stdout
