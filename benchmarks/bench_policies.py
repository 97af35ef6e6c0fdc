"""Activation memory against time: policies of ours beside what torch and JAX offer on the twin model. Every contender
of every round is a fresh process, one at a time, in an order that is shuffled anew each round from a fixed seed.
Prints a Markdown table; --out writes policies-PRESET.csv and policies-PRESET.png.

    python benchmarks/bench_policies.py [--presets medium] [--policies "save_all,selective(gelu, layernorm),full"]
        [--budgets "80%,200MiB"]
        [--peers "torch eager,torch compile@0.5,jax scan-remat"] [--rounds 3] [--seconds 5] [--out DIR]
"""

from __future__ import annotations

import argparse
import csv
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastbp.base.units import exact_bytes, format_bytes, parse_bytes
from fastbp.commands.options import BATCH, split_list, whole
from fastbp.commands.terminal import measuring
from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.memory.layout import layout_bytes
from fastbp.policy.named import make_plan
from fastbp.report.bench import milliseconds
from fastbp.report.plot import memory_against_time
from fastbp.run.contender import Contender, ContenderFailed, Memory, installed
from fastbp.run.measure import Spread, in_turn
from fastbp.run.seconds import seconds_of_calls
from fastbp.run.workers import choose_workers
from fastbp.train.benchmark import description

MARK = "fastbp save_all"
BUDGETS = "85%,66%,50%,33%,25%,15%,10%"
POLICIES = "save_all,selective(layernorm),selective(gelu, layernorm),selective(mlp),every(2),sqrt,full"
PEERS = (
    "torch eager,torch chunked,torch selective,torch checkpoint,torch compile@1,torch compile@0.75,torch compile@0.5,"
    "torch compile@0.25,torch compile@0,jax unrolled,jax scan-dots,jax scan-remat"
)
COLUMNS = (
    "contender", "predicted_peak_bytes", "measured_peak_bytes", "kept_bytes", "extra_flops_share", "rss_peak_bytes",
    "step_rss_bytes", "median_seconds", "fastest_seconds", "slowest_seconds", "updates", "times_save_all",
)  # fmt: skip

Row = dict[str, Any]


@dataclass
class Found:
    """What was measured of one contender: the seconds of its updates by round, and in every round its memory."""

    seconds: dict[int, list[float]] = field(default_factory=dict)
    rss_peak_bytes: list[int] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)

    def most(self, name: str) -> Any:
        """The largest of a figure of `Memory` over the rounds, or None where the contender cannot say."""
        return max((value for each in self.memory if (value := getattr(each, name)) is not None), default=None)

    def times(self, mark: Found) -> float:
        """Its median over the mark's in the same round; the median of rounds."""
        both = self.seconds.keys() & mark.seconds.keys()
        return Spread.of([Spread.of(self.seconds[i]).median / Spread.of(mark.seconds[i]).median for i in both]).median


def run(label: str, preset: str, seconds: float) -> tuple[list[float], int, Memory]:
    """A fresh process: seconds of its updates, its peak resident bytes, its memory. Raises ContenderFailed."""
    config, batch = DecoderConfig.preset(preset), BATCH[preset]
    workers = choose_workers(None, decoder_graph(config, batch).products_per_pass)
    library, _, mode = label.partition(" ")
    ours = library == "fastbp"
    what = description(config, batch, workers, mode if ours else "save_all")
    with Contender("fastbp auto" if ours else label, what) as contender:
        contender.wait()
        taken = [second for each in in_turn([contender], seconds, least=1) for second in each.turn()]
        return taken, contender.rss_peak_bytes(), contender.memory()


def measure(
    labels: Sequence[str], preset: str, rounds: int, seconds: float, say: Callable[[str], None]
) -> tuple[dict[str, Found], dict[str, str]]:
    """By contender what was found, and why those that failed did; these are not tried again."""
    found, failed = {label: Found() for label in labels}, dict[str, str]()
    shuffler = random.Random(0)
    for i in range(rounds):
        for label in shuffler.sample(labels, len(labels)):
            if label in failed:
                continue
            say(f"{preset}, round {i + 1} of {rounds}: {label}")
            try:
                taken, rss, memory = run(label, preset, seconds)
            except ContenderFailed as error:
                failed[label] = str(error)
                continue
            found[label].seconds[i] = taken
            found[label].rss_peak_bytes.append(rss)
            found[label].memory.append(memory)
    return {label: each for label, each in found.items() if label not in failed}, failed


