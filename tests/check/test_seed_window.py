from __future__ import annotations

import numpy as np
import pytest

from fastbp.base.errors import InputError
from fastbp.check.seed_window import ALPHABET, encode, gradients_of, seed_decoder, spread_vectors


def test_the_alphabet_is_64_characters_in_order_without_upper_case() -> None:
    assert len(ALPHABET) == 64
    assert list(ALPHABET) == sorted(set(ALPHABET))
    assert ALPHABET.lower() == ALPHABET
    assert set("abcdefghijklmnopqrstuvwxyz0123456789 \n.,'") <= set(ALPHABET)


def test_a_character_outside_is_named_with_its_place() -> None:
    with pytest.raises(InputError, match=r"'A' at 6"):
        encode("alice Alice")


def test_the_window_is_eight_inputs_and_the_targets_shifted_by_one() -> None:
    decoder = seed_decoder("numpy")
    assert "".join(ALPHABET[i] for i in decoder.tokens.ravel()) == "alice wa"
    assert "".join(ALPHABET[i] for i in decoder.targets.ravel()) == "lice was"


def test_27_tensors_of_5376_parameters_in_float64() -> None:
    decoder = seed_decoder("numpy")
    assert len(decoder.parameters) == 27
    assert sum(values.size for values in decoder.parameters.values()) == 5376
    assert all(values.dtype == np.float64 for values in decoder.parameters.values())
    assert len(decoder.parameters["wte"]) == len(ALPHABET)


def test_weights_are_a_function_of_the_seed_spread_by_a_fiftieth() -> None:
    first, again, other = (seed_decoder("numpy", seed).parameters for seed in (3, 3, 4))
    assert np.array_equal(first.flat, again.flat)
    for name, values in first.items():
        if values.ndim == 2:
            assert not np.array_equal(values, other[name])
    assert np.concatenate([v.ravel() for v in first.values() if v.ndim == 2]).std() == pytest.approx(0.02, rel=0.05)
    assert (first["final.ln.weight"] == 1).all()
    assert (first["blocks.1.mlp.b2"] == 0).all()


def test_spread_moves_vectors_alone() -> None:
    decoder, plain = seed_decoder("numpy"), seed_decoder("numpy")
    spread_vectors(decoder, 0)
    for name, values in decoder.parameters.items():
        moved = values - plain.parameters[name]
        assert (moved == 0).all() if values.ndim == 2 else (moved != 0).all(), name
        assert np.abs(moved).max() < 0.1


def test_gradients_are_copies_and_do_not_pile_up() -> None:
    decoder = seed_decoder("numpy")
    first = gradients_of(decoder)
    second = gradients_of(decoder)
    decoder.zero_gradients()
    assert list(first) == list(decoder.parameters)
    for name, values in first.items():
        assert np.array_equal(values, second[name]), name
        assert values.any(), name
