"""The figures of `fastbp bench`: products, ops, whole updates, and peers beside them.

Every figure is a median over turns with its range, and every share is taken of the limit as it was right beside. Rows
are as `--json` prints them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import parameter_shapes
from fastbp.run.contender import Contender, ContenderFailed
from fastbp.run.decoder import Decoder
from fastbp.run.limits import Limits
from fastbp.run.measure import Spread, in_turn, one_turn, seconds_of
from fastbp.run.op_times import Key, Keyed, OpTimes, op_and_direction, work_of
from fastbp.run.products import Product, ProductBench
from fastbp.run.runner import Runner
from fastbp.train.trainer import Trainer

Row = dict[str, Any]
Say = Callable[[str], None]

SAMPLE_FLOPS = 50_000_000
"""A sample of a product repeats it so often that every worker does this much at least: about half a millisecond."""


REST_SECONDS = 0.1
"""Between contenders, for the threads of the one before to fall asleep: OpenMP's spin on for a while."""


@dataclass
class Samples:
    """Seconds of one thing, and beside each the limit (in FLOP/s or bytes/s)."""

    seconds: list[float] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)

    def add(self, seconds: Sequence[float], limit: float) -> None:
        self.seconds += seconds
        self.limits += [limit] * len(seconds)

    def extend(self, other: Samples) -> None:
        self.seconds += other.seconds
        self.limits += other.limits

    def beside(self, other: Samples) -> Samples:
        """What both took together, round by round, beside the same limits."""
        return Samples([a + b for a, b in zip(self.seconds, other.seconds, strict=True)], self.limits)

    def share(self, amount: float) -> Spread:
        """`amount` of FLOPs or bytes a second, as a share of the limit."""
        return Spread.of([amount / s / limit for s, limit in zip(self.seconds, self.limits, strict=True)])


