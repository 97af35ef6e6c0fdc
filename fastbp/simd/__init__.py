"""Generators of vector code for Numba, and the little that every Numba kernel needs to read its arguments."""
