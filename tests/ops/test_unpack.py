"""bfloat16 to float32: all 65,536 of them exactly, and any length."""

from __future__ import annotations

import numpy as np
import pytest
from samples import BACKENDS
from test_pack import SIZES, converted

ALL = np.arange(1 << 16, dtype=np.uint16)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_bfloat16_is_the_float_with_its_bits_in_front(backend: str) -> None:
    assert np.array_equal(converted("unpack", ALL, backend).view(np.uint32), ALL.astype(np.uint32) << 16)


@pytest.mark.parametrize("backend", BACKENDS)
def test_packed_again_it_is_the_same(backend: str) -> None:
    """A quiet NaN too; a signalling one becomes quiet."""
    again = converted("pack", converted("unpack", ALL, backend), backend)
    signalling = np.isnan(converted("unpack", ALL, "numpy")) & (ALL & 0x40 == 0)
    assert np.array_equal(again, np.where(signalling, ALL | 0x40, ALL))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("size", SIZES)
def test_any_length_and_workers_give_the_same_bits(size: int, workers: int, backend: str) -> None:
    bits = ALL[12345 : 12345 + size]
    assert converted("unpack", bits, backend, workers).tobytes() == (bits.astype(np.uint32) << 16).tobytes()
