"""Whether what is brought back is what was dropped, bit by bit: forward and backward run once, an instruction at a
time, and every row of an activation is hashed when it is written. A row that is written again must have the hash that
it had the first time.

Rows, not tensors, since backward brings back slices that need not be those of forward. A row is a step of the dimension
along which the tensor's op is independent: a token, or a sequence where attention is. Between two writes a buffer may
hold anything, so a hash is taken right behind the write. The instructions run unfused, each as the team would cut it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from fastbp.run.decoder import Decoder
from fastbp.run.instruction import Instruction
from fastbp.schedule.actions import Forward
from fastbp.schedule.effects import Effects

DIGEST_BYTES = 16


@dataclass(frozen=True)
class Difference:
    """The first tensor that came back otherwise: the op that wrote it and its first rows that differ, [start, stop) in
    tokens.
    """

    tensor: str
    op: str
    rows: tuple[int, int]


@dataclass(frozen=True)
class Audit:
    """Tensors that were brought back, their bytes that were compared, and the first difference, where the audit ends.

    A tensor that comes back more than once is one tensor; its bytes count each time.
    """

    tensors: int
    nbytes: int
    difference: Difference | None

    def to_json(self) -> dict[str, Any]:
        return {
            "tensors": self.tensors,
            "bytes": self.nbytes,
            "difference": asdict(self.difference) if self.difference else None,
        }


def audit(decoder: Decoder) -> Audit:
    """Runs forward and backward of `decoder.tokens` under watch, in this thread, and clears the gradients."""
    auditor = Auditor(decoder)
    decoder.runner.run_watched(decoder.gradients_program, auditor.watch)
    decoder.zero_gradients()
    return Audit(len(auditor.compared), auditor.nbytes, auditor.difference)


class Auditor:
    """Hears of every instruction of one run, in order."""

    def __init__(self, decoder: Decoder) -> None:
        self.schedule = decoder.schedule
        self._effects = Effects(decoder.graph)
        # An op of several phases has written all only behind its last.
        self._last = {instruction.tick: instruction for instruction in decoder.gradients_program.instructions}
        self._digests: dict[str, dict[int, bytes]] = {}
        self.compared: set[str] = set()
        self.nbytes = 0
        self.difference: Difference | None = None

    def watch(self, instruction: Instruction) -> bool:
        """Hashes what the instruction wrote; False once something differs."""
        action = self.schedule.actions[instruction.tick]
        if isinstance(action, Forward) and self._last[instruction.tick] is instruction:
            graph = self.schedule.graph
            start, stop = self._effects.token_rows(action) or (0, graph.tokens)
            tokens = graph.tokens_per_unit(graph.by_name[action.node])
            for name, array in instruction.outputs:
                activation = name in graph.tensors and graph.tensors[name].kind == "activation"
                if activation and self.difference is None:
                    digests = _digests(array, (stop - start) // tokens)
                    self._compare(instruction, name, start // tokens, digests, tokens, array.nbytes)
        return self.difference is None

    def _compare(
        self, instruction: Instruction, name: str, first: int, digests: list[bytes], tokens: int, nbytes: int
    ) -> None:
        """Remembers hashes of rows that are new, and compares the others."""
        known = self._digests.setdefault(name, {})
        again = [i for i in range(len(digests)) if first + i in known]
        differing = [i for i in again if known[first + i] != digests[i]]
        known.update({first + i: digest for i, digest in enumerate(digests)})
        if again:
            self.compared.add(name)
            self.nbytes += nbytes * len(again) // len(digests)
        if differing:
            end = next(i for i in range(differing[0], len(digests) + 1) if i not in differing)
            rows = ((first + differing[0]) * tokens, (first + end) * tokens)
            self.difference = Difference(name, f"{instruction.op} ({instruction.node})", rows)


def _digests(array: np.ndarray, rows: int) -> list[bytes]:
    """A hash for each of so many equal parts of a contiguous array."""
    return [blake2b(row.data, digest_size=DIGEST_BYTES).digest() for row in array.reshape(rows, -1)]
