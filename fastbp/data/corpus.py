"""The text that a model is trained on: files, or the language reference inside CPython.

The rule for text: a file is UTF-8. One leading byte-order mark is dropped, CRLF and lone CR become
LF, and nothing else changes. Several files are joined in the order given with one LF between them.
A string such as "<|endoftext|>" is text like any other.
"""

from __future__ import annotations

import codecs
import hashlib
import importlib
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from platform import python_version

from fastbp.base.errors import InputError


@dataclass(frozen=True)
class Corpus:
    """A named text.

    source_bytes: bytes read, before the byte-order mark and the line ends were normalised.
    sha256: of the normalised text in UTF-8, hexadecimal; two corpora with it equal train alike.
    """

    name: str
    text: str = field(repr=False)
    source_bytes: int
    sha256: str


def load_corpus(paths: str | Path | Sequence[str | Path]) -> Corpus:
    """Read one text file or several.

    Raises InputError for no file at all and for a file that is missing, a directory, unreadable,
    empty, nothing but a byte-order mark, or not UTF-8 (with the offset in the file as it is on
    disk, byte-order mark and line ends included).
    """
    files = [Path(path) for path in ((paths,) if isinstance(paths, str | Path) else paths)]
    if not files:
        raise InputError("no text file given; name at least one")
    sources = [_read(path) for path in files]
    texts = [_decode(path, data) for path, data in zip(files, sources, strict=True)]
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return _corpus(f"{files[0]}{more}", "\n".join(texts), sum(map(len, sources)))


def embedded_corpus() -> Corpus:
    """Return the Python language reference that ships in CPython: about 465 kB of English prose.

    It is `pydoc_data.topics`: the topics in the order of their keys, one blank line between two.
    Each version of Python words it anew, so the name holds the version. Raises InputError where
    Python was installed without it.
    """
    try:
        # Half a megabyte that only this function wants, and that some installations leave out.
        topics = importlib.import_module("pydoc_data.topics").topics
    except (ImportError, AttributeError):
        topics = None
    if not isinstance(topics, Mapping) or not topics:
        raise InputError("this Python ships no pydoc_data.topics to train on; name a text file")
    joined = "\n\n".join(str(topics[key]).strip("\n") for key in sorted(topics)) + "\n"
    name = f"pydoc_data.topics of Python {python_version()}"
    return _corpus(name, _normalise(joined), len(joined.encode()))


def _corpus(name: str, text: str, source_bytes: int) -> Corpus:
    return Corpus(name, text, source_bytes, hashlib.sha256(text.encode()).hexdigest())


def _read(path: Path) -> bytes:
    shown = repr(str(path))
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise InputError(f"{shown} is a directory; name the text files in it")
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            # A device such as /dev/zero never ends.
            raise InputError(f"{shown} is a device or socket, not a file; name a text file")
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{shown} does not exist; check the name and the directory") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{shown} cannot be read ({reason}); name a readable text file") from error
    if not data:
        raise InputError(f"{shown} is empty (0 bytes); name a file with text in it")
    return data


def _decode(path: Path, data: bytes) -> str:
    shown = repr(str(path))
    if data == codecs.BOM_UTF8:
        raise InputError(f"{shown} holds only a byte-order mark; name a file with text in it")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        is_utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        raise InputError(
            f"{shown} is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}; "
            f"convert it, for example: iconv -f {'UTF-16' if is_utf16 else 'LATIN1'} -t UTF-8"
        ) from error
    return _normalise(text.removeprefix("\ufeff"))


def _normalise(text: str) -> str:
    # CRLF goes first: the other way round it would become two line ends.
    return text.replace("\r\n", "\n").replace("\r", "\n")
