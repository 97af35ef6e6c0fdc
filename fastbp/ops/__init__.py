"""The ops: one file each, with the maths, the NumPy definition, the Numba kernels and the declaration."""
