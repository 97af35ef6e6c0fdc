"""Sizes are read and written exactly; durations and counts switch units at the right place."""

from __future__ import annotations

import math

import pytest

from fastbp.base.errors import InputError
from fastbp.base.units import format_bytes, format_count, format_seconds, parse_bytes


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("800000", 800_000),
        ("0", 0),
        ("64MiB", 64 * 1024**2),
        ("1.5 GiB", 3 * 1024**3 // 2),
        ("  2 kib ", 2048),
        ("7B", 7),
        ("2 kB", 2000),
        ("3MB", 3_000_000),
        ("1.GiB", 1024**3),
        ("1.3 GiB", 1_395_864_371),  # 1,395,864,371.2: a limit is rounded down
        ("0.1 KiB", 102),
        ("9223372036854775807", 2**63 - 1),  # no detour through a float
    ],
)
def test_parse_bytes(text: str, size_bytes: int) -> None:
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "MiB", "-1", "+1", "1e9", "1,000", "1_000", "1.5", "0.5B", "64M", "64Mi"),
        *("64 bits", "nan", "inf", "1 2", "1..2", "\u0663", "1MiB\n2", "9000 PiB"),
        *("9223372036854775808", "1" * 5000),
    ],
)
def test_parse_bytes_refuses_and_quotes_what_it_was_given(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_bytes(text)
    assert repr(text) in str(caught.value)


def test_parse_bytes_lists_the_units() -> None:
    with pytest.raises(InputError, match=r"unknown unit 'M'; use one of B, KiB, MiB, GiB.* GB"):
        parse_bytes("64M")


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3 * 1024**3 // 2, "1.5 GiB"),
        (64 * 1024**2, "64.0 MiB"),
        (1024**2 - 1, "1.0 MiB"),  # not "1024.0 KiB"
        (-2048, "-2.0 KiB"),
        (5000 * 1024**5, "5000.0 PiB"),
    ],
)
def test_format_bytes(size_bytes: int, text: str) -> None:
    assert format_bytes(size_bytes) == text


@pytest.mark.parametrize("power", range(51))
def test_a_formatted_power_of_two_is_read_back(power: int) -> None:
    assert parse_bytes(format_bytes(2**power)) == 2**power


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.00 us"),
        (12.34e-6, "12.3 us"),
        (0.9994e-3, "999 us"),
        (0.9996e-3, "1.00 ms"),
        (4.561e-3, "4.56 ms"),
        (0.2345, "234 ms"),
        (0.9996, "1.00 s"),
        (7.891, "7.89 s"),
        (59.99, "59.99 s"),
        (59.999, "1 min 00 s"),
        (125.0, "2 min 05 s"),
        (3599.6, "1 h 00 min"),
        (3720.0, "1 h 02 min"),
        (86_399.0, "1 d 00 h"),
        (3 * 86_400 + 4 * 3600.0, "3 d 04 h"),
        (-7.891, "-7.89 s"),
        (math.nan, "unknown"),
        (math.inf, "unknown"),
    ],
)
def test_format_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
    assert text.isascii()


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (5376, "5,376"),
        (41_234.6, "41,235"),
        (999_999, "999,999"),
        (999_999.6, "1.0 M"),
        (124_439_808, "124.4 M"),
        (999_960_000, "1.0 G"),
        (3.14e9, "3.1 G"),
        (2e12, "2.0 T"),
        (5e15, "5,000.0 T"),
        (-5376, "-5,376"),
        (math.nan, "unknown"),
    ],
)
def test_format_count(count: float, text: str) -> None:
    assert format_count(count) == text
