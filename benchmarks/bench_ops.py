"""Every op of a preset's update, forward and backward, in every backend on one core: milliseconds and GFLOP/s beside
the FMA peak of the same run. NumPy's row is what the definition costs (its BLAS may use every core).

    python benchmarks/bench_ops.py [--preset small] [--backends numba,cython,numpy] [--repeats 9]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict

import numpy as np

from fastbp.commands.options import BATCH
from fastbp.graph.config import DecoderConfig
from fastbp.run.decoder import Decoder
from fastbp.run.fma_peak import FmaPeak

Key = tuple[str, str]


def prepared(preset: str, backend: str) -> Decoder:
    config = DecoderConfig.preset(preset)
    decoder = Decoder(config, BATCH[preset], backend=backend, workers=1)
    decoder.initialise(0)
    random = np.random.default_rng(0)
    for array in (decoder.tokens, decoder.targets):
        array[:] = random.integers(0, config.vocab, array.shape)
    decoder.forward_backward()
    return decoder


def one_pass(decoder: Decoder) -> dict[Key, float]:
    """Seconds of each op and direction, summed over the blocks."""
    seconds: dict[Key, float] = defaultdict(float)
    start = time.perf_counter()

    def watch(instruction: object) -> bool:
        nonlocal start
        now = time.perf_counter()
        seconds[instruction.op, instruction.direction] += now - start  # type: ignore[attr-defined]
        start = time.perf_counter()
        return True

    decoder.runner.run_watched(decoder.gradients_program, watch)
    return seconds


def flops(decoder: Decoder) -> dict[Key, float]:
    """FLOPs of each op and direction; the head's backward computes its logits too."""
    totals: dict[Key, float] = defaultdict(float)
    for node in decoder.graph.nodes:
        forward, backward = node.flops
        if node.op.backward_yields_outputs:
            forward, backward = 0, forward + backward
        totals[node.op_name, "forward"] += forward
        totals[node.op_name, "backward"] += backward
    return totals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="small")
    parser.add_argument("--backends", default="numba,cython,numpy")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    decoders = {name: prepared(options.preset, name) for name in options.backends.split(",")}
    peak = FmaPeak(1).measure()
    passes: dict[str, list[dict[Key, float]]] = defaultdict(list)
    for _ in range(options.repeats):
        for name, decoder in decoders.items():
            passes[name].append(one_pass(decoder))
    count = flops(next(iter(decoders.values())))
    keys = sorted(passes[options.backends.split(",")[0]][0])
    print(f"{options.preset}, batch {BATCH[options.preset]}, one core; FMA peak {peak:.0f} GFLOP/s")
    print(f"{'op':<32}" + "".join(f"{name + ' ms':>13}{'GFLOP/s':>9}" for name in decoders))
    for key in keys:
        row = f"{' '.join(key):<32}"
        for name in decoders:
            median = statistics.median(each[key] for each in passes[name])
            row += f"{1e3 * median:>13.3f}{count[key] / median / 1e9:>9.1f}"
        print(row)


if __name__ == "__main__":
    main()
