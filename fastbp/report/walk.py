"""The gradient's way back through a decoder, from the loss to the embedding, for one window of text.

    from fastbp import walk
    found = walk("alice was")
    found                       # in a notebook: a page that steps through the stops
    print(found)                # in a terminal: every stop
    found.stops[3].shown.rows   # the size of each row of the gradient there

The numbers are the program's own, under the plan that is asked for; they are the same bits under every plan.
"""

from __future__ import annotations

import html
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from rich.text import Text

from fastbp.base.errors import InputError, NonFinite
from fastbp.check.seed_window import ALPHABET, TEXT, encode, seed_decoder
from fastbp.report.scores import Scores, scores_of
from fastbp.report.stops import Stop, stops_of
from fastbp.report.tied_table import TiedTable, tied_table
from fastbp.report.walk_json import stop_json, table_json
from fastbp.report.walk_lines import walk_lines
from fastbp.report.walk_page import walk_page
from fastbp.run.decoder import Decoder
from fastbp.run.recorded import record
from fastbp.train.snapshot import Snapshot

LONGEST = 128
"""Positions of a window that can still be looked at."""
FRAME_PIXELS = 760
"""The height of a notebook's frame around the page."""


@dataclass(frozen=True, eq=False, repr=False)
class Walk:
    """A window's pass: what was read, what came out, and every stop on the way back. `tokens` and `targets` are their
    texts, position by position; `scores` has an entry a block.
    """

    name: str
    decoder: Decoder
    tokens: tuple[str, ...]
    targets: tuple[str, ...]
    loss: float
    stops: tuple[Stop, ...]
    scores: tuple[Scores, ...]
    table: TiedTable

    def to_json(self, block: int | None = None, head: int = 0) -> dict[str, Any]:
        """The keys of `fastbp walk --json`: the stops of one block or all, with dS of one head. Raises InputError for
        a block or head that the decoder lacks.
        """
        decoder, config = self.decoder, self.decoder.config
        for what, value, count in (("block", block or 0, config.blocks), ("head", head, config.heads)):
            if not 0 <= value < count:
                raise InputError(f"--{what} {value}: the decoder has {count}, give one from 0 to {count - 1}")
        scores = {each.node: each for each in self.scores}
        stops = [stop for stop in self.stops if block is None or stop.block == block]
        return {
            "decoder": self.name,
            "tokens": list(self.tokens),
            "targets": list(self.targets),
            "loss": self.loss,
            "config": config.to_json(),
            "dtype": decoder.dtype,
            "backend": decoder.backend.name,
            "policy": decoder.plan.policy,
            "peak_bytes": decoder.peak_bytes_predicted,
            "actions": len(decoder.schedule.actions),
            "stops": [stop_json(stop, scores.get(stop.node), head) for stop in stops],
            "stops_in_all": len(self.stops),
            "table": table_json(self.table, len(set(decoder.tokens.ravel().tolist()))),
        }

    def __repr__(self) -> str:
        return f"<walk of {''.join([*self.tokens, self.targets[-1]])!r}: {len(self.stops)} stops, loss {self.loss:.4f}>"

    def __str__(self) -> str:
        return "\n".join(walk_lines(self.to_json()))

    def __rich__(self) -> Text:
        return Text(str(self))

    def _repr_html_(self) -> str:
        page = html.escape(walk_page(self.to_json()))
        return f'<iframe srcdoc="{page}" style="width: 100%; height: {FRAME_PIXELS}px; border: 0"></iframe>'


def walk(text: str = TEXT, *, snapshot: Snapshot | None = None, policy: str = "save_all", seed: int = 0) -> Walk:
    """The walk of a text's tokens, each with the next one as its target, through the seed's decoder with the weights of
    `seed` in float64, or through a snapshot's decoder as it was trained; there `seed` draws the masks of its dropout.
    Attention keeps its weights P, whatever it does in training. Raises InputError for a text with characters that have
    no id, or of too few or too many tokens.
    """
    ids = encode(text) if snapshot is None else snapshot.tokenizer.encode(text)
    longest = LONGEST if snapshot is None else min(LONGEST, snapshot.config.context)
    if not 2 <= len(ids) <= longest + 1:
        raise InputError(
            f"TEXT's length in tokens is {len(ids)}: give at least 2, one and its target, and at most {longest + 1}"
        )
    if snapshot is None:
        name, decoder = "seed", seed_decoder(seed=seed, text=text, policy=policy)
        written = [ALPHABET[i] for i in ids]
    else:
        name, decoder = f"snapshot of update {snapshot.update}", _restored(snapshot, len(ids) - 1, policy)
        decoder.tokens[0], decoder.targets[0] = ids[:-1], ids[1:]
        decoder.choose_masks(seed, snapshot.update)
        written = [snapshot.tokenizer.decode(ids[i : i + 1]) for i in range(len(ids))]
    return walk_through(decoder, name, tuple(written[:-1]), tuple(written[1:]))


def _restored(snapshot: Snapshot, context: int, policy: str) -> Decoder:
    """A snapshot's decoder for a window of `context` tokens: of learned positions the first are taken."""
    config = replace(snapshot.config, context=context, attention="materialised")
    decoder = Decoder(config, 1, policy=policy, dtype=snapshot.parameters["wte"].dtype.name)
    for name, values in decoder.parameters.items():
        values[:] = snapshot.parameters[name][: len(values)]
    return decoder


def walk_through(decoder: Decoder, name: str, tokens: tuple[str, ...], targets: tuple[str, ...]) -> Walk:
    """The walk of what a decoder's `tokens` and `targets` hold. Raises NonFinite where the loss or a gradient is not
    finite.
    """
    recorded = record(decoder)
    if not (math.isfinite(decoder.loss) and np.isfinite(decoder.gradients.flat).all()):
        raise NonFinite(f"the loss ({decoder.loss:g}) or a gradient is not finite: take an earlier snapshot")
    scores = tuple(
        scores_of(node, recorded, decoder.dropout_state) for node in decoder.graph.nodes if "attention" in node.op_name
    )
    return Walk(
        name, decoder, tokens, targets, decoder.loss, stops_of(decoder, recorded), scores, tied_table(decoder, recorded)
    )
