"""Whether a plan takes less time than save_all, where the difference is less than what the machine's noise makes of two
medians: each pass of a plan runs between two of save_all, in the same memory, and is compared with their mean. Prints
the median of the pairs' differences, in how many the plan took less, and how likely as many or as few are by chance
(sign test); save_all itself, once more as the first plan, shows what a difference of nothing looks like.

    python benchmarks/bench_pairs.py [--preset small] [--policies "selective(gelu),optimal(25MiB)"] [--pairs 300]
"""

from __future__ import annotations

import argparse
from statistics import median

from scipy.stats import binomtest

from fastbp.base.errors import DoesNotFit, InputError
from fastbp.base.units import format_bytes
from fastbp.check.comparison import REFERENCE, Model
from fastbp.commands.options import BATCH, split_list, whole
from fastbp.commands.terminal import measuring
from fastbp.graph.config import DecoderConfig
from fastbp.memory.layout import layout_bytes
from fastbp.policy.named import make_plan
from fastbp.run.decoder import Decoder
from fastbp.run.measure import seconds_of, there_and_back
from fastbp.run.program import Program
from fastbp.run.seconds import seconds_of_calls
from fastbp.schedule.simulate import simulate


def timed(decoder: Decoder, program: Program) -> float:
    decoder.zero_gradients()
    return seconds_of(lambda: decoder.runner.run(program))


def bench(preset: str, policies: list[str], pairs: int) -> None:
    model = Model(DecoderConfig.preset(preset), BATCH[preset], "auto", None, "float32")
    graph = model.graph()
    with measuring() as say:
        cost = seconds_of_calls(model.config, model.batch, say=say)
    plans = [make_plan(graph, policy, cost) for policy in (REFERENCE, *policies)]
    decoder = model.decoder(max(plans, key=lambda plan: layout_bytes(graph, plan)), None)
    reference, *bound = [decoder.under(plan) for plan in (plans[0], *plans)]
    found: list[list[float]] = [[] for _ in bound]
    for i in range(pairs):
        for j in there_and_back(range(len(bound)), i):
            before, took, after = (timed(decoder, each) for each in (reference[1], bound[j][1], reference[1]))
            found[j].append(2 * took / (before + after) - 1)
    print(f"{preset}: batch {model.batch}, {decoder.backend.name}, {decoder.workers} workers, {pairs} pairs")
    print(f"{'policy':<28} {'peak':>10} {'more time':>10} {'less in':>8} {'by chance':>10}")
    for policy, (schedule, _), more in zip((REFERENCE, *policies), bound, found, strict=True):
        peak, less = format_bytes(simulate(schedule).peak_bytes), sum(each < 0 for each in more)
        chance = binomtest(less, pairs).pvalue
        print(f"{policy:<28} {peak:>10} {median(more):>+10.2%} {less:>8} {chance:>10.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="small", choices=BATCH)
    parser.add_argument("--policies", type=split_list, default="selective(gelu),optimal(22MiB),optimal(25MiB)")
    parser.add_argument("--pairs", type=whole(), default=300, help="of each policy")
    options = parser.parse_args()
    try:
        bench(options.preset, options.policies, options.pairs)
    except (InputError, DoesNotFit) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
