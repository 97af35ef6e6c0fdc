"""Exit codes, one-line messages and suggestions."""

from __future__ import annotations

import pytest

from fastbp.base.errors import (
    CheckFailed,
    DoesNotFit,
    FastbpError,
    InputError,
    NonFinite,
    Stopped,
    nearest,
)


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [(CheckFailed, 1), (NonFinite, 1), (InputError, 2), (DoesNotFit, 3)],
)
def test_each_class_has_the_exit_code_of_the_contract(error: type[FastbpError], exit_code: int) -> None:
    assert error("x").exit_code == exit_code
    assert issubclass(error, FastbpError)


@pytest.mark.parametrize("exit_code", [130, 143])
def test_stopped_carries_the_exit_code_of_its_signal(exit_code: int) -> None:
    stopped = Stopped("stopped; state saved", exit_code)
    assert stopped.exit_code == exit_code
    assert str(stopped) == "stopped; state saved"


def test_a_message_stays_on_one_line() -> None:
    message = str(InputError("file 'a\nb\r\nc\u2028d' is empty"))
    assert message == "file 'a\\nb\\nc\\nd' is empty"


@pytest.mark.parametrize(
    ("word", "suggestion"),
    [
        ("ful", " (did you mean 'full'?)"),
        ("SAVE-ALL", " (did you mean 'save_all'?)"),
        ("sqr", " (did you mean 'sqrt'?)"),
        ("zebra", ""),
        ("", ""),
    ],
)
def test_nearest(word: str, suggestion: str) -> None:
    assert nearest(word, ("full", "sqrt", "save_all")) == suggestion


def test_nearest_returns_the_choice_as_it_is_spelled() -> None:
    assert nearest("gpt2", ("GPT2",)) == " (did you mean 'GPT2'?)"
