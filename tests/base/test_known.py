"""The table that fills itself."""

from __future__ import annotations

from fastbp.base.known import Known


def test_what_is_known_is_worked_out_once() -> None:
    asked: list[int] = []

    def square(number: int) -> int:
        asked.append(number)
        return number * number

    squares = Known(square)
    assert [squares[3], squares[4], squares[3]] == [9, 16, 9]
    assert asked == [3, 4]
    assert dict(squares) == {3: 9, 4: 16}
