"""The command line: finds the command, runs it, and turns every expected error into one line and an exit code.

0 done · 1 a check failed · 2 bad usage or input · 3 does not fit · 130/143 stopped by a signal, state saved.
Human text goes to standard error, the result to standard output; with --json it is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from fastbp import __version__
from fastbp.base.errors import FastbpError, InputError, nearest

COMMANDS = {
    "train": "train a decoder on a text, and sample from it",
    "sample": "generate text from a snapshot",
    "plan": "show what a policy keeps, recomputes and needs, without running it",
    "check": "check gradients against autograd and finite differences",
    "warmup": "compile the kernels ahead of time",
    "doctor": "show the CPU, the backends, the caches and the memory",
}

DESCRIPTION = """\
Trains small GPT-style decoders on a laptop CPU, and decides exactly which
activations to keep and which to recompute."""

EPILOG = """\
Start with `fastbp train`: it needs no file. `fastbp COMMAND --help` shows every
option with its default and unit. Sizes are written 64MiB, 1.5GiB or 800000.
Exit codes: 0 done, 1 a check failed, 2 bad usage or input, 3 does not fit in
memory, 130 or 143 stopped by a signal with the state saved."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line and ends with exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


def _parser() -> Parser:
    lines = "\n".join(f"  {name:<8} {text}" for name, text in COMMANDS.items())
    parser = Parser(
        prog="fastbp",
        usage="fastbp COMMAND [options]",
        description=f"{DESCRIPTION}\n\ncommands:\n{lines}",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=True,
    )
    parser.add_argument("--version", action="version", version=f"fastbp {__version__}")
    parser.add_argument("command", metavar="COMMAND", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _run(arguments: Sequence[str]) -> int:
    parser = _parser()
    first = parser.parse_args(arguments[:1])
    if first.command is None:
        parser.print_help(sys.stderr)
        return 2
    if first.command not in COMMANDS:
        raise InputError(f"'{first.command}' is no command{nearest(first.command, COMMANDS)}: choose {', '.join(COMMANDS)}")
    module: Any = import_module(f"fastbp.commands.{first.command}")
    command = Parser(
        prog=f"fastbp {first.command}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--json", action="store_true", help="print the result as one JSON object")
    module.add_options(command)
    options = command.parse_args(arguments[1:])
    result, lines, code = module.run(options)
    print(json.dumps(result, allow_nan=False) if options.json else "\n".join(lines), flush=True)
    return int(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    except FastbpError as error:
        print(f"fastbp: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("fastbp: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        print("fastbp: out of memory: take --policy full, a smaller --batch or a smaller --context", file=sys.stderr)
        return 3
