"""One update under the clock and the ledger: where its seconds and its bytes go.

from fastbp import DecoderConfig
from fastbp.report.profile import profile

found = profile(DecoderConfig.preset("small"), batch=12, policy="full")
found  # a notebook and rich show the tables
found.save_plot("memory.png")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from fastbp.base.late import Late
from fastbp.base.shown import Shown
from fastbp.base.units import format_bytes
from fastbp.graph.config import DecoderConfig
from fastbp.memory.timeline import timeline
from fastbp.policy.advice import cheapest_drops, planned_instead
from fastbp.policy.cost import COSTS, Cost
from fastbp.policy.optimal import Planner
from fastbp.report.asked import Asked
from fastbp.report.page import write_page
from fastbp.report.plan import categories_json
from fastbp.report.profile_lines import profile_lines
from fastbp.run.decoder import Decoder
from fastbp.run.limits import Limits
from fastbp.run.workers import Workers
from fastbp.train.call_times import block_rows, measure_calls, update_row
from fastbp.train.synthetic import synthetic_trainer

memory_over_ticks = Late("fastbp.report.memory_plot", "memory_over_ticks")  # matplotlib takes half a second
resident_update = Late("fastbp.train.resident_update", "resident_update")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Profile(Shown):
    """What `fastbp profile` found out; `result` has the keys of its --json."""

    result: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return dict(self.result)

    def lines(self) -> list[str]:
        """For a terminal of 80 columns."""
        return profile_lines(self.result)

    def save_plot(self, path: str | Path) -> None:
        """Draws live bytes over the schedule as a PNG file."""
        memory_over_ticks(self.result, Path(path))

    def save_page(self, path: str | Path) -> None:
        """Writes an HTML page that needs nothing else."""
        write_page(Path(path), self.result)

    def __repr__(self) -> str:
        peak = format_bytes(self.result["peak"]["bytes"])
        return f"<Profile: {self.result['title']}, {self.result['policy']}, peak {peak}>"


def profile(
    decoder: DecoderConfig | str = "small",
    batch: int | None = None,
    *,
    name: str | None = None,
    policy: str = "save_all",
    cost: Cost = COSTS["roofline"],
    lossy: bool = False,
    backend: str = "auto",
    workers: int | None = None,
    dtype: str = "float32",
    seconds: float = 5.0,
    rss: bool = False,
    say: Say = lambda what: None,
) -> Profile:
    """Profiles an update of a decoder on tokens without meaning; `decoder` and `batch` as in `plan`.

    Calls and whole updates are measured `seconds` each, and in three rounds at least; with `rss` a process of its own
    runs an update more, under the system's eyes. Raises InputError for what is unknown, DoesNotFit for what has no
    room.
    """
    asked = Asked(decoder, batch, backend, workers, dtype)
    trainer = synthetic_trainer(
        asked.config, asked.sequences, backend=backend, workers=workers, policy=policy, cost=cost, lossy=lossy,
        dtype=dtype, progress=say,
    )  # fmt: skip
    built = trainer.decoder
    limits = Limits(built.runner.workers if built.backend.compiled else Workers(1), dtype)
    say("calls")
    calls = measure_calls(trainer, limits, seconds)
    ops = calls.op_rows()
    calls_seconds = sum(row["seconds"] for row in ops)
    say("updates")
    update = update_row(trainer, limits, seconds, calls_seconds)
    result = {
        "title": f"{name or asked.name}: batch {asked.sequences}, context {asked.config.context}, {dtype}",
        **ledger(built),
        "backend": built.backend.name, "workers": built.workers,
        "update": update | {"calls_seconds": calls_seconds},
        "limits": {
            "fma_peak_gflops": median(limits.gflops[limits.workers]),
            "memory_gb_per_second": median(limits.gb_per_second),
        },
        "ops": ops, "blocks": block_rows(calls, built.simulation), "rss": None,
    }  # fmt: skip
    del trainer
    say("advice")
    result["advice"] = advice(built, cost, lossy)
    if rss:
        say("resident memory")
        result["rss"] = resident_update(built, update["seconds"]["median"])
    return Profile(result)


def ledger(decoder: Decoder) -> dict[str, Any]:
    """What is known without a run."""
    simulation = decoder.simulation
    found = timeline(simulation, decoder.layout)
    return {
        "policy": decoder.plan.policy, "budget_bytes": decoder.plan.budget_bytes,
        "extra_flops_share": simulation.extra_flops_share, "kept_bytes": simulation.kept_bytes,
        "categories": categories_json(simulation, decoder.parameters.flat.nbytes),
        "peak": found.peak.to_json(), "timeline": found.to_json(),
    }  # fmt: skip


def advice(decoder: Decoder, cost: Cost, lossy: bool) -> dict[str, Any]:
    """What other plans would need and cost."""
    drops = cheapest_drops(decoder.simulation)
    planner = Planner(decoder.graph, cost, lossy)
    planned = planned_instead(planner, decoder.plan, decoder.peak_bytes_predicted)
    return {
        "drops": [_named("tensor", asdict(each)) for each in drops],
        "planner": _named("budget", asdict(planned)) if planned else None,
    }


def _named(key: str, advice: dict[str, Any]) -> dict[str, Any]:
    return {key: advice.pop("what"), **advice}
