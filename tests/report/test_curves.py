"""A record's panels: what is in which curve, of new records, old ones and long ones."""

from __future__ import annotations

from typing import Any

from fastbp.report.curves import MOST_POINTS, Curve, training_panels, training_title
from fastbp.train.update_ratio import KINDS


def record(updates: int, every: int = 10, ratio: float = 1e-3) -> list[dict[str, Any]]:
    """A run's record as the loop writes it, evaluated after every `every` updates."""
    lines: list[dict[str, Any]] = []
    for update in range(updates + 1):
        if update:
            lines.append({
                "update": update, "loss": 4 / (1 + update) + 1, "learning_rate": 1e-3 * update, "norm": 1 / update,
                "seconds": 0.02, "tokens": 768,
                "update_ratio": {kind: ratio * (i + 1) for i, kind in enumerate(("all", *KINDS))},
            })  # fmt: skip
        if update % every == 0:
            lines.append({"update": update, "train_loss": 3 / (1 + update) + 1, "valid_loss": 3 / (1 + update) + 1.2})
    return lines


def curves(lines: list[dict[str, Any]]) -> dict[tuple[str, str], Curve]:
    return {(panel.title.split()[0], curve.label): curve for panel in training_panels(lines) for curve in panel.curves}


def test_what_is_where() -> None:
    found = curves(record(20))
    assert [(panel.title, panel.logarithmic) for panel in training_panels([])] == [
        ("Loss (nats a token)", False), ("Learning rate", False), ("Gradient norm, before clipping", True),
        ("Tokens a second", False), ("Update / weights (norms)", True),
    ]  # fmt: skip
    updates = list(range(1, 21))
    assert [x for x, _ in found["Loss", "one batch"].points] == updates
    assert found["Loss", "validation"].points == [(0, 4.2), (10, 3 / 11 + 1.2), (20, 3 / 21 + 1.2)]
    assert [x for x, _ in found["Loss", "training"].points] == [0, 10, 20]
    assert found["Learning", ""].points == [(update, 1e-3 * update) for update in updates]
    assert found["Gradient", "at the line"].points == [(update, 1 / update) for update in updates]
    assert {y for _, y in found["Tokens", "at the line"].points} == {38400}
    assert [label for panel, label in found if panel == "Update"] == ["all", *KINDS]
    assert found["Update", "attention"].points == [(update, 1e-3 * 3) for update in updates]


def test_an_outlier_is_left_out_of_a_smooth_curve() -> None:
    lines = record(60)
    next(line for line in lines if line.get("norm") == 1 / 30)["norm"] = 1e9
    found = curves(lines)
    assert max(y for _, y in found["Gradient", "at the line"].points) == 1e9
    assert max(y for _, y in found["Gradient", "median of 15"].points) < 1


def test_what_older_records_lack_is_an_empty_curve() -> None:
    lines = [{"update": 10, "loss": 2.0, "learning_rate": 1e-3, "norm": 1.0, "seconds": 0.1}]
    found = curves(lines)
    assert found["Loss", "one batch"].points == [(10, 2.0)]
    assert found["Tokens", "at the line"].points == found["Update", "all"].points == []


def test_a_ratio_that_was_not_finite_has_no_point() -> None:
    lines = record(3)
    lines[2]["update_ratio"]["mlp"] = None
    assert [x for x, _ in curves(lines)["Update", "mlp"].points] == [1, 3]


def test_a_long_run_is_thinned_and_shown_to_its_end() -> None:
    for updates in (MOST_POINTS, MOST_POINTS + 1, 10 * MOST_POINTS + 7):
        points = curves(record(updates, every=10**6))["Loss", "one batch"].points
        assert MOST_POINTS / 2 <= len(points) <= MOST_POINTS
        assert points[-1][0] == updates
        assert points == sorted(points)


def test_the_title() -> None:
    assert training_title([]) == "No evaluation yet"
    assert training_title(record(25)) == "Validation loss 1.343 after 20 updates"
