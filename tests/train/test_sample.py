"""Sampling: the logits are the decoder's, the cache changes nothing, and every knob holds at its ends."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from fastbp.base.errors import InputError, NonFinite
from fastbp.data.tokenizer import ByteTokenizer, CharTokenizer
from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import parameter_shapes
from fastbp.run.decoder import Decoder
from fastbp.train.sample import _Choice, generate, logits, sample_text, start_ids

SEED = DecoderConfig.preset("seed")
LEARNED = DecoderConfig(3, 24, 3, 40, 12, 11, gelu="erf", eps=1e-3)
BARE = replace(LEARNED, blocks=1, attention_bias=False, feed_forward_bias=False)
BELOW_ONE = math.nextafter(1.0, 0.0)


def weights(config: DecoderConfig, dtype: str = "float32", seed: int = 0) -> dict[str, np.ndarray]:
    """Far from initialisation, and norms with signs: else the tied head makes greedy text one token for ever."""
    rng = np.random.default_rng(seed)
    return {
        name: ((0.1 if name.endswith("bias") else 0.5) * rng.standard_normal(shape)).astype(dtype)
        for name, shape in parameter_shapes(config).items()
    }


def tokens(config: DecoderConfig, prompt: Any, count: int, **options: Any) -> list[int]:
    options = {"rng": np.random.default_rng(7), "dtype": "float32"} | options
    parameters = options.pop("parameters", None) or weights(config, options["dtype"])
    del options["dtype"]
    return list(generate(config, parameters, np.asarray(prompt), count, **options))


class FixedDraw:
    """A generator whose every number is the same."""

    def __init__(self, value: float) -> None:
        self.value = value

    def random(self) -> float:
        return self.value


def choose(
    row: list[float],
    value: float,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    vocab: int | None = None,
) -> int:
    rng = cast(np.random.Generator, FixedDraw(value))
    return _Choice(temperature, top_k, top_p, vocab).draw(np.array(row, np.float32), rng)


@pytest.mark.parametrize("config", [SEED, LEARNED, BARE], ids=["seed", "learned", "bare"])
@pytest.mark.parametrize("backend", ["numpy", "numba", "cython"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logits_give_the_losses_of_the_decoder(config: DecoderConfig, backend: str, dtype: str) -> None:
    decoder = Decoder(config, 1, backend=backend, workers=1, dtype=dtype)
    for name, values in weights(config, dtype).items():
        decoder.parameters[name][:] = values
    rng = np.random.default_rng(1)
    decoder.tokens[:], decoder.targets[:] = rng.integers(0, config.vocab, (2, 1, config.context))
    decoder.evaluate()
    found = logits(config, decoder.parameters, decoder.tokens[0])
    assert found.dtype == dtype
    z = found.astype(np.float64)
    losses = np.log(np.exp(z).sum(axis=1)) - z[np.arange(config.context), decoder.targets[0]]
    rtol = 1e-4 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(decoder.losses[0], losses, rtol=rtol, atol=rtol / 10)


def test_logits_know_nothing_of_later_tokens() -> None:
    ids = np.arange(12) % 11
    changed = ids.copy()
    changed[7:] = 0
    before, after = (logits(LEARNED, weights(LEARNED), row) for row in (ids, changed))
    np.testing.assert_array_equal(before[:7], after[:7])
    assert (before[7:] != after[7:]).any(axis=1).all()


@pytest.mark.parametrize("config", [SEED, LEARNED, BARE], ids=["seed", "learned", "bare"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("temperature", [0, 1.5])
@pytest.mark.parametrize("length", [1, 5, 8, 30])
def test_the_cache_changes_no_token_also_past_the_context(
    config: DecoderConfig, dtype: str, temperature: float, length: int
) -> None:
    prompt = np.arange(length) % config.vocab
    cached, whole = (
        tokens(config, prompt, 60, temperature=temperature, dtype=dtype, cache=cache) for cache in (True, False)
    )
    assert cached == whole
    assert len(set(cached)) > (5 if temperature else 0)


@pytest.mark.parametrize("cache", [True, False])
def test_greedy_is_the_highest_logit_of_the_window_at_every_token(cache: bool) -> None:
    parameters = weights(LEARNED)
    expected = [3]
    for _ in range(30):
        window = np.array(expected[-LEARNED.context :])
        expected.append(int(np.argmax(logits(LEARNED, parameters, window)[-1])))
    assert tokens(LEARNED, [3], 30, temperature=0, cache=cache) == expected[1:]


def test_of_a_long_prompt_the_last_context_counts() -> None:
    long = np.arange(40) % 11
    assert tokens(LEARNED, long, 20) == tokens(LEARNED, long[-12:], 20)
    assert tokens(LEARNED, long, 20) != tokens(LEARNED, long[-11:], 20)


@pytest.mark.parametrize("temperature", [1e-4, 1e-30, 5e-324])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    assert tokens(LEARNED, [3], 30, temperature=temperature) == tokens(LEARNED, [3], 30, temperature=0)


def test_draws_follow_the_softmax_at_a_temperature() -> None:
    row, temperature = [1.0, -1.0, 3.0, 0.0], 2.0
    odds = np.exp(np.array(row) / temperature)
    rng = np.random.default_rng(0)
    choice = _Choice(temperature, None, None, None)
    counts = np.bincount([choice.draw(np.array(row), rng) for _ in range(20_000)], minlength=4)
    # Four standard deviations of a binomial share are below 0.0142 here.
    np.testing.assert_allclose(counts / 20_000, odds / odds.sum(), rtol=0, atol=0.0142)


def test_an_infinite_temperature_draws_all_alike_yet_ranks_by_logit() -> None:
    row = [5.0, -40.0, 7.0, 1.0]
    assert [choose(row, (k + 0.5) / 4, temperature=math.inf) for k in range(4)] == [2, 0, 3, 1]
    assert [choose(row, (k + 0.5) / 2, temperature=math.inf, top_k=2) for k in range(2)] == [2, 0]


def test_top_k_keeps_the_k_highest_and_of_equals_the_first() -> None:
    row = [1.0, 2.0, 2.0, 2.0, 0.0]
    assert {choose(row, value, top_k=2) for value in (0.0, 0.49, 0.51, BELOW_ONE)} == {1, 2}
    assert choose(row, BELOW_ONE, top_k=1) == 1
    assert tokens(LEARNED, [3], 30, top_k=1) == tokens(LEARNED, [3], 30, temperature=0)
    for more in (11, 12, 10**9):
        assert tokens(LEARNED, [3], 30, top_k=more) == tokens(LEARNED, [3], 30)


def test_top_p_keeps_the_fewest_tokens_that_reach_it() -> None:
    row = np.log([0.1, 0.5, 0.15, 0.25]).tolist()
    for top_p, last in [(0.0, 1), (1e-4, 1), (0.49, 1), (0.51, 3), (0.74, 3), (0.76, 2), (0.91, 0), (1.0, 0)]:
        assert choose(row, BELOW_ONE, top_p=top_p) == last
        assert choose(row, 0.0, top_p=top_p) == 1
    assert tokens(LEARNED, [3], 30, top_p=0.0) == tokens(LEARNED, [3], 30, temperature=0)
    assert tokens(LEARNED, [3], 30, top_p=1.0) == tokens(LEARNED, [3], 30)


def test_shares_end_where_the_next_begin() -> None:
    assert [choose([0.0, 0.0], value) for value in (0.0, math.nextafter(0.5, 0.0), 0.5, BELOW_ONE)] == [0, 0, 1, 1]
    assert choose([0.0, 0.0], BELOW_ONE, top_p=0.5) == 0
    assert choose([0.0, 0.0], BELOW_ONE, top_p=math.nextafter(0.5, 1.0)) == 1


def test_top_p_counts_within_top_k() -> None:
    row = np.log([0.4, 0.3, 0.2, 0.1]).tolist()
    # Of the first two, 0.4 is 4/7: enough for 0.5, as it is not of all four.
    assert choose(row, BELOW_ONE, top_p=0.5, top_k=2) == 0
    assert choose(row, BELOW_ONE, top_p=0.5) == 1


@pytest.mark.parametrize("value", [0.0, 0.5, BELOW_ONE])
def test_a_token_without_any_odds_is_never_drawn(value: float) -> None:
    assert choose([-1e9, 0.0, -1e9], value) == 1
    assert choose([-3e38, 3e38, -3e38], value) == 1


def test_only_ids_below_vocab_are_drawn() -> None:
    assert choose([0.0, 1.0, 50.0], 0.5, temperature=0, vocab=2) == 1
    assert choose([0.0, 1.0, 50.0], BELOW_ONE, vocab=2) == 0
    assert set(tokens(LEARNED, [0], 200, temperature=math.inf, vocab=4)) == {0, 1, 2, 3}
    assert max(tokens(LEARNED, [0], 200, temperature=math.inf)) == 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": -0.1}, r"temperature is -0\.1"),
        ({"top_k": 0}, "top-k is 0: give at least 1, or leave it out"),
        ({"top_k": -3}, "top-k is -3"),
        ({"top_p": -0.1}, r"top-p is -0\.1"),
        ({"top_p": 1.1}, r"top-p is 1\.1"),
        ({"top_p": math.nan}, "top-p is nan"),
        ({"count": -1}, "tokens are -1"),
        ({"prompt_ids": []}, "no tokens"),
        ({"prompt_ids": [3, 11]}, "prompt: id 11 at index 1 is outside the vocabulary of 11"),
        ({"prompt_ids": [-1]}, "prompt: id -1 at index 0"),
    ],
)
def test_bad_options_are_refused_before_anything_is_drawn(options: dict[str, Any], message: str) -> None:
    given = {"prompt_ids": [3], "count": 5, "rng": np.random.default_rng(0)} | options
    given["prompt_ids"] = np.array(given["prompt_ids"], np.int32)
    with pytest.raises(InputError, match=message):
        generate(LEARNED, weights(LEARNED), **given)


@pytest.mark.parametrize("count", [0, 13])
def test_logits_need_one_to_context_ids(count: int) -> None:
    with pytest.raises(InputError, match=rf"{count} ids do not fit the context: give 1 to 12"):
        logits(LEARNED, weights(LEARNED), np.zeros(count, np.int32))


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_logits_that_are_not_finite_stop_the_text(value: float) -> None:
    parameters = weights(LEARNED)
    parameters["final.ln.weight"][:] = value
    with pytest.raises(NonFinite, match="a logit after 1 tokens is not finite"):
        tokens(LEARNED, [3], 5, parameters=parameters)


def test_zero_temperature_draws_no_random_number() -> None:
    rng = np.random.default_rng(0)
    tokens(LEARNED, [3], 5, temperature=0, rng=rng)
    assert rng.random() == np.random.default_rng(0).random()


@pytest.mark.parametrize(("text", "expected"), [("b\na", [0]), ("ab", [0]), ("\t\n", [1])])
def test_an_empty_prompt_begins_a_line_or_starts_from_id_0(text: str, expected: list[int]) -> None:
    assert start_ids(CharTokenizer.from_text(text)).tolist() == expected


def test_an_empty_prompt_is_a_newline_that_is_not_shown() -> None:
    assert start_ids(ByteTokenizer()).tolist() == [10]
    tokenizer = CharTokenizer.from_text("\nabcdefghij")
    parameters = weights(LEARNED)
    assert "\n" + sample_text(LEARNED, parameters, tokenizer, "", 20) == sample_text(
        LEARNED, parameters, tokenizer, "\n", 20
    )


def test_sample_text_continues_the_prompt_and_is_a_function_of_its_seed() -> None:
    tokenizer, parameters = CharTokenizer.from_text("abcdefghijk"), weights(LEARNED)
    texts = [sample_text(LEARNED, parameters, tokenizer, "kid", 40, temperature=2, seed=seed) for seed in (0, 0, 1)]
    assert [len(text) for text in texts] == [43] * 3
    assert all(text.startswith("kid") for text in texts)
    assert texts[0] == texts[1] != texts[2]
    assert sample_text(LEARNED, parameters, tokenizer, "kid", 0) == "kid"


def test_sample_text_never_draws_what_its_tokenizer_cannot_read() -> None:
    tokenizer = CharTokenizer.from_text("abc")
    text = sample_text(LEARNED, weights(LEARNED), tokenizer, "a", 100, temperature=math.inf)
    assert set(text) == set("abc")


def test_bytes_of_one_character_may_come_from_prompt_and_decoder_alike() -> None:
    config = replace(LEARNED, vocab=256)
    text = sample_text(config, weights(config), ByteTokenizer(), "漢é", 30, temperature=3)
    assert text.startswith("漢é")


def test_an_unknown_character_of_the_prompt_is_named() -> None:
    with pytest.raises(InputError) as caught:
        sample_text(LEARNED, weights(LEARNED), CharTokenizer.from_text("abc"), "ab?c", 5)
    for part in ("prompt", "'?'", "U+003F", "position 2", "3 ids", "--tokenizer byte"):
        assert part in str(caught.value)
