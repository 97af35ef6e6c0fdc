"""The command line: finds the command, runs it, and turns every expected error into one line and an exit code.

0 done · 1 a check failed · 2 bad usage or input · 3 does not fit · 130/143 stopped by a signal, state saved.
Human text goes to standard error, the result to standard output; with --json it is one JSON object.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

from fastbp import __version__
from fastbp.base.errors import FastbpError, InputError, nearest

COMMANDS = {
    "train": "train a decoder on a text, and sample from it",
    "sample": "generate text from a snapshot",
    "plan": "show what a policy keeps, recomputes and needs, without running it",
    "compare": "run policies side by side: memory saved against extra compute",
    "profile": "show where an update's seconds and bytes go, and what to drop",
    "fit": "find the largest batch or context that fits into memory, and its plan",
    "walk": "follow the gradient back through a window of text, stop by stop",
    "check": "check gradients against autograd and finite differences",
    "bench": "measure the kernels against this machine's limits, and against peers",
    "warmup": "compile the kernels ahead of time",
    "doctor": "show the CPU, the backends, the caches and the memory",
}

USAGE = """\
usage: fastbp COMMAND [options]

Trains small GPT-style decoders on a laptop CPU, and decides exactly which
activations to keep and which to recompute.

commands:
{commands}

options:
  -h, --help  show this help message and exit
  --version   show the version and exit

Start with `fastbp train`: it needs no file. `fastbp COMMAND --help` shows every
option with its default and unit.
Exit codes: 0 done, 1 a check failed, 2 bad usage or input, 3 does not fit in
memory, 130 or 143 stopped by a signal with the state saved."""


class Parser(argparse.ArgumentParser):
    """The options of a command. Says what is wrong in one line, by raising InputError."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The options, or InputError with the option that an unknown one may have meant."""
        options, unknown = self.parse_known_intermixed_args(arguments)
        if unknown:
            name = unknown[0].partition("=")[0]
            self.error(f"unknown argument {name}{nearest(name, self._option_string_actions)}")
        return options


def parser_of(name: str) -> tuple[Parser, Any]:
    """The options of a command, and its module."""
    module: Any = import_module(f"fastbp.commands.{name}")
    command = Parser(
        prog=f"fastbp {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_argument("--json", action="store_true", help="print the result as one JSON object")
    module.add_options(command)
    return command, module


def _usage() -> str:
    return USAGE.format(commands="\n".join(f"  {name:<8} {text}" for name, text in COMMANDS.items()))


def _run(arguments: Sequence[str]) -> int:
    first = arguments[0] if arguments else ""
    if first in ("-h", "--help", "--version"):
        _print(f"fastbp {__version__}" if first == "--version" else _usage())
        return 0
    if not first:
        print(_usage(), file=sys.stderr)
        return 2
    if first not in COMMANDS:
        raise InputError(f"'{first}' is no command{nearest(first, COMMANDS)}: choose {', '.join(COMMANDS)}")
    # NumPy's threads would only stand in the way of the workers, and of each other where the cores are busy.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    command, module = parser_of(first)
    options = command.parse(arguments[1:])
    result, lines, code = module.run(options)
    _print(json.dumps(result, allow_nan=False) if options.json else _readable("\n".join(lines)))
    return int(code)


def _readable(text: str) -> str:
    """For a terminal, without the control characters that it would obey: a byte tokenizer's sample may hold any."""
    if sys.stdout is None or not sys.stdout.isatty():
        return text
    return "".join("\ufffd" if (c < " " and c not in "\n\t") or "\x7f" <= c < "\xa0" else c for c in text)


def _print(text: str) -> None:
    """The result, at once: an error of the system while Python ends would come too late to be told."""
    try:
        print(text, flush=True)
    except OSError as error:
        with suppress(OSError, ValueError):
            # Keeps Python from trying to write the rest again when it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise InputError(f"standard output cannot be written: {error.strerror}") from error


def _explain(text: str) -> None:
    if sys.stderr is not None:
        with suppress(OSError):
            print(f"fastbp: {text}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A locale that lacks a character of the text is no reason to lose the result.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    except FastbpError as error:
        _explain(str(error))
        return error.exit_code
    except KeyboardInterrupt as error:
        _explain("stopped at once; what was not saved is lost")
        return int(error.args[0]) if error.args else 130
    except MemoryError:
        _explain("out of memory: take --policy full, a smaller --batch or a smaller --context")
        return 3
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _explain(f"{where}{error.strerror or error}".replace("\n", "\\n"))
        return 2
