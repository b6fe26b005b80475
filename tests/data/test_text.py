"""Plain text: one sentence a line, a simple tokeniser, and one sentence for what is wrong."""

import gzip
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestruct.data import TextReader, tokenise
from nestruct.data.text import from_tokens
from nestruct.data.treebank import Reader
from nestruct.errors import InputError


def read(content: bytes, **options) -> list[tuple[str, ...]]:
    return [sentence.forms for sentence in TextReader(io.BytesIO(content), **options)]


def test_a_sentence_a_line_between_blanks():
    content = "\ufeffO  can\tladra .\r\n\n \t\nNon\n".encode()
    assert read(content) == [("O", "can", "ladra", "."), ("Non",)]
    assert read(b"last line") == [("last", "line")]
    assert read(b"") == []
    assert read(gzip.compress(content)) == read(content)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("It's 3.5 km, isn't it?", ["It's", "3.5", "km", ",", "isn't", "it", "?"]),
        ("(well-known) - l\u2019home", ["(", "well-known", ")", "-", "l\u2019home"]),
        ("1,000 or 10:30; etc.", ["1,000", "or", "10:30", ";", "etc", "."]),
        ("a.b 'x' snake_case", ["a", ".", "b", "'", "x", "'", "snake_case"]),
        ("cafe\u0301s \u0939\u093f\u0928\u094d\u0926\u0940", None),  # accents stay with letters
        ("你好。", ["你好", "。"]),
        ("\u00a0 \t", []),
    ],
)
def test_tokenise(text, tokens):
    assert tokenise(text) == (text.split() if tokens is None else tokens)


@given(st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"])))
def test_no_character_is_lost(text):
    assert "".join(tokenise(text)) == "".join(text.split())


def test_what_is_glued_in_the_text_is_so_in_conllu():
    (sentence,) = TextReader(io.BytesIO(b"\nNo, it barks.\n"), split="tokenise")
    lines = bytes(sentence).decode().splitlines()
    assert lines[:2] == ["# sent_id = 2", "# text = No, it barks."]
    assert [line.split("\t")[-1] for line in lines[2:-1]] == [
        *("SpaceAfter=No", "_", "_", "SpaceAfter=No", "_"),
    ]
    (again,) = Reader(io.BytesIO(bytes(sentence)), trees=False)
    assert again.forms == sentence.forms
    assert again.places == sentence.places


def test_a_word_with_a_blank_in_it():
    sentence = from_tokens(["10 000", "km"], 1, "10 000 km")
    assert sentence.forms == ("10 000", "km")


BAD = [
    (b"a \x1b[31m\n", "control character U[+]001B"),
    (b"a\0b\n", "control character U[+]0000"),
    ("a \u2028b\n".encode(), "control character U[+]2028"),
    (b"caf\xe9\n", "not UTF-8 [(]byte 0xe9[)]"),
    (b"a " * 21 + b"\n", "21 words, more than 20 [(]max_words[)]"),
    (b"a" * 70_000 + b"\n", "more than 20 kB: one sentence a line"),
    ("\u00a0 a\n".encode(), "a word is blank"),
]


@pytest.mark.parametrize(("content", "message"), BAD)
def test_one_sentence_for_a_bad_line(content, message):
    with pytest.raises(InputError, match=message) as caught:
        read(b"good\n" + content + b"good\n", max_words=20)
    assert "file, line 2: " in str(caught.value)
    reader = TextReader(io.BytesIO(content + b"good\n"), skip_bad=True, max_words=20)
    assert [sentence.forms for sentence in reader] == [("good",)]
    assert reader.num_bad == 1
    assert reader.first_bad is not None


def test_options_are_checked():
    with pytest.raises(InputError, match="max_words"):
        TextReader("a", max_words=0)
    with pytest.raises(InputError, match="split must be one of 'blanks', 'tokenise'"):
        TextReader("a", split="words")
    with pytest.raises(InputError, match="No such file"):
        list(TextReader("/nowhere/at/all"))
