# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The lowest free offset for each buffer of a layout, one after another; a schedule in slices has thousands."""

import numpy as np

from libc.stdint cimport int64_t
from libc.string cimport memmove


def place(const int64_t[::1] order, const int64_t[::1] born, const int64_t[::1] dies, const int64_t[::1] sizes):
    """Offsets (n) int64. Buffers are placed in `order`, each at the lowest offset that none before it takes while both
    are live in [born, dies).
    """
    cdef Py_ssize_t count = order.shape[0], n, i, j, k, at
    offsets = np.zeros(count, np.int64)
    by_offset = np.zeros(max(count, 1), np.int64)
    cdef int64_t[::1] offset = offsets, placed = by_offset
    cdef int64_t reach
    for n in range(count):
        i = order[n]
        reach = 0
        for k in range(n):
            j = placed[k]
            if born[j] < dies[i] and born[i] < dies[j]:
                if offset[j] >= reach + sizes[i]:
                    break
                if offset[j] + sizes[j] > reach:
                    reach = offset[j] + sizes[j]
        offset[i] = reach
        at = n
        while at > 0 and offset[placed[at - 1]] > reach:
            at -= 1
        memmove(&placed[at] + 1, &placed[at], (n - at) * sizeof(int64_t))
        placed[at] = i
    return offsets
