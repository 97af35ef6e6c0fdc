"""What the pages show runs: commands in order, in a folder of a page's own, and Python as one program.

`console` blocks are run as they stand, and their output is compared; "…" stands for anything. Those of `sh` are run at
a small size. A command whose comment begins with "long" is parsed alone; so is whatever sets up, measures or builds.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pages import PAGES, ROOT, Page

from fastbp.cli import COMMANDS, parser_of

SMALL = {
    "train": "--preset seed --steps 4 --eval-windows 2 --workers 1 --cost flops",
    "sample": "--tokens 8",
    "plan": "--preset seed --cost flops",
    "compare": "--preset seed --policies full --repeat 1 --workers 1",
    "fit": "--preset seed --memory 128KiB --workers 1",
    "bench": "--preset seed --seconds 0.01",
    "profile": "--preset seed --seconds 0.01 --workers 1 --cost flops",
}
"""Options behind those of a command in an `sh` block."""
TEXT = "".join(f"The function of {i} and {j} is {i * j}.\n" for i in range(12) for j in range(12))
VARIES = (
    (r"(loss +\d\.\d\d)\d+", r"\1"),  # the last bits of a loss are the CPU's
    (r"[\d.,]+ [kM]? ?tokens/s, [\d.]+ (s|ms|us) an update, [\d.]+ GFLOP/s", "a speed"),
    (r"\d+ of \d+ cores, [\d.]+ [MG]iB resident", "some cores, some memory"),
    (r"[\d.]+ \[[\d.]+-[\d.]+\] +[\d.]+ +[\d.]+ [MG]iB", "milliseconds, times save_all's, resident memory"),
    (r"error against central differences [\d.]+e-\d+", "a small error"),
    (r"─+", "─"),
    (r" +", " "),  # columns are as wide as their numbers
)
"""What differs from run to run and from machine to machine, and what stands for it."""
LINE_ENDS = r"(?<!\\)\n"
"""A line that a backslash ends goes on."""
SHOWN = [page for page in PAGES if page.blocks("sh", "console")]
RunCommand = Callable[..., Any]


@dataclass(frozen=True)
class Command:
    """A command of a block: its words, its comment, and the output that is shown below it."""

    words: tuple[str, ...]
    comment: str
    output: str | None

    @property
    def long(self) -> bool:
        return self.comment.startswith("long")

    @property
    def ours(self) -> tuple[str, ...] | None:
        """The words behind `fastbp`, where it is ours."""
        words = self.words[2:] if self.words[:2] == ("mprof", "run") else self.words
        return words[1:] if words[0].removeprefix(".venv/bin/") == "fastbp" else None

    @property
    def example(self) -> str | None:
        """The example that it runs."""
        is_one = self.words[0] == "python" and self.words[1].startswith("examples/")
        return self.words[1] if is_one else None


def commands(page: Page) -> Iterator[Command]:
    for kind, content in page.blocks("sh", "console"):
        start = r"^\$ " if kind == "console" else LINE_ENDS
        parts = re.split(start, content, flags=re.MULTILINE)[kind == "console" :]
        for part in filter(str.strip, parts):
            line, *output = re.split(LINE_ENDS, part, maxsplit=1)
            words, _, comment = line.replace("\\\n", "").partition(" #")
            yield Command(
                tuple(shlex.split(words)), comment.strip(" #"), "".join(output) if kind == "console" else None
            )


def alike(text: str) -> str:
    """Output without what varies."""
    for pattern, word in VARIES:
        text = re.sub(pattern, word, text)
    return "".join(line.rstrip() + "\n" for line in text.rstrip("\n").splitlines())


def matches(shown: str, found: str) -> bool:
    """Whether output is what is shown, line by line. "…" is anything within a line, or lines where it stands alone."""
    pattern = ""
    for line in alike(shown).splitlines(keepends=True):
        pattern += "(?:.*\n)*?" if line == "…\n" else ".*?".join(map(re.escape, line.split("…")))
    return re.fullmatch(pattern, alike(found)) is not None


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a page's commands run: with a text, and the examples."""
    (tmp_path / "my.txt").write_text(TEXT)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    return tmp_path


