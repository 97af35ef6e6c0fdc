"""A configuration is checked when it is made, and survives JSON."""

from __future__ import annotations

import dataclasses
import json
from math import prod
from typing import Any

import pytest

from fastbp.base.errors import InputError
from fastbp.graph.config import PRESETS, DecoderConfig
from fastbp.graph.decoder import parameter_shapes

GOOD: dict[str, Any] = {"blocks": 2, "width": 12, "heads": 3, "feed_forward": 7, "context": 5, "vocab": 11}


def test_the_presets_are_the_ones_that_were_promised() -> None:
    table = {name: tuple(getattr(config, size) for size in GOOD) for name, config in PRESETS.items()}
    assert table["seed"] == (2, 16, 2, 32, 8, 64)
    assert table["small"][:5] == (4, 128, 4, 512, 64)
    assert table["medium"][:5] == (6, 384, 6, 1536, 256)
    assert table["gpt2"] == (12, 768, 12, 3072, 1024, 50257)
    seed = PRESETS["seed"]
    assert (seed.positions, seed.attention_bias, seed.feed_forward_bias) == ("sinusoidal", False, True)
    assert (seed.gelu, seed.eps, seed.scaled_init) == ("tanh", 1e-5, False)
    for name in ("small", "medium", "gpt2"):
        config = PRESETS[name]
        assert (config.positions, config.attention_bias, config.feed_forward_bias) == ("learned", True, True)
        assert config.scaled_init


def test_head_width_is_a_heads_share_of_the_width() -> None:
    assert DecoderConfig(**GOOD).head_width == 4


@pytest.mark.parametrize("size", GOOD)
@pytest.mark.parametrize("value", [0, -3, 1.5, "4"])
def test_sizes_are_whole_and_at_least_one(size: str, value: Any) -> None:
    with pytest.raises(InputError, match=rf"^{size} is {value}: give a whole number of at least 1$"):
        DecoderConfig(**(GOOD | {size: value}))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"heads": 5}, "width 12 is not divisible by 5 heads: choose a width that is a multiple of the heads"),
        ({"positions": "learnt"}, r"positions 'learnt' are unknown \(did you mean 'learned'\?\): choose learned or"),
        ({"gelu": "tan"}, r"gelu 'tan' is unknown \(did you mean 'tanh'\?\): choose tanh or erf"),
        ({"width": 9, "positions": "sinusoidal"}, "width 9 is odd: sinusoidal positions need an even width"),
        ({"eps": 0.0}, "eps is 0.0: LayerNorm needs a positive one"),
        ({"eps": float("nan")}, "eps is nan: LayerNorm needs a positive one"),
        ({"dropout": 1.0}, "dropout is 1.0: give a share from 0 up to but not including 1"),
        ({"dropout": -0.1}, "dropout is -0.1: give a share"),
        ({"dropout": float("nan")}, "dropout is nan: give a share"),
    ],
)
def test_what_does_not_fit_together_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        DecoderConfig(**(GOOD | wrong))


def test_odd_width_is_fine_with_learned_positions() -> None:
    assert DecoderConfig(**(GOOD | {"width": 9})).head_width == 3


def test_a_preset_takes_its_vocabulary_from_the_data_and_overrides_from_the_caller() -> None:
    config = DecoderConfig.preset("small", vocab=77, context=32, width=None)
    assert config == dataclasses.replace(PRESETS["small"], vocab=77, context=32)


def test_an_override_is_checked_too() -> None:
    with pytest.raises(InputError, match="width 128 is not divisible by 5 heads"):
        DecoderConfig.preset("small", heads=5)


def test_unknown_preset_and_unknown_override_name_the_nearest() -> None:
    with pytest.raises(
        InputError, match=r"preset 'smal' is unknown \(did you mean 'small'\?\): choose seed, .* or gpt2"
    ):
        DecoderConfig.preset("smal")
    with pytest.raises(InputError, match=r"a decoder has no widht \(did you mean 'width'\?\)"):
        DecoderConfig.preset("small", widht=3)


@pytest.mark.parametrize("name", PRESETS)
def test_json_there_and_back(name: str) -> None:
    config = PRESETS[name]
    assert DecoderConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize("change", ["missing", "unknown"])
def test_json_with_a_field_too_few_or_too_many_is_refused(change: str) -> None:
    values = PRESETS["seed"].to_json()
    if change == "missing":
        del values["eps"]
    else:
        values["droput"] = 0.1
    field = "eps" if change == "missing" else "droput"
    with pytest.raises(InputError, match=f"missing or unknown field '{field}'"):
        DecoderConfig.from_json(values)


def test_json_from_before_there_was_dropout_means_none() -> None:
    values = PRESETS["small"].to_json()
    del values["dropout"]
    assert DecoderConfig.from_json(values) == PRESETS["small"]


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        DecoderConfig(**GOOD).width = 24  # type: ignore[misc]


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
@pytest.mark.parametrize("biases", [(True, True), (True, False), (False, True)])
def test_the_parameters_are_counted_as_they_are_made(positions: str, biases: tuple[bool, bool]) -> None:
    fields = GOOD | {"positions": positions, "attention_bias": biases[0], "feed_forward_bias": biases[1]}
    config = DecoderConfig(**fields)
    assert config.parameter_count == sum(prod(shape) for shape in parameter_shapes(config).values())
