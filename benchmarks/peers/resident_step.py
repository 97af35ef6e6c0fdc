"""The resident memory that an update adds at its peak, as the system counts it; Linux with glibc alone can say."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from fastbp.run.resident import forget_rss_peak, give_back, rss_peak_bytes


def step_rss_bytes(update: Callable[[], object], idle: Iterable[np.ndarray]) -> int | None:
    """Bytes that `update` adds, once what is free has gone back to the system, and with it the pages of `idle`, arrays
    whose contents nobody needs. None where the system does not tell.
    """
    if not (all(map(give_back, idle)) and forget_rss_peak()):
        return None
    before = rss_peak_bytes()
    update()
    return rss_peak_bytes() - before
