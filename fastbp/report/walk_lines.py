"""A walk for a terminal of 80 columns: a paragraph a stop, then what became of the stream and of the token table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastbp.base.units import format_bytes
from fastbp.report.columns import WIDTH, wrapped
from fastbp.schedule.local import tensor_of

Result = Mapping[str, Any]

INDENT = 12
"""Columns before a stop's words."""
SIGNS = {" ": "\u2423", "\n": "\u23ce", "\t": "\u21e5"}
CELL = 7
"""Columns of a number in a table of them."""
NUMBERS_FIT = 10
"""Keys whose dS is written in numbers; of more there are only marks."""


def visible(token: str) -> str:
    """A token with a sign for its white space."""
    return "".join(SIGNS.get(character, character if character.isprintable() else "\ufffd") for character in token)


def walk_lines(result: Result) -> list[str]:
    """The whole walk; an op is put into words where it comes first."""
    lines, told = list(_head(result)), set()
    for stop in result["stops"]:
        lines += ["", *_stop(stop, result, stop["words"] not in told)]
        told.add(stop["words"])
    return [*lines, *_end(result)]


def _head(result: Result) -> Iterator[str]:
    tokens = [visible(token) for token in (*result["tokens"], result["targets"][-1])]
    config = result["config"]
    window, room = "".join(tokens), WIDTH - INDENT
    for start in range(0, len(window), room):
        yield from _named("" if start else "window", window[start : start + room])
    lines = {
        "": f"{len(result['tokens'])} tokens, each with the next one as its target",
        "decoder": f"{result['decoder']}: {config['blocks']} blocks, width {config['width']}, {config['heads']} heads,"
        f" {result['dtype']}, {result['backend']}",
        "policy": f"{result['policy']}: {result['actions']} actions, which ticks count, and"
        f" {result['peak_bytes']} bytes of activations at the peak",
        "loss": f"{result['loss']:.4f}, the mean over the tokens",
    }
    for name, text in lines.items():
        yield from _named(name, text)


def _stop(stop: Result, result: Result, in_words: bool) -> Iterator[str]:
    yield f"{stop['stop']:>2} of {result['stops_in_all']:<4}  {_title(stop)}"
    for text in (*stop["formula"], *([stop["words"]] if in_words else [])):
        yield from _named("", text)
    parts = {
        "needs": list(_needs(stop["needs"])),
        "gradient": [_flows(stop)],
        "rows": list(_rows(stop["rows"], result["tokens"])),
        "weights": [_weight(weight) for weight in stop["weights"]],
    }
    for name, texts in parts.items():
        for i, text in enumerate(texts):
            yield from _named("" if i else name, text)
    if stop["scores"]:
        yield from _scores(stop["scores"], [visible(token) for token in result["tokens"]])


def _title(stop: Result) -> str:
    role = {"copy": ", copied", "sum": ", summed"}.get(stop["role"], "")
    ticks = stop["ticks"]
    when = f"tick {ticks[0]}" if len(ticks) == 1 else f"ticks {ticks[0]} to {ticks[-1]}" if ticks else "no kernel"
    return f"{stop['op']}{role}: {stop['node']} ({when})"


def _named(name: str, text: str) -> list[str]:
    return wrapped(f"{name:>{INDENT - 2}}  {text}", INDENT)


def _shape(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))


def _needs(needs: Sequence[Result]) -> Iterator[str]:
    """A line an activation, and one for what is always there."""
    for need in needs:
        if need["how"] != "there":
            runs = ", ".join(f"{run['action']} (tick {run['tick']})" for run in _ends(need["runs"]))
            how = "kept" if need["how"] == "kept" else f"{need['how']} by {runs}"
            yield f"{need['tensor']} {_shape(need['shape'])}, {format_bytes(need['bytes'])}: {how}"
    there = [f"{need['tensor']} {_shape(need['shape'])}" for need in needs if need["how"] == "there"]
    if there:
        yield f"always there: {', '.join(there)}"
    if not needs:
        yield "nothing"


def _ends(runs: Sequence[Result]) -> Sequence[Result]:
    """The first and the last."""
    return runs if len(runs) <= 2 else (runs[0], runs[-1])


