"""Options that commands share, with their checks."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from fastbp.base.errors import InputError, nearest
from fastbp.base.late import Late
from fastbp.base.units import parse_bytes
from fastbp.graph.config import BATCH, POSITIONS, PRESETS, DecoderConfig
from fastbp.graph.decoder import ITEMSIZE
from fastbp.policy.cost import COSTS, Cost
from fastbp.policy.named import BUDGETED, policy_names
from fastbp.run.backend import BACKENDS

seconds_of_calls = Late("fastbp.run.seconds", "seconds_of_calls")  # imports Numba

DTYPES = tuple(ITEMSIZE)
DTYPE, BACKEND = "float32", "auto"
"""Where none is asked for."""

Say = Callable[[str], None]


def silent(what: str) -> None:
    """Nothing."""


def whole(minimum: int = 1) -> Callable[[str], int]:
    """An option's type: a whole number of at least `minimum`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{text}' is not a whole number") from None
        if value < minimum:
            raise argparse.ArgumentTypeError(f"{value} is too small: give at least {minimum}")
        return value

    return parse


def one_of(choices: Sequence[str]) -> Callable[[str], str]:
    """An option's type: one of some words."""

    def parse(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(
                f"'{text}' is unknown{nearest(text, choices)}: choose {', '.join(choices)}"
            )
        return text

    return parse


def share(text: str) -> float:
    """An option's type: a share from 0 up to but not including 1."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number") from None
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is out of bounds: give a share from 0 up to but not including 1")
    return value


def seconds(text: str) -> float:
    """An option's type: for how long something is measured."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds") from None
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is out of bounds: give more than 0 and at most 3600 seconds")
    return value


def new_file(option: str, name: str | None, suffix: str) -> Path | None:
    """Where a file goes that an option names. Raises InputError before minutes go into what it shows."""
    if name is None:
        return None
    path = Path(name)
    if path.suffix.lower() != suffix:
        raise InputError(f"{option} {name}: give the name of a {suffix[1:].upper()} file, such as policies{suffix}")
    if not path.absolute().parent.is_dir() or path.is_dir():
        raise InputError(f"{option} {name}: there is no folder {path.parent}, or the name is a folder's")
    return path


def split_list(text: str) -> list[str]:
    """An option's type: the entries of a comma list; commas within parentheses are an entry's own."""
    if not re.fullmatch(r"(?:[^()]|\([^()]*\))*", text):
        raise argparse.ArgumentTypeError(f"'{text}' has a parenthesis without its other half")
    return [entry.strip() for entry in re.findall(r"(?:[^,(]|\([^)]*\))+", text) if entry.strip()]


def list_of(kind: Callable[[str], int]) -> Callable[[str], list[int]]:
    """An option's type: numbers with commas between, each as `kind` reads it."""
    return lambda text: [kind(entry) for entry in split_list(text)]


def add_model_options(parser: argparse.ArgumentParser, preset: str = "small") -> None:
    """The options of every command that builds a decoder."""
    group = parser.add_argument_group("the decoder")
    group.add_argument("--preset", default=preset, metavar="NAME", help=f"{', '.join(PRESETS)} (default {preset})")
    for name, what in (
        ("blocks", "number of blocks"), ("width", "width of the residual stream"), ("heads", "attention heads"),
        ("ffn", "width of the feed-forward part"), ("context", "tokens in a sequence"),
        ("vocab", "size of the vocabulary"),
    ):  # fmt: skip
        default = "the text's, where there is one" if name == "vocab" else "the preset's"
        group.add_argument(f"--{name}", type=whole(), metavar="N", help=f"{what} (default: {default})")
    group.add_argument("--positions", metavar="NAME", help=f"{' or '.join(POSITIONS)} (default: the preset's)")
    group.add_argument("--dropout", type=share, metavar="P", help="share that training leaves out (default 0)")
    batches = ", ".join(f"{batch} for {name}" for name, batch in BATCH.items())
    group.add_argument("--batch", type=whole(), metavar="N", help=f"sequences in a batch (default: {batches})")


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """The options of every command that makes a plan and runs it."""
    group = parser.add_argument_group("how it runs")
    group.add_argument(
        "--policy", metavar="NAME",
        help=f"which activations are kept: {', '.join(policy_names())} (default save_all)",
    )  # fmt: skip
    group.add_argument(
        "--memory-budget", type=size, metavar="SIZE",
        help="the fastest plan whose activations fit into SIZE, such as 64MiB; the same as --policy 'optimal(SIZE)'"
        " (default: no bound)",
    )  # fmt: skip
    group.add_argument(
        "--lossy", action="store_true",
        help="let the plan under --memory-budget keep tensors as bfloat16, in half the bytes: gradients are then no"
        " longer exact (default: off)",
    )  # fmt: skip
    add_cost(group)
    add_dtype(group)
    add_backend(group)
    add_workers(group)


def add_cost(group: argparse._ActionsContainer) -> None:
    """What a planner minimises."""
    group.add_argument(
        "--cost", default="measured", type=one_of((*COSTS, "measured")), metavar="NAME",
        help="what a plan under a budget costs: seconds measured here, once for a shape; a roofline; or FLOPs that run"
        f" again. One of {', '.join(COSTS)}, measured (default measured)",
    )  # fmt: skip


def size(text: str) -> int:
    """An option's type: a number of bytes, "64MiB"."""
    try:
        return parse_bytes(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def asked_policy(options: argparse.Namespace) -> str | None:
    """--policy, or the planner under --memory-budget, or neither."""
    if options.memory_budget is None:
        return None if options.policy is None else str(options.policy)
    if options.policy is not None:
        raise InputError(f"--memory-budget and --policy {options.policy}: give one of them")
    return f"optimal({options.memory_budget})"


def chosen_policy(options: argparse.Namespace) -> str:
    """What was asked for, else save_all."""
    return asked_policy(options) or "save_all"


def chosen_cost(
    options: argparse.Namespace, policy: str, config: DecoderConfig, batch: int, lossy: bool = False, say: Say = silent,
    place: str | None = None,
) -> Cost:  # fmt: skip
    """What a planner minimises; calls are measured where that is asked for, and only for a policy that wants it: for a
    place of the workers' cores, or for the one that is known.
    """
    if options.cost != "measured" or policy.partition("(")[0] not in BUDGETED:
        return COSTS.get(options.cost, COSTS["roofline"])
    measured: Cost = seconds_of_calls(
        config,
        batch,
        backend=options.backend or BACKEND,
        workers=options.workers,
        dtype=options.dtype or DTYPE,
        lossy=lossy,
        place=place,
        say=say,
    )
    return measured


def add_dtype(parser: argparse._ActionsContainer) -> None:
    help_text = f"{' or '.join(DTYPES)} (default {DTYPE})"
    parser.add_argument("--dtype", default=DTYPE, type=one_of(DTYPES), metavar="NAME", help=help_text)


def add_backend(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--backend", default=BACKEND, metavar="NAME", help=f"{', '.join(BACKENDS)} (default {BACKEND})")


def add_workers(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--workers", type=whole(), metavar="N", help="threads (default: physical cores; 1 for a tiny model)"
    )


def add_seed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=whole(0), default=0, metavar="N", help="seed of weights and batches (default 0)")


def chosen_config(options: argparse.Namespace, vocab: int | None = None) -> DecoderConfig:
    """The decoder that the options describe; `vocab` comes from the data unless --vocab overrides it."""
    if options.vocab is not None and vocab is not None and options.vocab < vocab:
        raise InputError(f"--vocab {options.vocab} is smaller than the text's {vocab} tokens: leave it out or raise it")
    return DecoderConfig.preset(
        options.preset,
        vocab=options.vocab if options.vocab is not None else vocab,
        blocks=options.blocks,
        width=options.width,
        heads=options.heads,
        feed_forward=options.ffn if options.ffn is not None else _default_ffn(options),
        context=options.context,
        positions=options.positions,
        dropout=options.dropout,
    )


def _default_ffn(options: argparse.Namespace) -> int | None:
    """Four widths where --width is given alone, as in GPT-2."""
    return 4 * options.width if options.width is not None else None


def chosen_batch(options: argparse.Namespace) -> int:
    """--batch, or the preset's."""
    return BATCH.get(options.preset, 1) if options.batch is None else int(options.batch)
