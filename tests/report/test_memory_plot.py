"""The picture of a profile shows its bytes, its stages, its peak and its budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Annotation

from fastbp.graph.config import DecoderConfig
from fastbp.report.colours import CATEGORIES
from fastbp.report.memory_plot import COLUMNS, drawn_ticks, memory_over_ticks
from fastbp.report.profile import ledger
from fastbp.run.decoder import Decoder
from fastbp.train.resident_update import judged

MIB = 1 << 20


def profile_of(policy: str, rss: dict[str, Any] | None = None) -> dict[str, Any]:
    decoder = Decoder(DecoderConfig(4, 32, 2, 128, 16, 64), 4, policy=policy, backend="cython", workers=1)
    return {"title": "tiny: batch 4", **ledger(decoder), "rss": rss}


@pytest.mark.parametrize("policy", ["save_all", "full", "optimal(200KiB)"])
def test_areas_peak_stages_and_budget(policy: str, tmp_path: Path, figures: list[Figure]) -> None:
    profile = profile_of(policy)
    memory_over_ticks(profile, tmp_path / "memory.png")
    assert imread(tmp_path / "memory.png").std() > 0.05
    (axes,) = figures[0].axes
    assert axes.get_title() == f"tiny: batch 4, {policy}"
    highest = max(path.vertices[:, 1].max() for area in axes.collections for path in area.get_paths())
    peak = sum(row["bytes"] for row in profile["peak"]["live"])
    assert highest == pytest.approx(peak / MIB)
    (note,) = [child for child in axes.get_children() if isinstance(child, Annotation)]
    assert note.xy == (profile["peak"]["tick"] + 0.5, pytest.approx(peak / MIB))
    assert f"({profile['peak']['bytes']} bytes)" in note.get_text()
    assert profile["peak"]["action"] in note.get_text()
    colours = {to_hex(area.get_facecolor()[0]) for area in axes.collections}
    used = {CATEGORIES[name] for name, column in profile["timeline"]["live_bytes"].items() if any(column)}
    assert colours == used
    words = [text.get_text() for text in axes.get_legend().get_texts()]
    assert ("recompute" in words) == (policy != "save_all")
    assert {"forward", "backward", "kept", "gradients"} <= set(words)
    lines = [line for line in axes.get_lines() if line.get_linestyle() == "--"]
    assert [line.get_ydata()[0] * MIB for line in lines] == ([200 << 10] if policy.startswith("optimal") else [])
    (strip,) = axes.get_images()
    assert strip.get_array().shape == (1, len(profile["timeline"]["actions"]), 3)


def test_the_legend_and_the_note_are_whole(tmp_path: Path) -> None:
    memory_over_ticks(profile_of("full"), tmp_path / "memory.png")
    image = imread(tmp_path / "memory.png")[:, :, :3]
    for edge in (image[:4], image[-4:], image[:, :4], image[:, -4:]):
        assert (edge == 1).all()


def test_resident_memory_has_a_panel_beneath(tmp_path: Path, figures: list[Figure]) -> None:
    profile = profile_of("save_all")
    parts = {"interpreter, libraries, kernels": 40 * MIB, "activations": profile["peak"]["bytes"]}
    line = {"ticks": [0.0, 5.5, 20.0], "bytes": [40 * MIB, 41 * MIB, 42 * MIB]}
    profile["rss"] = judged(parts, 42 * MIB) | {"line": line}
    memory_over_ticks(profile, tmp_path / "memory.png")
    _, below = figures[0].axes
    assert below.get_ylim()[1] > 42
    drawn = next(found for found in below.get_lines() if found.get_label() == "resident (RSS)")
    assert list(drawn.get_ydata()) == [40, 41, 42]
    assert list(drawn.get_xdata()) == line["ticks"]


def test_of_many_ticks_the_highest_are_drawn() -> None:
    ticks = 7 * COLUMNS + 5
    live = np.arange(ticks) % 1000
    live[4321] = 10**6
    timeline = {"actions": [""] * ticks, "live_bytes": {"kept": live.tolist(), "logits": [0] * ticks}}
    drawn, columns = drawn_ticks(timeline)
    assert len(drawn) == COLUMNS
    assert list(columns) == ["kept"]
    assert 4321 in drawn
    assert columns["kept"].max() == 10**6 / MIB
    assert (np.diff(drawn) > 0).all()
