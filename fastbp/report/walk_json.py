"""A walk's stops as JSON: what `fastbp walk --json` prints, and what its lines, picture and page are made of."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from fastbp.report.scores import Scores
from fastbp.report.stops import Flow, Stop
from fastbp.report.tied_table import TiedTable


def stop_json(stop: Stop, scores: Scores | None, head: int) -> dict[str, Any]:
    """A stop with its derivative; `gradient`, `shape`, `norm` and `rows` are of what goes on, or at the end came in."""
    shown = stop.shown
    return {
        "stop": stop.stop, "op": stop.op, "node": stop.node, "block": stop.block, "role": stop.role,
        "formula": list(stop.derivative.formula), "words": stop.derivative.words,
        "needs": [
            {
                "tensor": need.tensor, "kind": need.kind, "shape": list(need.shape), "bytes": need.nbytes,
                "how": need.how, "runs": [asdict(run) for run in need.runs],
            }
            for need in stop.needs
        ],
        "incoming": _flow_json(stop.incoming), "added": stop.added and _flow_json(stop.added),
        "outgoing": stop.outgoing and _flow_json(stop.outgoing),
        "gradient": shown.gradient, "shape": list(shown.shape), "norm": shown.norm, "rows": list(shown.rows),
        "weights": [
            {"name": each.name, "shape": list(each.shape), "norm": each.norm, "finished": each.finished}
            for each in stop.weights
        ],
        "ticks": list(stop.ticks), "scores": scores and _scores_json(scores, head),
    }  # fmt: skip


def _flow_json(flow: Flow) -> dict[str, Any]:
    return {"gradient": flow.gradient, "shape": list(flow.shape), "norm": flow.norm}


def _scores_json(scores: Scores, head: int) -> dict[str, Any]:
    """dS of a head: a row a query, a column a key."""
    return {"head": head, "ds": scores.gradient[head].tolist(), "disagreement": scores.disagreement}


def table_json(table: TiedTable, distinct: int) -> dict[str, Any]:
    """The norms of the head's contribution, the lookup's and both, and the rows that each touches."""
    norms = {name: float(np.linalg.norm(getattr(table, name))) for name in ("head", "lookup", "whole")}
    rows = {"head": len(table.whole), "lookup": distinct, "whole": len(table.whole)}
    return {"name": table.name, "rows": rows, "norm": norms}
