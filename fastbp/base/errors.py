"""The errors that fastbp raises: one class an exit code, one line a message.

A message names the thing, its value, the limit and the way out. The command line prints it to
standard error and leaves with `exit_code`; a traceback means a defect of fastbp itself.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FastbpError(Exception):
    """Anything that fastbp can explain to its user.

    The message is kept to one line whatever it quotes (a file name may hold line ends).
    """

    exit_code: int = 1

    def __init__(self, message: str) -> None:
        super().__init__("\\n".join(message.splitlines()))


class CheckFailed(FastbpError):
    """A comparison came out wrong: this build computes something it should not."""

    exit_code = 1


class NonFinite(FastbpError):
    """A loss, gradient or weight became NaN or infinite."""

    exit_code = 1


class InputError(FastbpError):
    """An option, a file or an argument that cannot be used as it is."""

    exit_code = 2


class DoesNotFit(FastbpError):
    """The work needs more memory than the machine or the budget has."""

    exit_code = 3


class Stopped(FastbpError):
    """A signal ended the work cleanly; `exit_code` is 128 + signal (130 or 143)."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def nearest(word: str, choices: Iterable[str]) -> str:
    """Return " (did you mean 'full'?)" for the choice most like `word`, or "" when none is near.

    Upper and lower case count as equal. The leading space lets the result follow any message.
    """
    by_lower = {choice.lower(): choice for choice in choices}
    matches = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return f" (did you mean {by_lower[matches[0]]!r}?)" if matches else ""
