"""Updates, evaluation, what is refused, and what is named where a number is not finite."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fastbp.base.errors import InputError, NonFinite
from fastbp.data import Split
from fastbp.memory.flat import Flat
from fastbp.train.optimiser import AdamWSettings
from fastbp.train.trainer import Trainer, UpdateRecord

MakeTrainer = Callable[..., Trainer]
UPDATES = 12
BACKENDS = ("numpy", "numba", "cython")


def bits(trainer: Trainer) -> tuple[bytes, ...]:
    """Parameters and both moments."""
    optimiser = trainer.optimiser
    return tuple(
        flat.flat.tobytes() for flat in (trainer.decoder.parameters, optimiser.first_moments, optimiser.second_moments)
    )


def copied(flat: Flat) -> dict[str, np.ndarray]:
    return {name: values.copy() for name, values in flat.items()}


def test_updates_lower_the_loss(make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer()
    before = trainer.evaluate("training"), trainer.evaluate("validation")
    prepared: list[tuple[int, float]] = []
    prepare = trainer.optimiser.prepare
    monkeypatch.setattr(trainer.optimiser, "prepare", lambda *scalars: (prepared.append(scalars), prepare(*scalars)))
    records = [trainer.update() for _ in range(UPDATES)]
    assert [record.update for record in records] == list(range(UPDATES))
    assert trainer.update_count == UPDATES
    assert trainer.evaluate("training") < before[0]
    assert trainer.evaluate("validation") < before[1]
    assert records[0].loss == pytest.approx(np.log(trainer.decoder.config.vocab), rel=0.1)
    assert [record.learning_rate for record in records] == [trainer.learning_rate.at(u) for u in range(UPDATES)]
    assert prepared == [(u, trainer.learning_rate.at(u)) for u in range(UPDATES)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("options", [{}, {"dropout": 0.2, "accumulate": 2}], ids=["plain", "dropout"])
def test_a_run_that_stops_at_any_update_goes_on_with_the_same_bits(
    make_trainer: MakeTrainer, backend: str, options: dict[str, float]
) -> None:
    straight = make_trainer(backend, **options)
    expected = [straight.update() for _ in range(UPDATES)]
    for stop in range(UPDATES + 1):
        first, second = make_trainer(backend, **options), make_trainer(backend, **options)
        records = [first.update() for _ in range(stop)]
        second.decoder.initialise(99)
        state = (first.decoder.parameters, first.optimiser.first_moments, first.optimiser.second_moments)
        second.restore(stop, *map(copied, state))
        records += [second.update() for _ in range(UPDATES - stop)]
        assert records == expected
        assert bits(second) == bits(straight)
        assert second.update_count == UPDATES


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_evaluation_leaves_training_alone(make_trainer: MakeTrainer, backend: str, dropout: float) -> None:
    plain = make_trainer(backend, dropout=dropout)
    watched = make_trainer(backend, dropout=dropout, evaluation_windows=7)
    for _ in range(UPDATES):
        assert plain.update() == watched.update()
        for part in ("training", "validation"):
            assert watched.evaluate(part) == watched.evaluate(part)
    assert bits(plain) == bits(watched)


def test_every_pass_has_masks_of_its_own(make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer("numpy", dropout=0.2, accumulate=2)
    keys: list[bytes] = []
    run = trainer.decoder.runner.run
    state = trainer.decoder.dropout_state
    monkeypatch.setattr(trainer.decoder.runner, "run", lambda program: (keys.append(state.tobytes()), run(program)))
    for _ in range(3):
        trainer.update()
    assert len(set(keys)) == 6
    other = make_trainer("numpy", dropout=0.2, accumulate=2, seed=6)
    other.update()
    assert other.decoder.dropout_state.tobytes() not in keys


def test_the_culprit_is_sought_under_the_same_masks(make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer("numpy", dropout=0.2, accumulate=2)
    runner, state = trainer.decoder.runner, trainer.decoder.dropout_state
    run, watched = runner.run, runner.run_watched
    keys: dict[str, list[bytes]] = {"run": [], "watched": []}
    monkeypatch.setattr(runner, "run", lambda program: (keys["run"].append(state.tobytes()), run(program)))
    monkeypatch.setattr(
        runner, "run_watched", lambda *given: (keys["watched"].append(state.tobytes()), watched(*given))[1]
    )
    trainer.decoder.parameters["blocks.1.mlp.w2"][:] = 3e38
    with pytest.raises(NonFinite, match=r"^update 1: not finite first in"):
        trainer.update()
    assert keys["watched"] == keys["run"][:1]


def test_evaluation_is_the_mean_over_all_windows(make_trainer: MakeTrainer) -> None:
    # Five windows in batches of 2: the last batch is part empty.
    pairs, single = make_trainer(evaluation_windows=5), make_trainer(evaluation_windows=5, batch=1)
    losses = []
    for k in range(5):
        single.windows["validation"].fill(k, single.decoder.tokens, single.decoder.targets)
        single.decoder.evaluate()
        losses.append(single.decoder.loss)
    assert len(set(losses)) == 5
    assert pairs.evaluate() == pytest.approx(np.mean(losses), rel=1e-6)
    assert pairs.evaluate() != pairs.evaluate("training")


def test_evaluation_asks_between_batches(make_trainer: MakeTrainer) -> None:
    calls: list[int] = []
    make_trainer(evaluation_windows=5).evaluate(poll=lambda: calls.append(1))
    assert len(calls) == 3


def test_two_batches_weigh_as_one_of_both(make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = AdamWSettings(clip=0)
    parts = make_trainer(batch=2, accumulate=2, optimiser=settings)
    whole = make_trainer(batch=4, optimiser=settings)
    inputs, targets = np.empty((4, 8), np.int32), np.empty((4, 8), np.int32)
    for micro in range(2):
        rows = slice(2 * micro, 2 * micro + 2)
        parts.batches.fill(0, micro, inputs[rows], targets[rows])
    assert (inputs[:2] != inputs[2:]).any()

    def fill_whole(update: int, micro: int, into: np.ndarray, into_targets: np.ndarray) -> None:
        into[:], into_targets[:] = inputs, targets

    monkeypatch.setattr(whole.batches, "fill", fill_whole)
    found, expected = parts.update(), whole.update()
    assert found.loss == pytest.approx(expected.loss, rel=1e-6)
    assert found.norm == pytest.approx(expected.norm, rel=1e-5)
    # After one step the first moment is the gradient times 1 - beta1.
    gradients = parts.optimiser.first_moments.flat, whole.optimiser.first_moments.flat
    np.testing.assert_allclose(*gradients, rtol=0, atol=1e-6 * np.abs(gradients[1]).max())
    assert parts.tokens_per_update == whole.tokens_per_update == 32


def test_flops_of_an_update(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(accumulate=3)
    c = trainer.decoder.config
    B, T, C, F, V = 2, c.context, c.width, c.feed_forward, c.vocab
    block = 2 * C * 3 * C + 2 * C * C + 2 * (2 * C * F) + 2 * T * C  # a token's share; attention sees half the square
    forward = B * T * (c.blocks * block + 2 * C * V)
    assert trainer.flops_per_update == 3 * 3 * forward


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_parameter_that_is_not_finite_is_named(make_trainer: MakeTrainer, backend: str, value: float) -> None:
    trainer = make_trainer(backend)
    trainer.update()
    trainer.decoder.parameters["blocks.1.mlp.w2"][3, 4] = value
    before = bits(trainer)
    with pytest.raises(NonFinite, match=r"^update 2: not finite first in parameter blocks\.1\.mlp\.w2 \(loss nan, "):
        trainer.update()
    assert (bits(trainer), trainer.update_count) == (before, 1)
    assert not trainer.decoder.gradients.flat.any()
    with pytest.raises(NonFinite, match=r"^evaluation after 1 updates: .* parameter blocks\.1\.mlp\.w2: lower --lr$"):
        trainer.evaluate()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_first_tensor_and_its_op_are_named(make_trainer: MakeTrainer, backend: str, accumulate: int) -> None:
    trainer = make_trainer(backend, accumulate=accumulate, optimiser=AdamWSettings(clip=0))
    trainer.decoder.parameters["blocks.1.mlp.w1"][:] = 3e38
    message = (
        r"not finite first in blocks\.1\.u, written by linear forward \(blocks\.1\.u\).*"
        "lower --lr, or clip with --clip 1$"
    )
    with pytest.raises(NonFinite, match=message):
        trainer.update()
    with pytest.raises(NonFinite, match=message):
        trainer.evaluate()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gradient_that_overflows_changes_nothing(make_trainer: MakeTrainer, backend: str) -> None:
    trainer = make_trainer(backend)
    trainer.update()
    parameters = trainer.decoder.parameters
    for name in ("w1", "b1"):
        parameters[f"blocks.1.mlp.{name}"][:] = 0  # GELU's output is 0: forward does not see the next tensor
    parameters["blocks.1.mlp.w2"][:] = 1e6
    trainer.decoder.row_weights[:] = 1e36
    before = bits(trainer)
    with pytest.raises(NonFinite, match=r"d:blocks\.1\.g, written by linear backward \(blocks\.1\.z\)"):
        trainer.update()
    assert (bits(trainer), trainer.update_count) == (before, 1)
    assert not trainer.decoder.gradients.flat.any()


def test_a_loss_that_overflows_alone_stops_too(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    parameters = trainer.decoder.parameters
    parameters["final.ln.weight"][:], parameters["final.ln.bias"][:] = 0, 1e19
    parameters["wte"][:] = np.where(np.arange(trainer.decoder.config.vocab) % 2, 1.6e18, -1.6e18)[:, None]
    with pytest.raises(NonFinite, match=r"losses, written by linear_cross_entropy \w+ \(losses\) \(loss inf, "):
        trainer.update()
    assert trainer.update_count == 0


def test_ids_outside_the_vocabulary_are_refused(make_trainer: MakeTrainer, data: Split) -> None:
    good = make_trainer()
    for name in ("train", "valid"):
        tokens = getattr(data, name).copy()
        tokens[7] = good.decoder.config.vocab
        parts = {"train": data.train, "valid": data.valid, name: tokens}
        with pytest.raises(InputError, match=rf"the {name}\w+ part: id \d+ at index 7 is outside"):
            Trainer(good.decoder, Split(**parts, shared=False), good.learning_rate)


def test_an_update_takes_a_batch(make_trainer: MakeTrainer) -> None:
    with pytest.raises(InputError, match="accumulate is 0"):
        make_trainer(accumulate=0)


@pytest.mark.parametrize("damage", ["missing", "shape"])
def test_what_is_restored_has_the_decoders_shapes(make_trainer: MakeTrainer, damage: str) -> None:
    trainer, other = make_trainer(), make_trainer()
    other.update()
    before = bits(trainer)
    state = [copied(other.decoder.parameters), copied(other.optimiser.first_moments)]
    second = copied(other.optimiser.second_moments)
    if damage == "missing":
        del second["wte"]
    else:
        second["wte"] = second["wte"][:1]  # which would spread over all rows
    with pytest.raises(InputError, match="tensor wte is "):
        trainer.restore(1, *state, second)
    assert (bits(trainer), trainer.update_count) == (before, 0)


@pytest.mark.parametrize("policy", ["save_all", "full", "every(2)", "selective(gelu, layernorm)", "save_only(qkv)"])
def test_every_policy_trains_to_the_same_bits(make_trainer: MakeTrainer, policy: str) -> None:
    plain, other = make_trainer(), make_trainer(policy=policy)
    records: list[list[UpdateRecord]] = [[trainer.update() for _ in range(3)] for trainer in (plain, other)]
    assert records[0] == records[1]
    assert bits(plain) == bits(other)
