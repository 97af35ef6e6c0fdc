"""Options that several commands share: their types, and the decoder that they describe."""

from __future__ import annotations

import argparse

import pytest

from fastbp.base.errors import InputError
from fastbp.commands.options import (
    BATCH,
    add_model_options,
    add_run_options,
    chosen_batch,
    chosen_config,
    one_of,
    size,
    split_list,
    whole,
)
from fastbp.graph.config import PRESETS, DecoderConfig


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_model_options(parser)
    add_run_options(parser)
    return parser.parse_args(arguments)


def test_a_whole_number() -> None:
    assert (whole()("7"), whole(0)("0"), whole()(" 12 ")) == (7, 0, 12)
    for minimum, text in ((1, "0"), (0, "-1"), (1, "1.0"), (1, "x"), (1, ""), (1, "1e3")):
        with pytest.raises(argparse.ArgumentTypeError, match=r"give at least|is not a whole number"):
            whole(minimum)(text)


def test_one_of_some_words() -> None:
    assert one_of(("float32", "float64"))("float64") == "float64"
    with pytest.raises(
        argparse.ArgumentTypeError, match=r"'flat32' is unknown \(did you mean 'float32'\?\): choose flo"
    ):
        one_of(("float32", "float64"))("flat32")


def test_commas_in_parentheses_belong_to_a_policy() -> None:
    assert split_list(" full, selective(gelu, mlp) ,optimal(200MiB)") == [
        "full",
        "selective(gelu, mlp)",
        "optimal(200MiB)",
    ]
    assert split_list("") == split_list(" , ") == []
    for wrong in ("every(2", "every)2(", "full,(a(b))"):
        with pytest.raises(argparse.ArgumentTypeError, match="parenthesis"):
            split_list(wrong)


def test_a_size() -> None:
    assert size("1.5 KiB") == 1536
    with pytest.raises(argparse.ArgumentTypeError, match="64MiB"):
        size("much")


def test_every_preset_has_a_batch() -> None:
    assert set(BATCH) == set(PRESETS)
    for preset, batch in BATCH.items():
        assert chosen_batch(parsed("--preset", preset)) == batch
    assert chosen_batch(parsed("--preset", "medium", "--batch", "3")) == 3


def test_the_decoder_is_the_preset_unless_asked_otherwise() -> None:
    assert chosen_config(parsed(), vocab=70) == DecoderConfig.preset("small", vocab=70)
    assert chosen_config(parsed("--preset", "gpt2")) == PRESETS["gpt2"]
    changed = parsed("--blocks", "3", "--width", "24", "--heads", "3", "--ffn", "40", "--context", "9", "--vocab", "50",
                     "--positions", "sinusoidal", "--dropout", "0.1")  # fmt: skip
    expected = DecoderConfig.preset("small", 50, blocks=3, width=24, heads=3, feed_forward=40, context=9,
                                    positions="sinusoidal", dropout=0.1)  # fmt: skip
    assert chosen_config(changed, vocab=50) == expected


def test_the_feed_forward_width_is_four_widths() -> None:
    assert chosen_config(parsed("--width", "64")).feed_forward == 256
    assert chosen_config(parsed("--width", "64", "--ffn", "8")).feed_forward == 8
    assert chosen_config(parsed("--preset", "seed")).feed_forward == 32


def test_a_vocabulary_smaller_than_the_texts_is_refused() -> None:
    assert chosen_config(parsed("--vocab", "70"), vocab=65).vocab == 70
    with pytest.raises(InputError, match=r"--vocab 64 is smaller than the text's 65 tokens"):
        chosen_config(parsed("--vocab", "64"), vocab=65)
