"""Sizes, durations and counts, as people write and read them."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from fastbp.base.errors import InputError

_SIZE = re.compile(r"\s*(\d{1,19}(?:\.\d{0,19})?)\s*([A-Za-z]*)\s*", re.ASCII)
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL = ("kB", "MB", "GB", "TB", "PB")
_FACTORS = (
    {"": 1}
    | {unit.lower(): 1024**power for power, unit in enumerate(_BINARY)}
    | {unit.lower(): 1000**power for power, unit in enumerate(_DECIMAL, start=1)}
)
_LARGEST_BYTES = 2**63 - 1


def parse_bytes(text: str) -> int:
    """Return the number of bytes that `text` names: "64MiB", "1.5 GiB", "2 GB", "800000".

    KiB, MiB, GiB, TiB and PiB are powers of 1024, kB, MB, GB, TB and PB powers of 1000, and a
    number alone is bytes; upper and lower case do not matter. A fraction of a byte is dropped,
    so a limit is never exceeded; without a unit the number has to be whole.

    Raises InputError for anything else: a sign, an exponent, a unit such as "M" that two people
    read in two ways, or more than 2**63 - 1 bytes.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise InputError(f"size {text!r} is not a number with a unit; write 64MiB or 1.5 GiB")
    number, unit = match.groups()
    factor = _FACTORS.get(unit.lower())
    if factor is None:
        raise InputError(
            f"size {text!r} has the unknown unit {unit!r}; use one of "
            f"{', '.join(_BINARY + _DECIMAL)}, or none for bytes"
        )
    size = Fraction(number) * factor
    if factor == 1 and size.denominator != 1:
        raise InputError(f"size {text!r} is not a whole number of bytes; write 64MiB or 1.5 GiB")
    if size > _LARGEST_BYTES:
        raise InputError(f"size {text!r} is over the largest possible, {_LARGEST_BYTES} bytes")
    return int(size)


def format_bytes(size_bytes: int) -> str:
    """Return the size with one decimal in the largest fitting unit: "1.5 GiB"; "812 B" exactly."""
    size, power = abs(size_bytes), 0
    # 1023.95 would be printed as 1024.0, which the next unit says better.
    while power < len(_BINARY) - 1 and size >= (1023.95 if power else 1024) * 1024**power:
        power += 1
    sign = "-" if size_bytes < 0 else ""
    return f"{sign}{size} B" if power == 0 else f"{sign}{size / 1024**power:.1f} {_BINARY[power]}"


def exact_bytes(size_bytes: int) -> str:
    """The size as `parse_bytes` reads it back to the byte: "64MiB", or "800000" where no unit divides it."""
    for power in range(len(_BINARY) - 1, 0, -1):
        if size_bytes and size_bytes % 1024**power == 0:
            return f"{size_bytes // 1024**power}{_BINARY[power]}"
    return str(size_bytes)


def format_seconds(seconds: float) -> str:
    """Return a duration: "12.3 us", "4.56 ms", "7.89 s", "2 min 05 s", "1 h 02 min", "3 d 04 h".

    ASCII only, so that it prints in every locale. NaN and infinity give "unknown".
    """
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 0:
        return f"-{format_seconds(-seconds)}"
    if seconds < 59.995:
        return _format_below_a_minute(seconds)
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24:02d} h"


def _format_below_a_minute(seconds: float) -> str:
    if seconds >= 0.9995:
        return f"{seconds:.2f} s"
    if seconds >= 0.9995e-3:
        return f"{_three_digits(seconds * 1e3)} ms"
    return f"{_three_digits(seconds * 1e6)} us"


def format_count(count: float) -> str:
    """Return a count: "5,376" in full below a million, then "124.4 M", "3.1 G", "2.0 T".

    A fraction is rounded to the nearest whole; NaN and infinity give "unknown".
    """
    if not math.isfinite(count):
        return "unknown"
    if abs(count) < 999_999.5:
        return f"{round(count):,}"
    for unit, factor in (("M", 1e6), ("G", 1e9)):
        if abs(count) < 999.95 * factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count / 1e12:,.1f} T"


def _three_digits(value: float) -> str:
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}"
