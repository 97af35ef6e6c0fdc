"""From text to batches of token ids: corpus, tokenizer, batches."""

from __future__ import annotations

from fastbp.data.batches import Batches, EvaluationWindows, Split, split
from fastbp.data.corpus import Corpus, embedded_corpus, load_corpus
from fastbp.data.tokenizer import (
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    make_tokenizer,
    require_ids_below,
    tokenizer_from_json,
)

__all__ = [
    "Batches",
    "ByteTokenizer",
    "CharTokenizer",
    "Corpus",
    "EvaluationWindows",
    "Split",
    "Tokenizer",
    "embedded_corpus",
    "load_corpus",
    "make_tokenizer",
    "require_ids_below",
    "split",
    "tokenizer_from_json",
]
