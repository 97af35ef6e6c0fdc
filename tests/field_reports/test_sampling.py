"""What went wrong for others when they sampled from what they had trained, each with its public report."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastbp.base.errors import InputError
from fastbp.data.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer
from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import parameter_shapes
from fastbp.train.sample import generate, sample_text
from fastbp.train.snapshot import Snapshot, load_snapshot, require_same_tokenizer, save_snapshot

CONFIG = DecoderConfig(2, 32, 4, 64, 16, 19)
TOKENIZER = CharTokenizer.from_text("abc efghijklmnopqr\n")


def weights(config: DecoderConfig = CONFIG, seed: int = 0) -> dict[str, np.ndarray]:
    """Norms with signs: else the tied head makes greedy text one token for ever."""
    rng = np.random.default_rng(seed)
    return {
        name: ((0.1 if name.endswith("bias") else 0.5) * rng.standard_normal(shape)).astype(np.float32)
        for name, shape in parameter_shapes(config).items()
    }


def draw(count: int = 40, **options: Any) -> list[int]:
    rng = np.random.default_rng(5)
    return list(generate(CONFIG, weights(), np.array([3, 1, 4]), count, rng=rng, **options))


def snapshot(tokenizer: Tokenizer = TOKENIZER) -> Snapshot:
    return Snapshot(CONFIG, tokenizer, 7, {}, {}, weights())


def test_a_prompt_with_a_character_that_was_not_in_the_corpus() -> None:
    """nanoGPT #434: the prompt "d" on a corpus without d died of "KeyError: 'd'"."""
    with pytest.raises(InputError) as caught:
        sample_text(CONFIG, weights(), TOKENIZER, "and", 5)
    for part in ("'d'", "position 2", "vocabulary of 19"):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_tokenizer_than_the_run_was_trained_with() -> None:
    """nanoGPT #169: with the wrong tokenizer beside the weights, sampling died of "KeyError: 271"."""
    require_same_tokenizer(snapshot(), CharTokenizer.from_text("abc efghijklmnopqr\n"))
    for other in (CharTokenizer.from_text("abd efghijklmnopqr\n"), ByteTokenizer()):
        with pytest.raises(InputError, match="another tokenizer"):
            require_same_tokenizer(snapshot(), other)


def test_a_tokenizer_that_was_put_into_a_snapshot_afterwards(tmp_path: Path) -> None:
    """nanoGPT #169 again, the file exchanged on disk: as many ids, other meanings."""
    path = save_snapshot(tmp_path, snapshot())
    manifest = json.loads((path / "snapshot.json").read_text())
    manifest["tokenizer"]["characters"] = "\n abdefghijklmnopqr"
    (path / "snapshot.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"snapshot\.json was changed after it was written"):
        load_snapshot(path)


def test_ids_that_the_decoder_knows_and_the_tokenizer_does_not() -> None:
    """nanoGPT #169, #422: a vocabulary padded to 50304 draws ids that no tokenizer can read."""
    tokenizer = CharTokenizer.from_text("abc")
    text = sample_text(CONFIG, weights(), tokenizer, "a", 300, temperature=math.inf)
    assert set(text) == {"a", "b", "c"}


def test_temperature_zero_takes_the_likeliest_token() -> None:
    """nanoGPT #738, #739, #756, #546: temperature 0 divided by it, and gave inf, NaN or always token 0."""
    greedy = draw(temperature=0)
    assert greedy == draw(temperature=0.0, top_k=3, top_p=0.5)
    assert len(set(greedy)) > 3
    assert greedy == draw(top_k=1)


@pytest.mark.parametrize("temperature", [1e-4, 1e-30, 1e-300, 5e-324])
def test_a_temperature_next_to_zero(temperature: float) -> None:
    """vllm #1623, #2937, bark #270: logits over a tiny temperature overflowed to inf, their softmax to NaN."""
    assert draw(temperature=temperature) == draw(temperature=0)


def test_an_infinite_temperature_and_one_that_is_none() -> None:
    """nanoGPT #738 and the like, the other end: all tokens alike; NaN and negative are refused."""
    assert set(draw(600, temperature=math.inf)) == set(range(CONFIG.vocab))
    for temperature in (math.nan, -1.0, -math.inf):
        with pytest.raises(InputError, match="temperature is"):
            draw(temperature=temperature)


def test_top_p_and_top_k_at_their_ends() -> None:
    """vllm #1623, ggml #37: top-p near 0 kept no token at all; top-k 0 or over the vocabulary crashed."""
    greedy, free = draw(temperature=0), draw()
    assert draw(top_p=0.0) == greedy
    assert draw(top_p=1e-4) == greedy
    assert draw(top_p=1.0) == free
    assert draw(top_k=CONFIG.vocab) == draw(top_k=CONFIG.vocab + 1) == draw(top_k=10**9) == free
    with pytest.raises(InputError, match="top-k is 0"):
        draw(top_k=0)


@pytest.mark.parametrize("seed", range(3))
def test_the_cache_changes_no_token(seed: int) -> None:
    """x-transformers #219, torchtune #959, transformers #36536, nanoGPT #613, LLMs-from-scratch #1048.

    Their caches changed the text, most of them once the context was full: 200 tokens at context 16, greedy and drawn.
    """
    parameters, prompt = weights(seed=seed), np.arange(5) + seed
    for temperature in (0.0, 1.0):
        cached, whole = (
            list(
                generate(
                    CONFIG, parameters, prompt, 200, temperature=temperature, rng=np.random.default_rng(1), cache=cache
                )
            )
            for cache in (True, False)
        )
        assert cached == whole
        assert len(cached) == 200
        assert len(set(cached)) > 2