def _rows(sizes: Sequence[float], tokens: Sequence[str]) -> Iterator[str]:
    """A cell a token, as many in a line as fit."""
    cells = [f"{visible(token)} {short(size)}" for token, size in zip(tokens, sizes, strict=True)]
    width = max(map(len, cells)) + 2
    columns = max(1, (WIDTH - INDENT + 2) // width)
    for start in range(0, len(cells), columns):
        yield "".join(f"{cell:<{width}}" for cell in cells[start : start + columns]).rstrip()


def short(size: float) -> str:
    """A size with two digits: "0.021", "2.1e-3"."""
    if size == 0 or 0.01 <= size < 100:
        return f"{size:.2g}"
    digits, _, power = f"{size:.1e}".partition("e")
    return f"{digits}e{int(power)}"


def _flows(stop: Result) -> str:
    came = _flow(stop["incoming"])
    if stop["added"]:
        return f"{came}, and {_flow(stop['added'])} → {_flow(stop['outgoing'])}"
    return f"{came} → {_flow(stop['outgoing']) if stop['outgoing'] else 'its weights alone'}"


def _flow(flow: Result) -> str:
    name, _, part = flow["gradient"].partition("+")
    return f"{'a part of ' if part else ''}{name} {_shape(flow['shape'])}, norm {short(flow['norm'])}"


def _weight(weight: Result) -> str:
    state = "finished" if weight["finished"] else "so far: more comes at the end"
    return f"d:{weight['name']} {_shape(weight['shape'])}, norm {short(weight['norm'])}, {state}"


def _scores(scores: Result, tokens: Sequence[str]) -> Iterator[str]:
    """dS as a lower triangle: numbers where they fit, else marks for what is far from 0."""
    ds = scores["ds"]
    largest = max((abs(value) for row in ds for value in row), default=0.0)
    agreement = f"dS·K is the program's dQ, dSᵀ·Q its dK, within {scores['disagreement']:.0e}"
    if not largest or len(ds) > WIDTH - INDENT - 4:
        yield from _named(f"dS head {scores['head']}", f"{agreement}; --plot and --html show it")
        return
    numbers = len(ds) <= NUMBERS_FIT
    unit = f"in units of {largest:.2g}" if numbers else f"# over a third of {largest:.2g}, + or - less, . under a 30th"
    yield from _named(f"dS head {scores['head']}", f"a row a query, a column a key, {unit}")
    for token, row in zip(tokens, ds, strict=True):
        cells = [_number(value / largest) if numbers else _mark(value / largest) for value in row]
        yield f"{token:>{INDENT}}  {('' if not numbers else ' ').join(cells)}".rstrip()
    yield from _named("", agreement)


def _number(share: float) -> str:
    return "    ·" if share == 0 else f"{share:+.2f}" if abs(share) >= 0.005 else " 0.00"


def _mark(share: float) -> str:
    if share == 0:
        return " "
    size = abs(share)
    return "#" if size > 1 / 3 else "." if size < 1 / 30 else "+" if share > 0 else "-"


def _end(result: Result) -> Iterator[str]:
    yield from _stream(result)
    table = result["table"]
    norms, rows = table["norm"], table["rows"]
    yield ""
    yield from wrapped(
        f"The table {table['name']} gets its gradient twice: of norm {short(norms['head'])} from the head, in"
        f" {rows['head']} rows, and {short(norms['lookup'])} from the lookup, in {rows['lookup']}; together"
        f" {short(norms['whole'])}.",
        0,
    )


def _stream(result: Result) -> Iterator[str]:
    """The size of every row where the gradient runs down the residual stream: a column a token."""
    stream = [stop for stop in result["stops"] if stop["op"] == "residual"]
    if not stream:
        return
    found = {stream[0]["incoming"]["gradient"]: stream[0]["rows"]}
    found |= {stop["gradient"]: stop["rows"] for stop in stream if stop["role"] == "sum"}
    power = math.floor(math.log10(max(max(rows) for rows in found.values()) or 1))
    yield ""
    yield f"Down the residual stream: the norm of every row, in units of 1e{power}"
    width = max(len(tensor_of(name)) for name in found) + 2
    columns = (WIDTH - width) // CELL
    for start in range(0, len(result["tokens"]), columns):
        part = slice(start, start + columns)
        yield f"{'':{width}}" + "".join(f"{visible(token):>{CELL}}" for token in result["tokens"][part])
        for name, rows in found.items():
            yield f"{tensor_of(name):<{width}}" + "".join(f"{size / 10**power:{CELL}.3f}" for size in rows[part])
