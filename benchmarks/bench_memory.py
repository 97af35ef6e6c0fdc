"""Resident memory of a training process at its peak, fastbp (save_all) beside torch eager: fresh processes one at a
time, forwards and backwards through the list, a few updates each. Medians, and the ratio to the last.

    python benchmarks/bench_memory.py [--presets medium,gpt2] [--contenders "fastbp cython,torch eager"] [--rounds 3]
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict

from fastbp.base.units import format_bytes
from fastbp.commands.options import BATCH
from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.run.contender import Contender, installed
from fastbp.run.measure import in_turn
from fastbp.run.workers import choose_workers
from fastbp.train.benchmark import description


def rss_of(name: str, preset: str) -> int:
    """Peak bytes of a fresh process that does a few updates."""
    config, batch = DecoderConfig.preset(preset), BATCH[preset]
    workers = choose_workers(None, decoder_graph(config, batch).products_per_pass)
    with Contender(name, description(config, batch, workers)) as contender:
        contender.wait()
        contender.turn()
        return contender.rss_peak_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", default="medium,gpt2")
    parser.add_argument("--contenders", default="fastbp cython,torch eager", help="the last is the mark")
    parser.add_argument("--rounds", type=int, default=3, help="fresh processes of each")
    options = parser.parse_args()
    names = [name for name in options.contenders.split(",") if installed(name.split()[0])]
    for preset in options.presets.split(","):
        peaks: dict[str, list[int]] = defaultdict(list)
        for name in in_turn(names, seconds=0, least=options.rounds):
            peaks[name].append(rss_of(name, preset))
        mark = statistics.median(peaks[names[-1]])
        print(f"{preset}: batch {BATCH[preset]}, peak resident memory of {options.rounds} processes each")
        for name, found in peaks.items():
            median = statistics.median(found)
            low, high = (format_bytes(value) for value in (min(found), max(found)))
            print(
                f"  {name:<20} {format_bytes(round(median)):>10} [{low} - {high}]  {median / mark:.2f} of {names[-1]}"
            )


if __name__ == "__main__":
    main()