def run_python(arguments: list[str], folder: Path) -> str:
    """What a Python program prints; it says nothing on standard error."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, cwd=folder, capture_output=True, text=True, check=False,
        timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("page", SHOWN, ids=str)
def test_commands_run_in_order(page: Page, folder: Path, fastbp: RunCommand) -> None:
    for command in commands(page):
        if command.long:
            continue
        if command.example:
            found = run_python([command.example], folder)
        elif command.ours:
            small = SMALL.get(command.ours[0], "") if command.output is None else ""
            ran = fastbp(*command.ours, *small.split())
            assert (ran.code, ran.err) == (0, ""), command
            found = ran.out
        else:
            assert command.output is None, command
            continue
        if command.output is not None:
            assert matches(command.output, found), f"{shlex.join(command.words)} prints\n{found}"


@pytest.mark.parametrize("page", SHOWN, ids=str)
def test_every_command_can_be_parsed(page: Page) -> None:
    """The others too: `make` has the target, pip the extra, and a benchmark is there."""
    for command in commands(page):
        words = command.words
        if command.ours:
            assert command.ours[0] in COMMANDS, words
            parser_of(command.ours[0])[0].parse(command.ours[1:])
        elif words[0] == "make":
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), words
        elif words[0] == "python":
            assert (ROOT / words[1]).is_file(), words
        elif extra := re.search(r"\[(\w+)\]", words[-1]):
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            assert extra[1] in project["optional-dependencies"], words
        else:
            assert words[:3] in (("python3", "-m", "venv"), (".venv/bin/python", "-m", "pytest")) or words[0] == "mprof"


def test_commands_within_sentences_can_be_parsed() -> None:
    """Brackets are around what may be left out."""
    for page in PAGES:
        for written in re.findall(r"`fastbp ([^`]+)`", page.prose):
            words = shlex.split(re.sub(r"[\[\]]", "", written))
            if "--help" not in words:
                assert words[0] in COMMANDS, (page, written)
                parser_of(words[0])[0].parse(words[1:])


@pytest.mark.parametrize("page", [page for page in PAGES if page.blocks("python")], ids=str)
def test_python_runs(page: Page, folder: Path) -> None:
    program = folder / "page.py"
    program.write_text("\n".join(content for _, content in page.blocks("python")), encoding="utf-8")
    run_python([str(program)], folder)


def test_every_block_says_what_it_is() -> None:
    """A block without a kind, or of another, would be run by nobody."""
    for page in PAGES:
        fences = re.findall(r"^```(.*)$", page.text, re.MULTILINE)
        assert set(fences[::2]) <= {"", "text", "sh", "console", "python", "c"}, page
        assert not any(re.match(r"(fastbp|python|make) ", content) for _, content in page.blocks("", "text")), page


def test_formulas_and_commands_fit_beside_the_contents() -> None:
    """80 columns, as the site has them without a scroll bar; so do commands. Output is as it comes."""
    for page in PAGES:
        lines = [line for _, content in page.blocks("text") for line in content.splitlines()]
        lines += [line for _, content in page.blocks("console") for line in content.splitlines() if line[:2] == "$ "]
        assert not [line for line in lines if len(line) > 80], page


def test_every_command_is_shown() -> None:
    """Somewhere in the README or the tutorial."""
    shown = {command.ours[0] for page in SHOWN for command in commands(page) if command.ours}
    assert shown >= set(COMMANDS) - {"warmup"}


def test_an_output_matches_as_it_is_shown() -> None:
    assert matches("a …\n…\nd\n", "a b\nc\nc\nd\n")
    assert matches("a\n…\nd\n", "a\nd\n")
    assert not matches("a …\nd\n", "a b\nc\nd\n")
    assert not matches("a\n", "a\nb\n")
    assert not matches("1.0\n", "1x0\n")
    assert matches(
        "full  9 KiB  1.0% 0.1 [0.1-2.0]  1.37  44.7 MiB\n", "full 9 KiB 1.0% 20.1 [9.1-30.0]  1.2  4.0 MiB\n"
    )
    assert not matches(
        "full  9 KiB  1.0% 0.1 [0.1-2.0]  1.37  4.7 MiB\n", "full 8 KiB  1.0% 0.1 [0.1-2.0]  1.37  4.7 MiB\n"
    )
    assert not matches("loss  1.234\n", "loss  1.244\n")
