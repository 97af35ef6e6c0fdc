"""Reading text: the rule for line ends, joining, and every file that cannot be used."""

from __future__ import annotations

import hashlib
import os
import sys
import types
from collections.abc import Sequence
from pathlib import Path

import pytest

from fastbp.base.errors import InputError
from fastbp.data.corpus import embedded_corpus, load_corpus


def write(directory: Path, data: bytes, name: str = "a.txt") -> Path:
    path = directory / name
    path.write_bytes(data)
    return path


def error_of(paths: str | Path | Sequence[str | Path]) -> str:
    with pytest.raises(InputError) as caught:
        load_corpus(paths)
    message = str(caught.value)
    assert "\n" not in message
    assert "; " in message  # what to do
    return message


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"a\nb\n", "a\nb\n"),
        (b"a\r\nb\r\n", "a\nb\n"),
        (b"a\rb\r", "a\nb\n"),
        (b"a\r\r\n\n\rb", "a\n\n\n\nb"),
        (b"\xef\xbb\xbfa", "a"),
        (b"\xef\xbb\xbf\xef\xbb\xbfa", "\ufeffa"),
        (b"a\xef\xbb\xbfb", "a\ufeffb"),
        (b" \t a \x00\x0b\x0c\x1f\xc2\x85\xe2\x80\xa8 ", " \t a \x00\x0b\x0c\x1f\x85\u2028 "),
        ("né 漢字 😀".encode(), "né 漢字 😀"),
        (b"\n", "\n"),
        (b"x", "x"),
    ],
)
def test_line_ends_and_byte_order_mark_change_and_nothing_else(tmp_path: Path, data: bytes, text: str) -> None:
    corpus = load_corpus([write(tmp_path, data)])
    assert corpus.text == text
    assert corpus.source_bytes == len(data)
    assert corpus.sha256 == hashlib.sha256(text.encode()).hexdigest()


def test_files_are_joined_in_the_order_given_with_one_line_end(tmp_path: Path) -> None:
    one = write(tmp_path, b"\xef\xbb\xbfone\r", "1.txt")
    two = write(tmp_path, b"\xef\xbb\xbftwo", "2.txt")
    corpus = load_corpus([two, str(one), two])
    assert corpus.text == "two\none\n\ntwo"
    assert corpus.source_bytes == 6 + 7 + 6
    assert corpus.name == f"{two} and 2 more"


def test_one_path_needs_no_list(tmp_path: Path) -> None:
    path = write(tmp_path, b"text")
    assert load_corpus(path) == load_corpus(str(path)) == load_corpus([path])
    assert load_corpus(path).name == str(path)


def test_printing_a_corpus_does_not_print_the_text(tmp_path: Path) -> None:
    assert "secret" not in repr(load_corpus(write(tmp_path, b"secret")))


def test_no_file(tmp_path: Path) -> None:
    assert "no text file given" in error_of([])


def test_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "nowhere.txt"
    assert f"{str(path)!r} does not exist" in error_of([path])


def test_directory(tmp_path: Path) -> None:
    assert f"{str(tmp_path)!r} is a directory" in error_of([tmp_path])


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="needs a device that never ends")
def test_device() -> None:
    assert "'/dev/zero' is a device" in error_of(["/dev/zero"])


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, b"text")

    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(self))

    # Taking the permission away would not stop a superuser.
    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert f"{str(path)!r} cannot be read (Permission denied)" in error_of([path])


def test_file_below_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, b"text")
    assert "cannot be read (Not a directory)" in error_of([path / "b.txt"])


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b"])
def test_impossible_names(name: str) -> None:
    assert "cannot be read" in error_of([name])


def test_a_name_with_a_line_end_keeps_the_message_on_one_line(tmp_path: Path) -> None:
    assert "a\\nb" in error_of([tmp_path / "a\nb"])


def test_empty_file_among_others(tmp_path: Path) -> None:
    full, empty = write(tmp_path, b"text"), write(tmp_path, b"", "empty.txt")
    assert f"{str(empty)!r} is empty (0 bytes)" in error_of([full, empty])


def test_only_a_byte_order_mark(tmp_path: Path) -> None:
    assert "only a byte-order mark" in error_of([write(tmp_path, b"\xef\xbb\xbf")])


@pytest.mark.parametrize(
    ("data", "where"),
    [
        (b"caf\xe9 au lait", "byte 0xe9 at offset 3"),
        (b"\xef\xbb\xbf\r\n\r\n\xff", "byte 0xff at offset 7"),
        (b"cut off \xe2\x82", "byte 0xe2 at offset 8"),
        (b"surrogate \xed\xa0\x80", "byte 0xed at offset 10"),
        (b"overlong \xc0\xaf", "byte 0xc0 at offset 9"),
    ],
)
def test_invalid_utf8_names_the_byte_and_its_offset_on_disk(tmp_path: Path, data: bytes, where: str) -> None:
    message = error_of([write(tmp_path, data)])
    assert f"is not UTF-8: {where}; " in message
    assert "iconv -f LATIN1 -t UTF-8" in message


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
def test_utf16_is_recognised(tmp_path: Path, codec: str) -> None:
    message = error_of([write(tmp_path, "\ufefftext".encode(codec))])
    assert "at offset 0" in message
    assert "iconv -f UTF-16 -t UTF-8" in message


def test_embedded_corpus_is_the_language_reference() -> None:
    corpus = embedded_corpus()
    assert 400_000 < len(corpus.text) < 1_000_000
    assert 'The "assert" statement\n' in corpus.text
    assert corpus.text.index('The "assert" statement\n***') < corpus.text.index('The "while" statement\n***')
    assert "\r" not in corpus.text
    assert corpus.source_bytes == len(corpus.text.encode())
    assert corpus.sha256 == embedded_corpus().sha256


def test_embedded_topics_are_joined_in_key_order_by_a_blank_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = types.ModuleType("pydoc_data.topics")
    vars(module)["topics"] = {"b": "second\n", "a": "\nfirst\r\nline\n\n", "c": "third"}
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", module)
    assert embedded_corpus().text == "first\nline\n\nsecond\n\nthird\n"


@pytest.mark.parametrize("topics", [None, {}, "text"])
def test_a_python_without_the_language_reference(monkeypatch: pytest.MonkeyPatch, topics: object) -> None:
    module = types.ModuleType("pydoc_data.topics")
    vars(module)["topics"] = topics
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", module)
    with pytest.raises(InputError, match=r"no pydoc_data\.topics .*; name a text file"):
        embedded_corpus()


def test_a_python_without_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(InputError, match="name a text file"):
        embedded_corpus()