def rows_of(found: Mapping[str, Found]) -> list[Row]:
    """A row of COLUMNS for each contender."""
    rows = []
    for label, each in found.items():
        seconds = [second for taken in each.seconds.values() for second in taken]
        spread = Spread.of(seconds)
        values = (
            label, each.most("predicted_peak_bytes"), each.most("activation_peak_bytes"), each.most("kept_bytes"),
            each.most("extra_flops_share"), max(each.rss_peak_bytes), each.most("step_rss_bytes"),
            spread.median, spread.low, spread.high, len(seconds), each.times(found[MARK]),
        )  # fmt: skip
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def table(rows: Iterable[Row]) -> list[str]:
    """The rows in Markdown; a dash where a contender cannot say."""
    title = ("contender", "predicted peak", "measured peak", "kept", "extra FLOPs", "peak RSS", "RSS of an update",
             "ms", "× save_all")  # fmt: skip
    lines = [title, ("---", *("---:" for _ in title[1:]))]
    for row in rows:
        share, bounds = row["extra_flops_share"], (row["fastest_seconds"], row["slowest_seconds"])
        sizes = {name: "–" if row[name] is None else format_bytes(row[name]) for name in row if name.endswith("_bytes")}
        lines.append((
            row["contender"], sizes["predicted_peak_bytes"], sizes["measured_peak_bytes"], sizes["kept_bytes"],
            "–" if share is None else f"{share:.1%}", sizes["rss_peak_bytes"], sizes["step_rss_bytes"],
            milliseconds(row["median_seconds"], bounds), f"{row['times_save_all']:.2f}",
        ))  # fmt: skip
    return [f"| {' | '.join(cells)} |" for cells in lines]


def write(rows: Sequence[Row], preset: str, folder: Path) -> None:
    """policies-PRESET.csv, bytes and seconds as they were measured, and the picture."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"policies-{preset}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    memory_against_time(rows, f"{preset}, batch {BATCH[preset]}", folder / f"policies-{preset}.png")


def budget_policies(preset: str, budgets: Sequence[str], say: Callable[[str], None]) -> list[str]:
    """The planner's policies for sizes, or shares of what save_all needs. Its calls are measured here, if they are not
    yet, so that no contender has to.
    """
    config, batch = DecoderConfig.preset(preset), BATCH[preset]
    graph = decoder_graph(config, batch, workers=choose_workers(None, decoder_graph(config, batch).products_per_pass))
    whole_bytes = layout_bytes(graph, make_plan(graph, "save_all"))
    seconds_of_calls(config, batch, workers=choose_workers(None, graph.products_per_pass), say=say)
    sizes = [
        round(float(each[:-1]) / 100 * whole_bytes) if each.endswith("%") else parse_bytes(each) for each in budgets
    ]
    return [f"optimal({exact_bytes(_readable(size))})" for size in sizes]


def _readable(size: int) -> int:
    """Whole MiB, rounded down, where that is little."""
    return size >> 20 << 20 if size >= 16 << 20 else size


def bench(labels: Sequence[str], preset: str, options: argparse.Namespace) -> None:
    with measuring() as say:
        ours = (f"fastbp {policy}" for policy in budget_policies(preset, options.budgets, say))
        labels = [*labels, *ours]
        found, failed = measure(labels, preset, options.rounds, options.seconds, say)
    if MARK in failed:
        raise SystemExit(f"{MARK} failed: {failed[MARK]}")
    rows = rows_of(found)
    print(f"\n{preset}: batch {BATCH[preset]}, {options.rounds} rounds\n")
    print("\n".join([*table(rows), *(f"\n{label} failed: {why}" for label, why in failed.items())]), flush=True)
    if options.out:
        write(rows, preset, options.out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", type=split_list, default="medium")
    parser.add_argument("--policies", type=split_list, default=POLICIES, help="save_all, the mark, is always there")
    parser.add_argument("--budgets", type=split_list, default=BUDGETS, help="of the planner: sizes, or % of save_all's")
    parser.add_argument("--peers", type=split_list, default=PEERS, help="modes of torch and JAX; '' for none")
    parser.add_argument("--rounds", type=whole(), default=3, help="fresh processes of each")
    parser.add_argument("--seconds", type=float, default=5.0, help="of updates in each process, at least one turn")
    parser.add_argument("--out", type=Path, help="folder for the CSV and the picture")
    options = parser.parse_args()
    peers = [name for name in options.peers if installed(name.split()[0])]
    for library in sorted({name.split()[0] for name in options.peers if name not in peers}):
        print(f"not installed: {library}")
    labels = list(dict.fromkeys([MARK, *(f"fastbp {policy}" for policy in options.policies), *peers]))
    for preset in options.presets:
        bench(labels, preset, options)


if __name__ == "__main__":
    main()
