"""Text to token ids and back, by characters or by UTF-8 bytes.

No token is special and nothing is added or dropped: decode(encode(text)) == text. A tokenizer is
its JSON form; `fingerprint` is a hash of that, by which a snapshot knows its own tokenizer again.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fastbp.base.errors import InputError, nearest

Ids = npt.NDArray[np.int32]
AnyIds = npt.NDArray[np.integer[Any]]

# Characters encoded at a time: the UTF-32 form of a piece stays in cache (4 bytes a character).
_PIECE_CHARACTERS = 1 << 16


class Tokenizer(ABC):
    """What every tokenizer can do. `kind` names it in files and on the command line."""

    kind: ClassVar[str]

    @property
    @abstractmethod
    def vocab(self) -> int:
        """The number V of ids; each id lies in [0, V)."""

    @abstractmethod
    def encode(self, text: str) -> Ids:
        """Return the ids of `text`; InputError names the first character that has none."""

    @abstractmethod
    def decode(self, ids: Sequence[int] | AnyIds) -> str:
        """Return the text of `ids`; InputError names the first id outside the vocabulary."""

    @abstractmethod
    def unknown(self, text: str) -> tuple[str, int] | None:
        """Return the first character that has no id and its position, or None."""

    @abstractmethod
    def to_json(self) -> dict[str, str]:
        """Return all that makes this tokenizer, ready for `json.dumps`."""

    def fingerprint(self) -> str:
        """Return the SHA-256 of the JSON form with sorted keys and no spaces, hexadecimal."""
        canonical = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode("ascii")).hexdigest()


@dataclass(frozen=True)
class CharTokenizer(Tokenizer):
    """One id a character: id i stands for `characters[i]`, in rising order of code points.

    Raises InputError for characters that are none, out of order, doubled, or lone surrogates.
    """

    kind: ClassVar[str] = "char"

    characters: str

    def __post_init__(self) -> None:
        if not self.characters:
            raise InputError("a char tokenizer needs at least one character; the text is empty")
        if sorted(set(self.characters)) != list(self.characters):
            raise InputError("the characters of a char tokenizer are not in rising order, each once")
        surrogate = _first_surrogate(self.characters)
        if surrogate is not None:
            raise InputError(_no_id(surrogate, "is half a character; give valid Unicode text"))

    @classmethod
    def from_text(cls, text: str) -> CharTokenizer:
        """Return the tokenizer of the distinct characters of `text`."""
        return cls("".join(sorted(set(text))))

    @classmethod
    def from_json(cls, form: Mapping[str, object]) -> CharTokenizer:
        """Return the tokenizer that `to_json` described; InputError for any other content."""
        characters = form.get("characters")
        if set(form) != {"kind", "characters"} or form["kind"] != cls.kind:
            raise InputError(f"tokenizer has the keys {sorted(form)}, not kind 'char', characters")
        if not isinstance(characters, str):
            raise InputError(f"tokenizer characters {characters!r:.40} are not a string")
        return cls(characters)

    @property
    def vocab(self) -> int:
        return len(self.characters)

    def encode(self, text: str) -> Ids:
        ids = self._look_up(text)
        unknown = _first_below_zero(text, ids)
        if unknown is not None:
            way_out = (
                f"is not one of the {self.vocab} characters of the vocabulary; leave it out, "
                "or train with --tokenizer byte, which takes any text"
            )
            raise InputError(_no_id(unknown, way_out))
        return ids

    def unknown(self, text: str) -> tuple[str, int] | None:
        return _first_below_zero(text, self._look_up(text))

    def decode(self, ids: Sequence[int] | AnyIds) -> str:
        known = _require_known(ids, self.vocab)
        return self._code_points[known].tobytes().decode("utf-32-le")

    def to_json(self) -> dict[str, str]:
        return {"kind": self.kind, "characters": self.characters}

    def _look_up(self, text: str) -> Ids:
        """Return the ids of `text`, -1 for each character that has none."""
        ids = np.empty(len(text), dtype=np.int32)
        for start in range(0, len(text), _PIECE_CHARACTERS):
            stop = start + _PIECE_CHARACTERS
            points = _to_code_points(text[start:stop])
            # "clip" sends all points past the table to its last entry, which is -1.
            np.take(self._ids_by_code_point, points, mode="clip", out=ids[start:stop])
        return ids

    @cached_property
    def _code_points(self) -> npt.NDArray[np.uint32]:
        return _to_code_points(self.characters)

    @cached_property
    def _ids_by_code_point(self) -> Ids:
        table = np.full(int(self._code_points[-1]) + 2, -1, dtype=np.int32)
        table[self._code_points] = np.arange(self.vocab, dtype=np.int32)
        return table


@dataclass(frozen=True)
class ByteTokenizer(Tokenizer):
    """One id a byte of UTF-8: 256 ids, so any text has ids and no vocabulary is learned.

    A model may well write bytes that are not UTF-8; `decode` shows each such stretch as U+FFFD.
    """

    kind: ClassVar[str] = "byte"

    @classmethod
    def from_json(cls, form: Mapping[str, object]) -> ByteTokenizer:
        """Return the tokenizer that `to_json` described; InputError for any other content."""
        if dict(form) != {"kind": cls.kind}:
            raise InputError(f"tokenizer has the keys {sorted(form)}, not only kind 'byte'")
        return cls()

    @property
    def vocab(self) -> int:
        return 256

    def encode(self, text: str) -> Ids:
        unknown = self.unknown(text)
        if unknown is not None:
            raise InputError(_no_id(unknown, "is half a character; give valid Unicode text"))
        return np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(np.int32)

    def unknown(self, text: str) -> tuple[str, int] | None:
        return _first_surrogate(text)

    def decode(self, ids: Sequence[int] | AnyIds) -> str:
        known = _require_known(ids, self.vocab)
        return known.astype(np.uint8).tobytes().decode("utf-8", errors="replace")

    def to_json(self) -> dict[str, str]:
        return {"kind": self.kind}


def make_tokenizer(kind: str, text: str) -> Tokenizer:
    """Return the tokenizer called `kind` for `text`; InputError lists the kinds."""
    if kind == CharTokenizer.kind:
        return CharTokenizer.from_text(text)
    if kind == ByteTokenizer.kind:
        return ByteTokenizer()
    raise InputError(_unknown_kind(kind))


def tokenizer_from_json(form: object) -> Tokenizer:
    """Return the tokenizer of any kind that `to_json` described; InputError for other content."""
    if not isinstance(form, Mapping):
        raise InputError(f"tokenizer {form!r:.40} is not a JSON object with a kind")
    kind = form.get("kind")
    if kind == CharTokenizer.kind:
        return CharTokenizer.from_json(form)
    if kind == ByteTokenizer.kind:
        return ByteTokenizer.from_json(form)
    raise InputError(_unknown_kind(str(kind)))


def require_ids_below(ids: AnyIds, vocab: int, name: str = "tokens") -> None:
    """Raise InputError unless every id lies in [0, vocab); it names the first that does not."""
    if ids.size == 0 or (int(ids.min()) >= 0 and int(ids.max()) < vocab):
        return
    index = int(np.argmax((ids < 0) | (ids >= vocab)))
    raise InputError(
        f"{name}: id {int(ids.flat[index])} at index {index} is outside the vocabulary of "
        f"{vocab} (0 to {vocab - 1}); use the tokenizer that made these ids"
    )


def _require_known(ids: Sequence[int] | AnyIds, vocab: int) -> AnyIds:
    array = np.asarray(ids)
    if array.size == 0:
        return np.empty(0, dtype=np.int32)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise InputError(f"ids are {array.dtype} of shape {array.shape}; give a row of integers")
    require_ids_below(array, vocab, "ids")
    return array


def _to_code_points(text: str) -> npt.NDArray[np.uint32]:
    # A lone surrogate has a code point too; it is for the caller to refuse it.
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def _first_below_zero(text: str, ids: Ids) -> tuple[str, int] | None:
    if ids.size == 0 or int(ids.min()) >= 0:
        return None
    position = int(np.argmax(ids < 0))
    return text[position], position


def _first_surrogate(text: str) -> tuple[str, int] | None:
    """Return the first lone surrogate and its position: what no UTF-8 file can hold.

    Python reads an argument or a file name that is not UTF-8 as such characters.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return text[error.start], error.start
    return None


def _no_id(unknown: tuple[str, int], way_out: str) -> str:
    character, position = unknown
    return f"character {character!r} (U+{ord(character):04X}) at position {position} {way_out}"


def _unknown_kind(kind: str) -> str:
    kinds = (CharTokenizer.kind, ByteTokenizer.kind)
    return f"unknown tokenizer {kind!r}{nearest(kind, kinds)}; use one of {', '.join(kinds)}"
