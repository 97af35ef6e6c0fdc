"""Plans as files: a plan is saved with the shapes that it was made for, and replayed on no others."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastbp.base.errors import InputError
from fastbp.graph.graph import Graph
from fastbp.schedule.plan import Plan, Slices
from fastbp.schedule.reversal import Reversal, Split


def save_plan(path: Path, graph: Graph, plan: Plan) -> None:
    """Writes a plan. Raises InputError where the file cannot be written."""
    text = json.dumps({**plan_json(plan), "activations": _shapes(graph)}, indent=1)
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"--save {path}: {error.strerror}: give another file") from None


def plan_json(plan: Plan) -> dict[str, Any]:
    """A plan as JSON."""
    names = {"keep": sorted(plan.keep), "packed": sorted(plan.packed)}
    return {**asdict(plan), **names, "slices": [each and asdict(each) for each in plan.slices]}


def load_plan(path: str, graph: Graph) -> Plan:
    """A saved plan. Raises InputError for a file that is none, or that was made for another decoder or batch."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        shapes = found.pop("activations")
        slices = tuple(each and Slices(**each) for each in found.pop("slices"))
        names = {"keep": frozenset(found["keep"]), "packed": frozenset(found.get("packed", ()))}
        plan = Plan(**{**found, **names, "slices": slices, "reversal": _reversal(found.get("reversal"))})
    except OSError as error:
        raise InputError(f"saved({path}): {error.strerror}: give a file that `fastbp plan --save` wrote") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"saved({path}) is no plan: give a file that `fastbp plan --save` wrote") from None
    if shapes != _shapes(graph):
        here, there = len(_shapes(graph)), len(shapes)
        name = next((name for name in shapes if shapes[name] != _shapes(graph).get(name)), "")
        what = f"{name} is {shapes[name]} there" if name else f"{there} activations there, {here} here"
        raise InputError(f"saved({path}) was made for another decoder or batch: {what}")
    return plan


def _reversal(found: Any) -> Reversal | None:
    """The tree that JSON holds as nested objects."""
    if not isinstance(found, dict):
        return None if found is None else int(found)
    earlier, later = _reversal(found["earlier"]), _reversal(found["later"])
    if earlier is None or later is None:
        raise ValueError("half a reversal")
    return Split(earlier, later, bool(found["whole"]))


def _shapes(graph: Graph) -> dict[str, list[int]]:
    return {tensor.name: list(tensor.shape) for tensor in graph.activations}
