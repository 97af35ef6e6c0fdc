"""What went wrong for others on the way from a text to a batch, each with its public report."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fastbp
from fastbp.base.errors import InputError
from fastbp.data import (
    Batches,
    EvaluationWindows,
    embedded_corpus,
    load_corpus,
    make_tokenizer,
    require_ids_below,
    split,
)


def write(directory: Path, data: bytes) -> Path:
    path = directory / "corpus.txt"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("kind", ["char", "byte"])
def test_text_shorter_than_the_context(tmp_path: Path, kind: str) -> None:
    """RWKV-PEFT #52: 18 samples at context 512 died of "ValueError: high <= 0"."""
    corpus = load_corpus([write(tmp_path, b"twenty characters !\n")])
    tokens = make_tokenizer(kind, corpus.text).encode(corpus.text)
    with pytest.raises(InputError) as caught:
        split(tokens, 64, name=corpus.name)
    for part in (str(tmp_path / "corpus.txt"), "20 tokens", "context 64", "65", "--context 19"):
        assert part in str(caught.value)


def test_the_shortest_texts(tmp_path: Path) -> None:
    """transformers #4037 (run_lm on GPT-2), autotrain #432, ru-gpts #15: num_samples=0."""
    with pytest.raises(InputError, match="empty"):
        load_corpus([write(tmp_path, b"")])
    for length in (1, 8):
        corpus = load_corpus([write(tmp_path, b"x" * length)])
        tokens = make_tokenizer("char", corpus.text).encode(corpus.text)
        with pytest.raises(InputError, match=rf"holds {length} tokens, .* at least 9"):
            split(tokens, 8)
    corpus = load_corpus([write(tmp_path, b"x" * 9)])  # context + 1: the first legal length
    parts = split(make_tokenizer("char", corpus.text).encode(corpus.text), 8)
    assert parts.shared
    inputs, targets = np.empty((2, 8), np.int32), np.empty((2, 8), np.int32)
    Batches(parts.train, 2, 8, seed=0).fill(0, 0, inputs, targets)
    assert EvaluationWindows(parts.valid, 2, 8, windows=4).fill(0, inputs, targets) == 1


@pytest.mark.parametrize("remainder", range(8))
def test_a_remainder_shorter_than_the_context(remainder: int) -> None:
    """transformers #18167, #18304, #15363 (group_texts): the last short group crashed mid-run.

    Training drops no remainder: every token but the first is the target of some window.
    Evaluation takes whole windows and leaves out fewer tokens than one.
    """
    tokens = np.arange(5 * 8 + remainder, dtype=np.int32)
    inputs, targets = np.empty((400, 8), np.int32), np.empty((400, 8), np.int32)
    Batches(tokens, 400, 8, seed=0).fill(0, 0, inputs, targets)
    assert set(targets.ravel().tolist()) == set(range(1, tokens.size))
    evaluation = EvaluationWindows(tokens, 400, 8, windows=400)
    assert evaluation.fill(0, inputs, targets) == evaluation.windows == (tokens.size - 1) // 8
    assert 0 <= tokens.size - 1 - evaluation.target_tokens < 8


def test_a_prompt_character_that_the_corpus_lacks() -> None:
    """nanoGPT #434: the prompt gave "KeyError: 'd'"."""
    tokenizer = make_tokenizer("char", "abc")
    assert tokenizer.unknown("abcd") == ("d", 3)
    with pytest.raises(InputError, match=r"'d' \(U\+0064\) at position 3 .* --tokenizer byte"):
        tokenizer.encode("abcd")


def test_ids_outside_the_vocabulary() -> None:
    """nanoGPT #483: "index out of range" on ids that another tokenizer had made."""
    with pytest.raises(InputError, match=r"train\.bin: id 64 at index 2 .* vocabulary of 64"):
        require_ids_below(np.array([0, 63, 64], np.uint16), 64, "train.bin")
    with pytest.raises(InputError, match="id -1 at index 0"):
        require_ids_below(np.array([-1], np.int64), 64)


LOCALE_PROGRAM = """
import sys
from fastbp.base.errors import InputError
from fastbp.data import load_corpus, make_tokenizer

corpus = load_corpus(sys.argv[1:])
for kind in ("char", "byte"):
    tokenizer = make_tokenizer(kind, corpus.text)
    assert tokenizer.decode(tokenizer.encode(corpus.text)) == corpus.text
try:
    make_tokenizer("char", "abc").encode(corpus.text)
except InputError as error:
    print(error, file=sys.stderr)
print(ascii(corpus.text))
"""


def test_emoji_and_chinese_in_an_ascii_locale(tmp_path: Path) -> None:
    """lad-gpt #1, textgenrnn #8, gpt-2 #52, gpt-2-tf2 #34: "charmap codec can't decode"."""
    text = "😀 漢字 naïve"
    path = write(tmp_path, text.encode())
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    repository = str(Path(fastbp.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", LOCALE_PROGRAM, str(path)],
        env=os.environ | ascii_only | {"PYTHONPATH": repository},
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode("ascii").strip() == ascii(text)
    assert b"(U+1F600) at position 0" in done.stderr


def test_all_three_line_ends(tmp_path: Path) -> None:
    """char-rnn #171: a file with CR alone was one line.

    All three become LF; an offset in an error still counts the bytes of the file on disk.
    """
    texts = {load_corpus([write(tmp_path, end.join([b"one", b"two", b""]))]).text for end in (b"\n", b"\r\n", b"\r")}
    assert texts == {"one\ntwo\n"}
    with pytest.raises(InputError, match="byte 0xff at offset 10;"):
        load_corpus([write(tmp_path, b"one\r\ntwo\r\n\xff")])


@pytest.mark.parametrize("kind", ["char", "byte"])
def test_the_end_of_text_mark_is_plain_text(kind: str) -> None:
    """LlamaFactory #370, ttok #13, zotero-mcp #188: "<|endoftext|>" in a text raised."""
    text = "before <|endoftext|> after"
    tokenizer = make_tokenizer(kind, text)
    ids = tokenizer.encode(text)
    assert ids.size == len(text)
    assert tokenizer.decode(ids) == text


def test_the_default_corpus_needs_no_download_and_no_other_tokenizer() -> None:
    """The way a first run goes: embedded text, characters, two parts."""
    corpus = embedded_corpus()
    tokenizer = make_tokenizer("char", corpus.text)
    parts = split(tokenizer.encode(corpus.text), 64)
    assert not parts.shared
    assert 50 < tokenizer.vocab < 256
