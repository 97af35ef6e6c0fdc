"""One whole update (forward, backward, clipping, AdamW) of each preset, contenders side by side: each a process of its
own that takes turns with the first, with the FMA peak measured beside every turn. `fastbp bench --peers` has one
preset and everything below an update.

    python benchmarks/bench_update.py [--presets seed,small,medium] [--seconds 5]
        [--contenders "fastbp cython,fastbp numba,torch eager,torch compile@0.75,jax scan-dots"]
"""

from __future__ import annotations

import argparse

from fastbp.commands.options import BATCH
from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.report.bench import contender_lines
from fastbp.run.contender import installed
from fastbp.run.limits import Limits
from fastbp.run.workers import Workers, choose_workers
from fastbp.train.benchmark import description, measure_contenders


def bench(preset: str, names: list[str], seconds: float) -> None:
    config, batch = DecoderConfig.preset(preset), BATCH[preset]
    flops = decoder_graph(config, batch).products_per_pass
    workers = choose_workers(None, flops)
    what = description(config, batch, workers)
    rows = measure_contenders(names, what, flops, Limits(Workers(workers)), seconds, lambda what: None)
    print(f"\n{preset}: batch {batch}, context {config.context}, {flops / 1e9:.4g} GFLOP an update, {workers} workers")
    print("\n".join(contender_lines(rows)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", default="seed,small,medium")
    parser.add_argument("--contenders", default="fastbp cython,fastbp numba,torch eager", help="the first is the mark")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each contender")
    options = parser.parse_args()
    names = options.contenders.split(",")
    for library in sorted({name.split()[0] for name in names}):
        if not installed(library):
            print(f"not installed: {library}")
    names = [name for name in names if installed(name.split()[0])]
    for preset in options.presets.split(","):
        bench(preset, names, options.seconds)


if __name__ == "__main__":
    main()