def measure_products(
    products: Sequence[Product], decoder: Decoder, limits: Limits, seconds: float, say: Say
) -> list[Row]:
    """Each product alone, by one worker and by all."""
    teams = sorted({1, decoder.workers}) if decoder.backend.compiled else [1]
    bench = ProductBench(products, decoder.backend, decoder.dtype, max(teams))
    runners = {workers: decoder.runner if workers == decoder.workers else Runner(workers) for workers in teams}
    programs = {}
    for each in products:
        for workers in teams:
            repeats = -(-SAMPLE_FLOPS * workers // each.flops)
            programs[each, workers] = bench.program(each, repeats), repeats
    samples: dict[tuple[Product, int], Samples] = defaultdict(Samples)
    for each, workers in in_turn(list(programs), seconds):
        say(f"{each.kind} {each.M} × {each.N} × {each.K}")
        program, repeats = programs[each, workers]
        runner = runners[workers]
        peak = limits.peak(workers) * 1e9
        runner.run(bench.program(each))
        samples[each, workers].add([seconds_of(lambda r=runner, p=program: r.run(p)) / repeats], peak)  # type: ignore[misc]
    return [
        {
            "kind": each.kind, "m": each.M, "n": each.N, "k": each.K, "where": list(each.where), "uses": each.uses,
            **_speed(samples[each, max(teams)], each.flops), "one_worker": _speed(samples[each, 1], each.flops),
        }
        for each in products
    ]  # fmt: skip


def _speed(samples: Samples, flops: int) -> Row:
    share = samples.share(flops)
    gflops = flops / Spread.of(samples.seconds).median / 1e9
    return {"gflops": gflops, "share_of_peak": share.median, "share_range": share.range}


def sample_calls(
    trainer: Trainer, limits: Limits, seconds: float, keyed: Keyed[Key], least: int = 5
) -> dict[Key, Samples]:
    """An update's calls by key, in the update's own order, beside the limit of what they mostly do; at least `least`
    rounds.
    """
    decoder = trainer.decoder
    wake_up = limits.wake_up() if decoder.backend.compiled else 0.0
    times = OpTimes(decoder, decoder.gradients_program.then(trainer.optimiser.program), keyed, wake_up)
    last, work = seconds_of(trainer.update), work_of(decoder, keyed)
    samples: dict[Key, Samples] = defaultdict(Samples)
    for _ in in_turn([None], seconds, least):
        peak, bandwidth = limits.peak() * 1e9, limits.bandwidth() * 1e9
        if last < 1:
            times.run()  # the triad has emptied the caches
        for key, taken in times.run().items():
            samples[key].add([taken], peak if work[key].product_flops else bandwidth)
    limits.forget_arrays()
    return samples


def measure_ops(trainer: Trainer, limits: Limits, seconds: float) -> list[Row]:
    """Every op of an update, forward and backward, in the update's own order; the most expensive first."""
    work = work_of(trainer.decoder, op_and_direction)
    rows = []
    for (op, direction), found in sample_calls(trainer, limits, seconds, op_and_direction).items():
        flops, moved = work[op, direction].product_flops, work[op, direction].moved_bytes
        median, share = Spread.of(found.seconds), found.share(flops or moved)
        rows.append({
            "op": op, "direction": direction, "seconds": median.median, "seconds_range": median.range,
            "gflops": flops / median.median / 1e9 if flops else None,
            "gb_per_second": None if flops else moved / median.median / 1e9,
            "limit": "peak" if flops else "memory", "share_of_limit": share.median, "share_range": share.range,
        })  # fmt: skip
    return sorted(rows, key=lambda row: -row["seconds"])


def measure_update(trainer: Trainer, limits: Limits, seconds: float, least: int = 5, last: float | None = None) -> Row:
    """Whole updates: forward, backward, clipping and AdamW; at least `least` turns. `last` are the seconds of an update
    that ran a moment ago, where one did.
    """
    last, samples = seconds_of(trainer.update) if last is None else last, Samples()
    for _ in in_turn([None], seconds, least):
        peak = limits.peak() * 1e9
        limits.barrier()
        samples.add(one_turn(trainer.update, last), peak)
        last = samples.seconds[-1]
    row = _update_row(samples, trainer.flops_per_update)
    return {
        **row,
        "flops_per_update": trainer.flops_per_update,
        "tokens_per_second": trainer.tokens_per_update / row["seconds"],
    }


def _update_row(samples: Samples, flops: int) -> Row:
    spread, share = Spread.of(samples.seconds), samples.share(flops)
    return {
        "seconds": spread.median, "seconds_range": spread.range, "runs": len(samples.seconds),
        "share_of_peak": share.median, "share_range": share.range,
    }  # fmt: skip


def description(config: DecoderConfig, batch: int, workers: int, policy: str = "save_all") -> Mapping[str, Any]:
    """What a contender's process is told."""
    shapes = {name: list(shape) for name, shape in parameter_shapes(config).items()}
    return {"config": config.to_json(), "batch": batch, "workers": workers, "policy": policy, "shapes": shapes}


def measure_contenders(
    names: Sequence[str], what: Mapping[str, Any], flops: int, limits: Limits, seconds: float, say: Say
) -> dict[str, Row]:
    """Contenders by name, each of them in turn with the first: two processes at a time, so that large models fit.

    A row's `ratio` is its median over the first's in the same minutes. One that fails has the reason instead.
    """
    first, *others = names
    say(f"{first} starts")
    with Contender(first, what) as reference:
        reference.wait()
        rows, own = {}, Samples()
        for name in others:
            say(f"{name} starts")
            try:
                with Contender(name, what) as other:
                    other.wait()
                    taken = _turns([reference, other], limits, seconds, say)
                    rows[name] = _update_row(taken[name], flops) | {
                        "ratio": Spread.of(taken[name].seconds).median / Spread.of(taken[first].seconds).median,
                        "rss_peak_bytes": other.rss_peak_bytes(),
                    }
                    own.extend(taken[first])
            except ContenderFailed as error:
                rows[name] = {"failed": str(error)}
        if not own.seconds:
            own = _turns([reference], limits, seconds, say)[first]
        mine = {**_update_row(own, flops), "ratio": 1.0, "rss_peak_bytes": reference.rss_peak_bytes()}
    return {first: mine, **rows}


def _turns(contenders: Sequence[Contender], limits: Limits, seconds: float, say: Say) -> dict[str, Samples]:
    samples = {each.name: Samples() for each in contenders}
    for each in in_turn(contenders, seconds * len(contenders), least=3):
        say(" beside ".join([each.name, *(other.name for other in contenders if other is not each)]))
        time.sleep(REST_SECONDS)
        peak = limits.peak() * 1e9
        samples[each.name].add(each.turn(), peak)
    return samples
