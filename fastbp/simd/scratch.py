"""What a block of a product may hold, and the scratch that is made for it: the same on every machine."""

from __future__ import annotations

DEPTH = 384
"""Terms of a product that are packed at a time: a panel of 384 × 48 float32 is 72 KiB and stays in L2."""
ROWS = 128
"""Rows of A that one block of packed panels meets before the next rows do: 192 KiB in L2."""
PANELS = 12
"""Panels of a block; with 576 columns of float32 it takes 864 KiB at full depth."""


def panel_elements(depth: int, columns: int, rows: int, by_columns: bool = False) -> int:
    """Elements of scratch that one worker needs for a product of A (`rows` × `depth`) and B (`depth` × `columns`).

    A block of B's panels, or one where a single block of rows meets them; a tile for the columns that do not fill a
    vector; and where A lies `by_columns`, a copy of a block of its rows. The bound holds for every target and both
    dtypes, so that a plan's bytes do not depend on the machine.
    """
    panel, tallest, line = 48, 8, 16
    widest = panel if rows <= ROWS else panel * PANELS
    deepest = min(depth, DEPTH)
    packed = deepest * min(-(-columns // line) * line, widest) + tallest * panel
    copied = (min(rows, ROWS) + tallest) * deepest + (ROWS // 4) * line if by_columns else 0
    return packed + copied
