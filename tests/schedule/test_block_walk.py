"""Blocks in slices: golden schedules in the words of test_schedule.py, and cheats that simulate refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.graph.graph import Graph
from fastbp.schedule.actions import Action, Free, written
from fastbp.schedule.plan import Plan, Slices
from fastbp.schedule.schedule import Schedule, evaluation_schedule, training_schedule
from fastbp.schedule.simulate import IllegalSchedule, simulate
from tests.schedule.test_schedule import words


def graph(blocks: int, batch: int) -> Graph:
    return decoder_graph(DecoderConfig(blocks, 16, 2, 64, 4, 16), batch, workers=0)


INPUT = frozenset({"blocks.0.x", "final.x"})
ATTENTION = frozenset({"blocks.0.qkv", "blocks.0.o", "blocks.0.lse"})

SEQUENCE_BY_SEQUENCE = """
F0.x F0.ln1[0:4] F0.qkv[0:4] F0.o[0:1] F0.proj[0:4] F0.mid[0:4] F0.ln2[0:4] F0.u[0:4] F0.g[0:4] F0.z[0:4]
Ffinal.x[0:4] F0.ln1[4:8] F0.qkv[4:8] F0.o[1:2] F0.proj[4:8] F0.mid[4:8] F0.ln2[4:8] F0.u[4:8] F0.g[4:8] F0.z[4:8]
Ffinal.x[4:8] Ffinal.ln Blosses Bfinal.ln R0.ln1[0:4] R0.qkv[0:4] R0.o[0:1] R0.proj[0:4] R0.mid[0:4] R0.ln2[0:4]
R0.u[0:4] R0.g[0:4] B0.z[0:4] B0.g[0:4] B0.u[0:4] B0.ln2[0:4] +d:final.x[0:4] B0.proj[0:4] B0.o[0:1] R0.ln1[0:4]
B0.qkv[0:4] B0.ln1[0:4] +d:final.x[0:4] R0.ln1[4:8] R0.qkv[4:8] R0.o[1:2] R0.proj[4:8] R0.mid[4:8] R0.ln2[4:8]
R0.u[4:8] R0.g[4:8] B0.z[4:8] B0.g[4:8] B0.u[4:8] B0.ln2[4:8] +d:final.x[4:8] B0.proj[4:8] B0.o[1:2] R0.ln1[4:8]
B0.qkv[4:8] B0.ln1[4:8] +d:final.x[4:8] B0.x
"""
ROWS_WITH_FREES = """
F0.x F0.ln1[0:4] -0.ln1.mean[0:4] -0.ln1.rstd[0:4] F0.qkv[0:4] -0.ln1[0:4] F0.ln1[4:8] -0.ln1.mean[4:8]
-0.ln1.rstd[4:8] F0.qkv[4:8] -0.ln1[4:8] F0.o F0.proj[0:4] F0.mid[0:4](0.mid[0:4]<0.proj[0:4]) F0.ln2[0:4]
-0.ln2.mean[0:4] -0.ln2.rstd[0:4] F0.u[0:4] -0.ln2[0:4] F0.g[0:4](0.g[0:4]<0.u[0:4]) F0.z[0:4] -0.g[0:4]
Ffinal.x[0:4] -0.mid[0:4] -0.z[0:4] F0.proj[4:8] F0.mid[4:8](0.mid[4:8]<0.proj[4:8]) F0.ln2[4:8] -0.ln2.mean[4:8]
-0.ln2.rstd[4:8] F0.u[4:8] -0.ln2[4:8] F0.g[4:8](0.g[4:8]<0.u[4:8]) F0.z[4:8] -0.g[4:8] Ffinal.x[4:8] -0.mid[4:8]
-0.z[4:8] Ffinal.ln[0:4] Blosses[0:4] -final.ln[0:4] Bfinal.ln[0:4] -d:final.ln[0:4] -final.mean[0:4]
-final.rstd[0:4] Ffinal.ln[4:8] Blosses[4:8] -final.ln[4:8] Bfinal.ln[4:8] -d:final.ln[4:8] -final.x
-final.mean[4:8] -final.rstd[4:8] R0.proj[0:4] R0.mid[0:4](0.mid[0:4]<0.proj[0:4]) R0.ln2[0:4] R0.u[0:4] R0.g[0:4]
B0.z[0:4] -0.g[0:4] B0.g[0:4](d:0.u[0:4]<d:0.g[0:4]) -0.u[0:4] B0.u[0:4] -d:0.u[0:4] -0.ln2[0:4] B0.ln2[0:4]
-d:0.ln2[0:4] -0.mid[0:4] -0.ln2.mean[0:4] -0.ln2.rstd[0:4] +d:final.x[0:4] -d:0.mid+0.ln2[0:4] B0.proj[0:4]
R0.proj[4:8] R0.mid[4:8](0.mid[4:8]<0.proj[4:8]) R0.ln2[4:8] R0.u[4:8] R0.g[4:8] B0.z[4:8] -0.g[4:8]
B0.g[4:8](d:0.u[4:8]<d:0.g[4:8]) -0.u[4:8] B0.u[4:8] -d:0.u[4:8] -0.ln2[4:8] B0.ln2[4:8] -d:0.ln2[4:8] -0.mid[4:8]
-0.ln2.mean[4:8] -0.ln2.rstd[4:8] +d:final.x[4:8] -d:0.mid+0.ln2[4:8] B0.proj[4:8] B0.o -d:0.o -0.qkv -0.o -0.lse
R0.ln1[0:4] B0.qkv[0:4] -0.ln1[0:4] B0.ln1[0:4] -d:0.ln1[0:4] -0.ln1.mean[0:4] -0.ln1.rstd[0:4] +d:final.x[0:4]
-d:0.x+0.ln1[0:4] R0.ln1[4:8] B0.qkv[4:8] -d:0.qkv -0.ln1[4:8] B0.ln1[4:8] -d:0.ln1[4:8] -0.x -0.ln1.mean[4:8]
-0.ln1.rstd[4:8] +d:final.x[4:8] -d:0.x+0.ln1[4:8] B0.x -d:final.x
"""
EVALUATION = """
F0.x F0.ln1[0:4] F0.qkv[0:4] F0.o[0:1] F0.proj[0:4] F0.mid[0:4] F0.ln2[0:4] F0.u[0:4] F0.g[0:4] F0.z[0:4]
Ffinal.x[0:4] F0.ln1[4:8] F0.qkv[4:8] F0.o[1:2] F0.proj[4:8] F0.mid[4:8] F0.ln2[4:8] F0.u[4:8] F0.g[4:8] F0.z[4:8]
Ffinal.x[4:8] Ffinal.ln[0:4] Flosses[0:4] Ffinal.ln[4:8] Flosses[4:8]
"""
SEGMENT = """
F0.x F0.ln1 F0.qkv F0.o F0.proj F0.mid F0.ln2 F0.u F0.g F0.z F1.x F1.ln1 F1.qkv F1.o F1.proj F1.mid F1.ln2 F1.u F1.g
F1.z Ffinal.x Ffinal.ln Blosses Bfinal.ln R0.x R0.ln1 R0.qkv R0.o R0.proj R0.mid R0.ln2 R0.u R0.g R0.z R1.x R1.ln1
R1.qkv R1.o R1.proj R1.mid R1.ln2 R1.u R1.g B1.z B1.g B1.u B1.ln2 +d:final.x B1.proj B1.o R1.ln1 B1.qkv B1.ln1
+d:final.x R0.ln1 R0.qkv R0.o R0.proj R0.mid R0.ln2 R0.u R0.g B0.z B0.g B0.u B0.ln2 +d:final.x B0.proj B0.o R0.ln1
B0.qkv B0.ln1 +d:final.x B0.x
"""


def test_sequence_by_sequence() -> None:
    # Attention runs again once, though its output is read first by the projection and then by its own backward.
    schedule = training_schedule(graph(1, 2), Plan("", INPUT, 8, (Slices(1, 4),)))
    assert words(schedule, frees=False) == SEQUENCE_BY_SEQUENCE.split()


def test_rows_at_a_time_are_freed_at_once() -> None:
    schedule = training_schedule(graph(1, 2), Plan("", INPUT | ATTENTION, 4, (Slices(2, 4),)))
    assert words(schedule) == ROWS_WITH_FREES.split()


def test_an_evaluation_walks_the_same_slices() -> None:
    schedule = evaluation_schedule(graph(1, 2), Plan("", INPUT, 4, (Slices(1, 4),)))
    assert words(schedule, frees=False) == EVALUATION.split()


def test_a_segment_brings_its_inputs_back_once() -> None:
    schedule = training_schedule(graph(2, 1), Plan("", frozenset({"final.x"}), 8, (Slices(1, 4),) * 2))
    assert words(schedule, frees=False) == SEGMENT.split()


def at(actions: list[Action], word: str, after: int = 0) -> int:
    return next(i for i, action in enumerate(actions) if i >= after and written(action) == word)


def without(actions: list[Action], word: str, after: str = "") -> list[Action]:
    del actions[at(actions, word, at(actions, after) if after else 0)]
    return actions


def swapped(actions: list[Action], first: str, second: str) -> list[Action]:
    i, j = at(actions, first), at(actions, second)
    actions[i], actions[j] = actions[j], actions[i]
    return actions


def of_other_rows(actions: list[Action], word: str) -> list[Action]:
    i = at(actions, word)
    actions[i] = replace(actions[i], rows=(4, 8))  # type: ignore[call-arg]
    return actions


U = "blocks.0.u[0:4]"
CHEATS: dict[str, tuple[Callable[[list[Action]], list[Action]], str]] = {
    "does not bring a slice back": (
        lambda actions: without(actions, "R blocks.0.u[0:4]"), f"it reads {U}, which is not live",
    ),
    "frees a slice too early": (
        lambda actions: [*actions[: (i := at(actions, "B blocks.0.z[0:4]"))], Free(U), *actions[i:]],
        f"B blocks.0.g[0:4]: it reads {U}, which is not live",
    ),
    "reads rows that are not written yet": (
        lambda actions: without(actions, "F blocks.0.qkv[4:8]"), "F blocks.0.o: it reads rows (0, 8) of blocks.0.qkv",
    ),
    "walks slices out of order": (
        lambda actions: swapped(actions, "F blocks.0.ln1[0:4]", "F blocks.0.ln1[4:8]"), "it begins at row 4, 0 is due",
    ),
    "leaves a slice out backward": (
        lambda actions: without(actions, "B blocks.0.u[0:4]"), "which is not live",
    ),
    "runs the rows of another slice": (
        lambda actions: of_other_rows(actions, "R blocks.0.u[0:4]"), "it reads rows (4, 8) of blocks.0.ln2[0:4]",
    ),
    "adds a part to the wrong rows": (
        lambda actions: of_other_rows(actions, "+ d:final.x[0:4]"), "which has (0, 4)",
    ),
    "forgets a slice's part": (
        lambda actions: without(actions, "+ d:final.x[0:4]"), "parts were added to d:final.x, 1 are due",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheating_slice_is_refused(name: str) -> None:
    edit, message = CHEATS[name]
    schedule = training_schedule(graph(1, 2), Plan("", INPUT, 8, (Slices(2, 4),)))
    simulate(schedule)
    cheat = Schedule(schedule.graph, schedule.plan, tuple(edit(list(schedule.actions))))
    with pytest.raises(IllegalSchedule) as caught:
        simulate(cheat)
    assert message in str(caught.value)
