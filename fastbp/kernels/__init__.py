"""The ops' Numba kernels, one file an op; imported when Numba is asked for one."""
