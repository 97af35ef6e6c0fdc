"""The ratio of an update to the weights: told from the state behind it, it is what the difference to before says."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbp.data import Split
from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import parameter_shapes
from fastbp.memory.flat import Flat, FlatShapes
from fastbp.run.decoder import Decoder
from fastbp.train import update_ratio
from fastbp.train.learning_rate import LearningRate
from fastbp.train.optimiser import AdamWSettings
from fastbp.train.trainer import Trainer
from fastbp.train.update_ratio import KINDS, UpdateRatio, kind_of

MakeTrainer = Callable[..., Trainer]
EXACT = {"float32": 1e-3, "float64": 1e-9}


def measured(trainer: Trainer) -> dict[str, float | None]:
    return UpdateRatio(trainer.decoder.parameters, trainer.optimiser).measure()


def ratios_by_difference(before: dict[str, np.ndarray], trainer: Trainer) -> dict[str, float]:
    """The same from parameters that were copied before the update."""
    after = {name: values.astype(np.float64) for name, values in trainer.decoder.parameters.items()}
    found = {}
    for kind in ("all", *KINDS):
        names = [name for name in after if kind in ("all", kind_of(name))]
        change = sum(float(((after[name] - before[name]) ** 2).sum()) for name in names)
        found[kind] = (change / sum(float((after[name] ** 2).sum()) for name in names)) ** 0.5
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("backend", ["numpy", "cython"])
@pytest.mark.parametrize(
    "settings",
    [AdamWSettings(), AdamWSettings(weight_decay=0.0, clip=0.0), AdamWSettings(weight_decay=3.0, eps=1e-3)],
    ids=["usual", "no decay", "much decay"],
)
def test_it_is_what_the_difference_says(
    config: DecoderConfig, data: Split, dtype: str, backend: str, settings: AdamWSettings
) -> None:
    decoder = Decoder(config, 2, backend=backend, workers=1, dtype=dtype)
    decoder.initialise(3)
    trainer = Trainer(decoder, data, LearningRate("constant", 1e-2, 0.0, 2, 100), settings, accumulate=2)
    for _ in range(6):
        before = {name: values.astype(np.float64) for name, values in decoder.parameters.items()}
        trainer.update()
        found = measured(trainer)
        assert found == pytest.approx(ratios_by_difference(before, trainer), rel=EXACT[dtype])
    assert set(found) == {"all", *KINDS}


def test_it_changes_nothing_of_the_state(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer("cython")
    trainer.update()
    optimiser, decoder = trainer.optimiser, trainer.decoder
    states = [decoder.parameters.flat, decoder.gradients.flat, optimiser.first_moments.flat]
    states += [optimiser.second_moments.flat, optimiser.hyper]
    before = [state.tobytes() for state in states]
    first = measured(trainer)
    assert [state.tobytes() for state in states] == before
    assert measured(trainer) == first


def test_chunks_change_nothing_but_the_rounding(make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer("cython")
    trainer.update()
    whole = measured(trainer)
    monkeypatch.setattr(update_ratio, "CHUNK", 7)
    assert measured(trainer) == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("weight", [1e30, np.inf, np.nan], ids=str)
def test_what_is_no_finite_number_is_none(make_trainer: MakeTrainer, weight: float) -> None:
    trainer = make_trainer("cython")
    trainer.update()
    trainer.decoder.parameters["blocks.1.mlp.w1"][0, 0] = weight
    found = measured(trainer)
    assert [kind for kind, ratio in found.items() if ratio is None] == ["all", "mlp"]


def test_a_decay_that_leaves_nothing_hides_the_update(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer("cython", optimiser=AdamWSettings(weight_decay=1.0))
    trainer.optimiser.prepare(0, 1.0)  # lr·decay is 1
    assert measured(trainer)["all"] is None


@given(st.sampled_from(["seed", "small", "gpt2"]), st.booleans(), st.booleans(), st.integers(1, 5000))
def test_pieces_cover_every_parameter_once(
    preset: str, attention_bias: bool, feed_forward_bias: bool, chunk: int
) -> None:
    config = DecoderConfig.preset(
        preset, width=16, heads=2, feed_forward=32, vocab=9, context=8, blocks=2,
        attention_bias=attention_bias, feed_forward_bias=feed_forward_bias,
    )  # fmt: skip
    parameters = Flat(FlatShapes(parameter_shapes(config)), "float32")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(update_ratio, "CHUNK", chunk)
        found = update_ratio.pieces(parameters)
    assert [found[0][2], found[-1][3]] == [0, parameters.flat.size]
    assert all(stop == start for (*_, stop), (*_, start, _) in pairwise(found))
    assert all(0 < stop - start <= chunk and start // chunk == (stop - 1) // chunk for *_, start, stop in found)
    for name, values in parameters.items():
        begin = parameters.shapes.offsets[name]
        own = [piece for piece in found if piece[2] < begin + values.size and piece[3] > begin]
        assert {piece[:2] for piece in own} == {(kind_of(name), values.ndim >= 2)}


def test_kinds() -> None:
    kinds = {name: kind_of(name) for name in parameter_shapes(DecoderConfig.preset("small"))}
    assert (kinds["wte"], kinds["wpe"], kinds["final.ln.bias"]) == ("embedding", "embedding", "layernorm")
    assert {name.split(".")[2]: kind for name, kind in kinds.items() if name.startswith("blocks.2")} == {
        "ln1": "layernorm", "attn": "attention", "ln2": "layernorm", "mlp": "mlp",
    }  # fmt: skip
