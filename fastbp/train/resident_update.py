"""One update in a process of its own, its resident memory watched by memory-profiler: what the system sees.

memory-profiler is no longer maintained, and it samples: a peak between two samples it misses. So the ledger is the
truth and this its witness. The process runs an update call by call, with a stamp behind each, so that every sample has
its tick; the arena's pages are given back before, so that they are resident from their first touch on. What was known
before (arrays by size, the interpreter with its libraries and kernels by measurement) is what the peak is judged by.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from memory_profiler import memory_usage

from fastbp.base.errors import FastbpError
from fastbp.graph.config import DecoderConfig
from fastbp.policy.saved import save_plan
from fastbp.run.decoder import Decoder
from fastbp.run.objects import reachable_bytes
from fastbp.run.op_times import ADAMW, OpTimes
from fastbp.run.resident import forget_rss_peak, give_back, rss_peak_bytes
from fastbp.train.synthetic import synthetic_trainer
from fastbp.train.trainer import Trainer

SAMPLES = 400
"""Aimed at in an update."""
SHORTEST_SECONDS, LONGEST_SECONDS = 1e-3, 0.1
"""Between two samples."""
MIB = 1 << 20

Row = dict[str, Any]


class ResidentFailed(FastbpError):
    """The process ended before its time; says what it said last."""


def resident_update(decoder: Decoder, seconds: float) -> Row:
    """The resident memory of an update like the decoder's, which takes so many seconds. Raises ResidentFailed."""
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.json"
        save_plan(plan, decoder.graph, decoder.plan)
        what = {
            "config": decoder.config.to_json(), "batch": decoder.batch, "plan": str(plan), "dtype": decoder.dtype,
            "backend": decoder.backend.name, "workers": decoder.workers, "seconds": seconds,
        }  # fmt: skip
        ran = subprocess.run(
            [sys.executable, "-m", __name__, json.dumps(what)], capture_output=True, text=True, check=False
        )
    if ran.returncode:
        said = [line.strip() for line in ran.stderr.splitlines() if line.strip()]
        raise ResidentFailed(f"--rss: {said[-1] if said else f'exit code {ran.returncode}'}")
    found: Row = json.loads(ran.stdout)
    return found


def watched_update(what: Mapping[str, Any]) -> Row:
    """What the process prints."""
    how = {key: what[key] for key in ("backend", "workers", "dtype")}
    synthetic_trainer(DecoderConfig.preset("seed"), 1, **how).update()  # loads the kernels; its arrays are tiny
    forget_rss_peak()
    base = _resident_bytes()
    config = DecoderConfig.from_json(what["config"])
    trainer = synthetic_trainer(config, what["batch"], policy=f"saved({what['plan']})", **how)
    times = _call_times(trainer)
    gc.collect()
    give_back(trainer.decoder.arena.view(0, (trainer.decoder.arena.size_bytes,), "uint8"))
    forget_rss_peak()
    interval = min(max(what["seconds"] / SAMPLES, SHORTEST_SECONDS), LONGEST_SECONDS)
    line, (start, taken) = memory_usage(
        (_update, (trainer, times)), interval=interval, timestamps=True, max_iterations=1, retval=True
    )
    high_water = rss_peak_bytes()
    begun = list(accumulate(taken.values(), initial=start))
    ticks = np.interp([stamp for _, stamp in line], begun, [*taken, len(trainer.decoder.schedule.actions) + 1])
    resident = [round(mib * MIB) for mib, _ in line]
    return judged({"interpreter, libraries, kernels": base, **_parts(trainer, times)}, max(resident)) | {
        "high_water_bytes": high_water, "interval_seconds": interval,
        "line": {"ticks": [round(float(tick), 3) for tick in ticks], "bytes": resident},
    }  # fmt: skip


def _resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def _call_times(trainer: Trainer) -> OpTimes[int]:
    """The update's calls, each under the clock, by tick; AdamW's comes behind the last."""
    decoder = trainer.decoder
    behind = len(decoder.schedule.actions)
    program = decoder.gradients_program.then(trainer.optimiser.program)
    return OpTimes(decoder, program, lambda call: behind if call.op == ADAMW.op else call.tick)


def _update(trainer: Trainer, times: OpTimes[int]) -> tuple[float, dict[int, float]]:
    """When it began, and the seconds of its calls by tick."""
    decoder = trainer.decoder
    trainer.optimiser.prepare(0, trainer.learning_rate.at(0))
    trainer.batches.fill(0, 0, decoder.tokens, decoder.targets)
    decoder.choose_masks(0, 0)
    return time.time(), times.run()


def _parts(trainer: Trainer, times: OpTimes[int]) -> dict[str, int]:
    """Bytes of all that a trainer has: its arrays by size, the arena's as the plan foretells them, and objects."""
    decoder, optimiser = trainer.decoder, trainer.optimiser
    moments = (optimiser.first_moments.flat, optimiser.second_moments.flat)
    batch = (decoder.tokens, decoder.targets, decoder.losses, decoder.row_weights, trainer.data.train)
    arena = decoder.arena.view(0, (decoder.arena.size_bytes,), "uint8")
    arrays = (decoder.parameters.flat, decoder.gradients.flat, *moments, arena, *batch)
    return {
        "parameters": decoder.parameters.flat.nbytes,
        "parameter gradients": decoder.gradients.flat.nbytes,
        "optimiser state": sum(array.nbytes for array in moments),
        "activations": decoder.peak_bytes_predicted,
        "text and batch": sum(array.nbytes for array in batch),
        "plan and program": reachable_bytes((trainer, times), arrays),
    }


def judged(parts: Mapping[str, int], peak_bytes: int) -> Row:
    """What was foretold, part by part, beside the peak, and what of this no part explains."""
    predicted = sum(parts.values())
    rest = peak_bytes - predicted
    return {
        "parts": dict(parts), "predicted_bytes": predicted, "peak_bytes": peak_bytes, "unexplained_bytes": rest,
        "unexplained_share": rest / peak_bytes,
    }  # fmt: skip


if __name__ == "__main__":
    # A fork would share every page with the sampler, and the update would copy each that it writes.
    multiprocessing.set_start_method("spawn")
    print(json.dumps(watched_update(json.loads(sys.argv[1]))))
