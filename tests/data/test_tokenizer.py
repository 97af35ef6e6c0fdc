"""Round trips, the first unknown character, and tokenizers that come back from JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np
import pytest

from fastbp.base.errors import InputError
from fastbp.data.tokenizer import (
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    make_tokenizer,
    require_ids_below,
    tokenizer_from_json,
)

# One to four bytes of UTF-8, a NUL, a combining mark, and characters that look like line ends.
MIXED = "b\0aÿ\u0301é\u2028漢字😀\U0010ffff\n\r\x85 a"
PIECE = 1 << 16


@pytest.mark.parametrize("kind", ["char", "byte"])
@pytest.mark.parametrize("text", [MIXED, "x", "<|endoftext|>", MIXED * 9000])
def test_decode_undoes_encode(kind: str, text: str) -> None:
    tokenizer = make_tokenizer(kind, text)
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32
    assert ids.min() >= 0
    assert ids.max() < tokenizer.vocab
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids.tolist()) == text


@pytest.mark.parametrize("kind", ["char", "byte"])
def test_the_empty_text_is_the_empty_row(kind: str) -> None:
    tokenizer = make_tokenizer(kind, "abc")
    assert tokenizer.encode("").shape == (0,)
    assert tokenizer.encode("").dtype == np.int32
    assert tokenizer.decode([]) == ""
    assert tokenizer.unknown("") is None


def test_char_ids_follow_the_code_points() -> None:
    tokenizer = CharTokenizer.from_text("hello 😀 é")
    assert tokenizer.characters == " ehloé😀"
    assert tokenizer.vocab == 7
    assert tokenizer.encode("😀he ").tolist() == [6, 2, 1, 0]


def test_byte_ids_are_the_bytes_of_utf8() -> None:
    assert ByteTokenizer().encode("é😀").tolist() == [0xC3, 0xA9, 0xF0, 0x9F, 0x98, 0x80]
    assert ByteTokenizer().vocab == 256


def test_bytes_that_are_not_utf8_are_shown_as_the_replacement_character() -> None:
    assert ByteTokenizer().decode([97, 0xFF, 98, 0xF0, 0x9F]) == "a\ufffdb\ufffd"


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("d", ("d", 0)),
        ("abcd", ("d", 3)),
        ("ab😀d", ("😀", 2)),  # past the largest code point of the vocabulary
        ("abÆ", ("Æ", 2)),  # its code point is that of "a" plus the length of the look-up table
        ("ab\0", ("\0", 2)),
        ("a" * PIECE + "d", ("d", PIECE)),
        ("a" * (2 * PIECE - 1) + "d" + "e" * 9, ("d", 2 * PIECE - 1)),
        ("a\udcff", ("\udcff", 1)),
        ("cab", None),
    ],
)
def test_char_unknown(text: str, unknown: tuple[str, int] | None) -> None:
    assert CharTokenizer.from_text("abc").unknown(text) == unknown


def test_char_encode_names_the_unknown_character_where_it_is_and_the_way_out() -> None:
    with pytest.raises(InputError) as caught:
        CharTokenizer.from_text("abc").encode("ab\u2019c")
    message = str(caught.value)
    for part in ("'\u2019'", "U+2019", "position 2", "3 characters", "--tokenizer byte"):
        assert part in message


def test_byte_encode_refuses_only_lone_surrogates() -> None:
    # What Python makes of an argument that is not UTF-8.
    assert ByteTokenizer().unknown("é\udcff") == ("\udcff", 1)
    assert ByteTokenizer().unknown(MIXED) is None
    with pytest.raises(InputError, match=r"'\\udcff' \(U\+DCFF\) at position 1"):
        ByteTokenizer().encode("é\udcff")


@pytest.mark.parametrize(
    ("ids", "part"),
    [
        ([0, 3], "id 3 at index 1 is outside the vocabulary of 3 (0 to 2)"),
        ([0, 1, -1, 9], "id -1 at index 2"),
        ([2**40], f"id {2**40} at index 0"),
        ([2**70], "give a row of integers"),
        ([0.0], "float64"),
        ([True], "bool"),
        ([[0]], "shape (1, 1)"),
    ],
)
def test_decode_refuses_ids_outside_the_vocabulary(ids: Sequence[int], part: str) -> None:
    with pytest.raises(InputError) as caught:
        CharTokenizer.from_text("abc").decode(ids)
    assert part in str(caught.value)


@pytest.mark.parametrize("identity", [256, -1])
def test_byte_decode_does_not_wrap_around(identity: int) -> None:
    with pytest.raises(InputError, match=f"id {identity} at index 0 .* 256"):
        ByteTokenizer().decode([identity])


@pytest.mark.parametrize("tokenizer", [CharTokenizer.from_text(MIXED), ByteTokenizer()])
def test_a_tokenizer_survives_json(tokenizer: Tokenizer) -> None:
    again = tokenizer_from_json(json.loads(json.dumps(tokenizer.to_json())))
    assert again == tokenizer
    assert type(again) is type(tokenizer)
    assert again.fingerprint() == tokenizer.fingerprint()


def test_the_fingerprint_is_the_hash_of_canonical_json() -> None:
    expected = hashlib.sha256(rb'{"characters":"a\u00e9","kind":"char"}').hexdigest()
    assert CharTokenizer("aé").fingerprint() == expected
    assert ByteTokenizer().fingerprint() == hashlib.sha256(b'{"kind":"byte"}').hexdigest()


def test_other_characters_other_fingerprint() -> None:
    assert CharTokenizer("ab").fingerprint() != CharTokenizer("ac").fingerprint()


@pytest.mark.parametrize(
    "form",
    [
        None,
        [],
        {},
        {"kind": "bpe"},
        {"kind": None},
        {"kind": "char"},
        {"kind": "char", "characters": 5},
        {"kind": "char", "characters": ["a", "b"]},
        {"kind": "char", "characters": ""},
        {"kind": "char", "characters": "ba"},
        {"kind": "char", "characters": "aab"},
        {"kind": "char", "characters": "a\ud800"},
        {"kind": "char", "characters": "ab", "vocab": 65},
        {"kind": "byte", "characters": "ab"},
    ],
)
def test_json_that_describes_no_tokenizer(form: object) -> None:
    with pytest.raises(InputError):
        tokenizer_from_json(form)


def test_from_json_of_the_other_kind() -> None:
    with pytest.raises(InputError):
        CharTokenizer.from_json({"kind": "byte", "characters": "ab"})
    with pytest.raises(InputError):
        ByteTokenizer.from_json({"kind": "char"})


def test_no_vocabulary_without_text() -> None:
    with pytest.raises(InputError, match="the text is empty"):
        make_tokenizer("char", "")


def test_unknown_kind_suggests_the_nearest_and_lists_all() -> None:
    with pytest.raises(InputError, match=r"'chars' \(did you mean 'char'\?\); .* char, byte"):
        make_tokenizer("chars", "abc")


@pytest.mark.parametrize(
    ("ids", "where"),
    [
        (np.array([0, 63, 64], np.uint16), "id 64 at index 2"),
        (np.array([5, -1, 64], np.int64), "id -1 at index 1"),
        (np.array([5, 63, -1], np.int32), "id -1 at index 2"),
        (np.array([[1, 2], [3, 200]], np.uint8), "id 200 at index 3"),
    ],
)
def test_require_ids_below_names_the_first_id_outside(ids: np.ndarray, where: str) -> None:
    with pytest.raises(InputError) as caught:
        require_ids_below(ids, 64, "corpus.bin")
    assert f"corpus.bin: {where} is outside the vocabulary of 64 (0 to 63)" in str(caught.value)


def test_require_ids_below_accepts_both_ends_and_nothing_at_all() -> None:
    require_ids_below(np.array([0, 63], np.int32), 64)
    require_ids_below(np.array([], np.int32), 64)
