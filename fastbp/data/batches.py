"""Windows of context + 1 tokens, cut from a row of token ids: inputs and, one on, their targets.

Nothing here has a history. A training batch is a function of (seed, update, micro-batch) and the
evaluation windows are fixed, so stopping, resuming or evaluating more often changes no batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from fastbp.base.errors import InputError
from fastbp.base.rng import Streams
from fastbp.data.tokenizer import Ids

Starts = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Split:
    """The tokens to train on and those to evaluate on; both are views of the whole.

    shared: the text was too short for two parts, so both are the whole text and the validation
    loss says nothing about unseen text. Say so where it is shown.
    """

    train: Ids
    valid: Ids
    shared: bool


def split(tokens: Ids, context: int, valid_fraction: float = 0.1, name: str = "the text") -> Split:
    """Cut `tokens` by position: the last `valid_fraction` (rounded) is for validation.

    A part needs context + 1 tokens to hold one window. The cut moves as little as it must to give
    both parts that many; a text that is too short for two parts but not for one is shared.

    Raises InputError for fewer than context + 1 tokens or a fraction outside (0, 1).
    """
    if not 0.0 < valid_fraction < 1.0:
        raise InputError(f"validation fraction {valid_fraction} is not between 0 and 1; try 0.1")
    _require_window(tokens, context, name)
    need, total = context + 1, tokens.size
    if total < 2 * need:
        return Split(tokens, tokens, shared=True)
    valid_tokens = min(max(round(total * valid_fraction), need), total - need)
    return Split(tokens[:-valid_tokens], tokens[-valid_tokens:], shared=False)


class Batches:
    """Training batches of B windows, each at a start drawn uniformly among all legal ones.

    Every token but the first is the target of some window: there are len(tokens) - context legal
    starts, and no remainder is cut off.

    Raises InputError for fewer than context + 1 tokens, sizes below 1 or an illegal seed.
    """

    def __init__(self, tokens: Ids, batch: int, context: int, seed: int, name: str = "the training part") -> None:
        self.batch = _require_positive("batch", batch)
        self.context = context
        self._streams = Streams(seed, "batches")
        self._windows = _windows(tokens, context, name)

    def fill(self, update: int, micro: int, inputs: Ids, targets: Ids) -> None:
        """Write the batch of (seed, update, micro) to `inputs` and `targets`, (B, T) int32 each."""
        starts = self._streams.at(update, micro).integers(0, len(self._windows), size=self.batch)
        _copy(self._windows, starts, inputs, targets)


class EvaluationWindows:
    """At most `windows` windows at fixed starts, evenly spaced from the first token to the last.

    No token is a target twice, so there are at most (len(tokens) - 1) // context windows. With n
    windows, window i starts at floor(i · (len(tokens) - 1 - context) / (n - 1)). Tokens between two
    windows are left out: at most context - 1 in all when `windows` does not limit n; the last
    token is always a target when n > 1.

    windows: how many there are. batches: how many batches of B they make; the last may be part
    empty. target_tokens: how many tokens are predicted in all, windows · context.

    Raises InputError for fewer than context + 1 tokens or sizes below 1.
    """

    def __init__(
        self,
        tokens: Ids,
        batch: int,
        context: int,
        windows: int,
        name: str = "the validation part",
    ) -> None:
        self.batch = _require_positive("batch", batch)
        self.context = context
        wanted = _require_positive("evaluation windows", windows)
        self._windows = _windows(tokens, context, name)
        self.windows = min(wanted, (tokens.size - 1) // context)
        self.batches = -(-self.windows // batch)
        self.target_tokens = self.windows * context
        last = len(self._windows) - 1
        self._starts = np.arange(self.windows, dtype=np.int64) * last // max(self.windows - 1, 1)

    def fill(self, k: int, inputs: Ids, targets: Ids) -> int:
        """Write batch k to `inputs` and `targets`, (B, T) int32; return how many rows are real.

        The rows after those repeat window 0: legal ids, for the caller to ignore. Raises
        IndexError for k outside [0, batches).
        """
        if not 0 <= k < self.batches:
            raise IndexError(f"evaluation batch {k} of {self.batches}")
        real = self._starts[k * self.batch : (k + 1) * self.batch]
        starts = np.zeros(self.batch, dtype=np.int64)
        starts[: real.size] = real
        _copy(self._windows, starts, inputs, targets)
        return real.size


def _copy(windows: Ids, starts: Starts, inputs: Ids, targets: Ids) -> None:
    """Write windows (B, T + 1) at `starts`: inputs are tokens 0 to T - 1, targets 1 to T."""
    shape = (starts.size, windows.shape[1] - 1)
    if inputs.shape != shape or targets.shape != shape:
        # Assignment would broadcast, and leave a batch of copies of one row.
        raise ValueError(f"inputs {inputs.shape} and targets {targets.shape} are not {shape}")
    rows = windows[starts]
    inputs[:] = rows[:, :-1]
    targets[:] = rows[:, 1:]


def _windows(tokens: Ids, context: int, name: str) -> Ids:
    """Return the view (len(tokens) - context, context + 1) of all windows; it copies nothing."""
    _require_window(tokens, context, name)
    return sliding_window_view(tokens, context + 1)


def _require_window(tokens: Ids, context: int, name: str) -> None:
    _require_positive("context", context)
    if tokens.ndim != 1:
        raise InputError(f"{name}: tokens of shape {tokens.shape}; give one row of ids")
    if tokens.size > context:
        return
    shorter = f"--context {tokens.size - 1} or less, or " if tokens.size > 1 else ""
    raise InputError(
        f"{name} holds {tokens.size} tokens, but context {context} needs at least {context + 1} "
        f"(context + 1); use {shorter}a longer text"
    )


def _require_positive(what: str, value: int) -> int:
    if value < 1:
        raise InputError(f"{what} {value} is below 1; give at least 1")
    return value
