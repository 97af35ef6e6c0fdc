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
from fastbp.schedule.local import Rows

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
        self._digests: dict[str, np.ndarray] = {}
        self._written: dict[str, np.ndarray] = {}
        self.compared: set[str] = set()
        self.nbytes = 0
        self.difference: Difference | None = None

    def watch(self, instruction: Instruction) -> bool:
        """Hashes what the instruction wrote; False once something differs."""
        action = self.schedule.actions[instruction.tick]
        if isinstance(action, Forward) and self._last[instruction.tick] is instruction:
            graph = self.schedule.graph
            rows = self._effects.token_rows(action) or (0, graph.tokens)
            tokens = graph.tokens_per_unit(graph.by_name[action.node])
            for name, array in instruction.outputs:
                activation = name in graph.tensors and graph.tensors[name].kind == "activation"
                if activation and self.difference is None:
                    self._hear(instruction, name, array, rows, tokens)
        return self.difference is None

    def _hear(self, instruction: Instruction, name: str, array: np.ndarray, rows: Rows, tokens: int) -> None:
        """Remembers the hashes of rows of `tokens` tokens that are new, and compares those that are not: a slice is
        either.
        """
        if name not in self._digests:
            count = self.schedule.graph.tokens // tokens
            self._digests[name] = np.zeros((count, DIGEST_BYTES), np.uint8)
            self._written[name] = np.zeros(count, bool)
        own = slice(rows[0] // tokens, rows[1] // tokens)
        digests = _digests(array, own.stop - own.start)
        if not self._written[name][own].all():
            self._digests[name][own], self._written[name][own] = digests, True
            return
        self.compared.add(name)
        self.nbytes += array.nbytes
        same = (self._digests[name][own] == digests).all(axis=1)
        if not same.all():
            begin = int(np.argmin(same))
            length = int(np.argmax(np.append(same[begin:], True)))
            start = rows[0] + begin * tokens
            op = f"{instruction.op} ({instruction.node})"
            self.difference = Difference(name, op, (start, start + length * tokens))


def _digests(array: np.ndarray, rows: int) -> np.ndarray:
    """A hash for each of so many equal parts of a contiguous array: (rows, DIGEST_BYTES) bytes."""
    parts = (blake2b(row.data, digest_size=DIGEST_BYTES).digest() for row in array.reshape(rows, -1))
    return np.frombuffer(b"".join(parts), np.uint8).reshape(rows, DIGEST_BYTES)
