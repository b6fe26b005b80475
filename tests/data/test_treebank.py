"""The CoNLL-U reader and writer: round trips byte for byte, and one sentence for what is wrong."""

import gzip
import io
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestruct.data.treebank import (
    Reader,
    Sentence,
    is_punctuation,
    read_treebank,
    sentence_of,
    write_treebank,
)
from nestruct.errors import InputError

WITH_EVERYTHING = (
    "# sent_id = 1\n# text = Dámosllo hoxe\n"
    "1-3\tDámosllo\t_\t_\t_\t_\t_\t_\t_\t_\n"
    "1\tDamos\tdar\tVERB\t_\t_\t0\troot\t0:root\t_\n"
    "2\tlle\tel\tPRON\t_\t_\t1\tiobj\t_\t_\n"
    "3\to\to\tPRON\t_\tCase=Acc\t1\tobj\t_\tSpaceAfter=No\n"
    "3.1\tnada\t_\t_\t_\t_\t_\t_\t1:obj\t_\n"
    "4\thoxe\t_\tADV\t_\t_\t1\tadvmod\t_\t_\n"
    "\n"
)


def read(text: str | bytes, **options) -> list[Sentence]:
    content = text.encode() if isinstance(text, str) else text
    return list(Reader(io.BytesIO(content), **options))


def line(number, head, form="w", label="dep") -> str:
    return f"{number}\t{form}\t_\t_\t_\t_\t{head}\t{label}\t_\t_\n"


def test_reads_words_and_keeps_the_rest():
    (sentence,) = read(WITH_EVERYTHING)
    assert sentence.forms == ("Damos", "lle", "o", "hoxe")
    assert sentence.heads == (0, 1, 1, 1)
    assert sentence.labels == ("root", "iobj", "obj", "advmod")
    assert bytes(sentence) == WITH_EVERYTHING.encode()
    changed = bytes(sentence.with_tree((4, 1, 1, 0), ("dep", "a", "b", "root"))).decode()
    expected = WITH_EVERYTHING.replace("0\troot\t0:root", "4\tdep\t0:root")
    expected = expected.replace("1\tiobj", "1\ta").replace("1\tobj\t_\tS", "1\tb\t_\tS")
    assert changed == expected.replace("1\tadvmod", "0\troot")


CHUNKS = st.sampled_from(
    [
        WITH_EVERYTHING,
        line(1, 0) + "\n",
        line(1, 2).replace("\n", "\r\n") + line(2, 0).replace("\n", "\r\n") + "\r\n",
        line(1, 0, form="New York") + line(2, 1, form="\u3000。") + "\n\n\n",
        "# only a comment\n\n",
        "\n",
        " \t\n",
        "# a\n# b\n" + line(1, 0, form="#") + "1.1\t_" + "\t_" * 8 + "\n\n",
    ]
)


@given(st.lists(CHUNKS, max_size=6), st.booleans(), st.booleans(), st.booleans())
def test_round_trip_of_any_file(tmp_path_factory, chunks, packed, ends, mark):
    content = (b"\xef\xbb\xbf" if mark else b"") + "".join(chunks).encode()
    content = content if ends else content.rstrip(b"\r\n")
    path = tmp_path_factory.mktemp("bank") / ("a.conllu.gz" if packed else "a.conllu")
    path.write_bytes(gzip.compress(content) if packed else content)
    blocks = Reader(path).blocks()
    write_treebank(path, blocks)  # onto itself: the file appears when it is complete
    written = path.read_bytes()
    assert (gzip.decompress(written) if packed else written) == content
    assert all(len(sentence) for sentence in read_treebank(path))


@given(st.binary(max_size=300) | st.text("12-.\t\n_#aé", max_size=300).map(str.encode))
def test_any_bytes_survive_or_are_refused_in_one_sentence(content):
    message = ""
    try:
        assert b"".join(map(bytes, Reader(io.BytesIO(content)).blocks())) == content
    except InputError as error:
        message = str(error)
    assert "\n" not in message
    if not content.startswith(b"\x1f\x8b"):
        bad = Reader(io.BytesIO(content), skip_bad=True)
        assert b"".join(map(bytes, bad.blocks())) == content


@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.booleans())
def test_a_tree_is_accepted_exactly_when_it_is_one(heads, single_root):
    text = "".join(line(k, head) for k, head in enumerate(heads, 1)) + "\n"
    legal = all(head <= len(heads) for head in heads)
    legal = legal and (heads.count(0) == 1 or (not single_root and heads.count(0) > 1))
    for start in range(1, len(heads) + 1):
        word = start
        for _ in heads:
            word = heads[word - 1] if 0 < word <= len(heads) else 0
        legal = legal and word == 0
    reader = Reader(io.BytesIO(text.encode()), single_root=single_root, skip_bad=True)
    assert len(list(reader)) == legal
    assert reader.num_bad == (not legal)
    assert len(read(text, trees=False)) == 1  # heads are not looked at


@pytest.mark.parametrize(
    ("bad", "number", "words"),
    [
        ("1\tw\t_\n", 3, "it has 3 columns and must have 10"),
        (line(1, 0) + line(3, 1), 4, "ID is '3' and must be 2"),
        (line(1, 5), 3, "HEAD 5 is out of range: the sentence has 1 word."),
        (line(1, "9" * 5000), 3, "9 is out of range"),
        (line(1, "_"), 3, "HEAD is '_' and must be a number"),
        (line(1, "²"), 3, "must be a number"),
        (line(1, 1) + line(2, 0), 3, "word 1 is in a cycle"),
        (line(1, 2) + line(2, 1), 3, "word 1 is in a cycle of heads, and the sentence has no root"),
        (line(1, 1), 3, "word 1 is in a cycle of heads, and the sentence has no root"),
        (line("1-9", "_") + line(1, 0), 3, "the ID '1-9' is no range of words from 1 to 1"),
        (line(1, 0) + line("3-1", "_") + line(2, 1) + line(3, 1), 4, "'3-1' is no range of words"),
        (line("0-1", "_") + line(1, 0), 3, "the ID '0-1' is no range"),
        (line(1, 0) + line(2, 0), 4, "second root"),
        (line(1, 0, form=""), 3, "FORM is empty"),
        ("1-\tw" + "\t_" * 8 + "\n", 3, "neither a word's nor like"),
        (line(1, 0, form="a\rb"), 3, "a carriage return or a NUL in a column"),
        (line(1, 0) + line(2, 1, label="a\0"), 4, "a carriage return or a NUL in a column"),
        (line("9" * 300, 0), 3, "...9"),
    ],
)
def test_says_file_line_and_what_is_wrong(tmp_path, bad, number, words):
    path = tmp_path / "bad.conllu"
    path.write_text(line(1, 0) + "\n" + bad + "\n" + line(1, 0))
    with pytest.raises(InputError) as caught:
        list(Reader(path))
    assert f"bad.conllu, line {number}: " in str(caught.value)
    assert words in str(caught.value)
    reader = Reader(path, skip_bad=True)
    assert len(list(reader)) == 2
    assert reader.num_bad == 1
    assert reader.first_bad == str(caught.value)


def test_bad_encoding_and_damaged_files(tmp_path):
    path = tmp_path / "a.conllu"
    path.write_bytes(line(1, 0).encode() + b"\n" + line(1, 0, form="caf").encode()[:4] + b"\xe9\n")
    with pytest.raises(InputError, match=r"line 3: it is not UTF-8 \(byte 0xe9\)"):
        list(Reader(path))
    path.write_bytes(gzip.compress(f"{line(1, 0)}\n".encode() * 50)[:-8])
    with pytest.raises(InputError, match="not a whole gzip file: it can be read up to line 100;"):
        list(Reader(path))
    with pytest.raises(InputError, match="cannot be read: No such file"):
        list(Reader(tmp_path / "none.conllu"))


def test_empty_files_and_streaming(tmp_path):
    assert read("") == []
    assert read("\n\n") == [Sentence((b"\n", b"\n"), (), ())]
    assert read_treebank_of(tmp_path, "") == []

    class Endless(io.RawIOBase):
        name = "endless"

        def peek(self, size):
            return b""

        def readline(self, size=-1):
            self.turn = not getattr(self, "turn", False)
            return line(1, 0).encode() if self.turn else b"\n"

    stream = iter(Reader(Endless()))
    assert [len(next(stream)) for _ in range(3)] == [1, 1, 1]


def read_treebank_of(folder, text):
    path = folder / "t.conllu"
    path.write_text(text)
    return read_treebank(path)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.conllu"
    path.write_text(line(1, 0) + "\n" + line(1, 7))
    with pytest.raises(InputError):
        write_treebank(path, Reader(path))
    assert path.read_text().count("\n") == 3
    assert [file.name for file in tmp_path.iterdir()] == ["a.conllu"]
    assert write_treebank(path, [sentence_of(["a"], [0], ["root"])]) == 1


def test_each_reading_counts_from_0(tmp_path):
    path = tmp_path / "a.conllu"
    path.write_text(line(1, 7))
    reader = Reader(path, skip_bad=True)
    assert [(list(reader), reader.num_bad) for _ in range(2)] == [([], 1)] * 2


def test_text_streams_are_refused(tmp_path):
    path = tmp_path / "a.conllu"
    path.write_text(line(1, 0))
    with path.open() as file, pytest.raises(InputError, match=r"a\.conllu is a text stream"):
        Reader(file)
    with pytest.raises(InputError, match="file is a text stream; open it as a binary one"):
        Reader(io.StringIO(line(1, 0)))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ((["a\tb"], [0], ["root"]), r"no tabs or line ends in it, got 'a\\tb'"),
        ((["a"], [0], ["ro\not"]), "no tabs or line ends"),
        (([""], [0], ["root"]), "must not be empty"),
        ((["a"], [2], ["root"]), "A head must be from 0 to 1, the words, got 2"),
        ((["a"], [-1], ["root"]), "A head must be from 0 to 1"),
        ((["a"], [0, 1], ["root"]), "as many heads and labels as words, 1, got 2 and 1"),
    ],
)
def test_what_cannot_be_written_is_refused(columns, words):
    with pytest.raises(InputError, match=words):
        sentence_of(*columns)
    if columns[0] == ["a"]:
        with pytest.raises(InputError, match=words):
            sentence_of(["a"], [0], ["root"]).with_tree(*columns[1:])


def test_punctuation():
    assert all(map(is_punctuation, [".", "...", "«", "—", "¿?", "_"]))
    assert not any(map(is_punctuation, ["a", "$", "+", ".a", "1."]))


def sentence_of_words(count: int) -> bytes:
    return "".join(line(k, k - 1) for k in range(1, count + 1)).encode() + b"\n"


def test_a_sentence_has_at_most_so_many_words():
    good = sentence_of_words(3)
    content = good + sentence_of_words(4) + good
    assert [len(s) for s in read(content, max_words=4)] == [3, 4, 3]
    with pytest.raises(InputError, match=r"line 8: the sentence has more than 3 words"):
        read(content, max_words=3)
    reader = Reader(io.BytesIO(content), max_words=3, skip_bad=True)
    assert b"".join(map(bytes, reader.blocks())) == content
    assert (reader.num_bad, [len(s) for s in reader]) == (1, [3, 3])
    assert len(read(sentence_of_words(1000))[0]) == 1000
    with pytest.raises(InputError, match=r"line 1001: .* more than 1,000 words"):
        read(sentence_of_words(1001))
    with pytest.raises(InputError, match="max_words must be a whole number of at least 1"):
        Reader(io.BytesIO(), max_words=0)


LONG = [
    pytest.param(b"1\t" + b"a" * 2**20, id="a line"),
    pytest.param(b"# a comment\n" * 10**5, id="comments"),
    pytest.param(line(1, 0).encode() + line("1.1", "_").encode() * 10**5, id="empty nodes"),
    pytest.param(b"  " * 2**19 + b"x\n", id="spaces"),
]


@pytest.mark.parametrize("bad", LONG)
def test_a_sentence_takes_at_most_so_many_bytes(bad):
    good = sentence_of_words(2)
    content = good + bad + b"\n\n" + good
    with pytest.raises(InputError, match=r"line 4: the sentence has more than 100 kB\."):
        read(content, max_words=100)
    reader = Reader(io.BytesIO(content), max_words=100, skip_bad=True)
    blocks = list(reader.blocks())
    assert b"".join(map(bytes, blocks)) == content
    assert reader.num_bad == 1
    assert [len(block) for block in blocks if isinstance(block, Sentence)] == [2, 2]
    assert max(len(bytes(block)) for block in blocks) <= 2 * 2**17


def test_blank_lines_without_end_are_no_sentence():
    content = b"\n" * 2**18 + sentence_of_words(2)
    assert [len(s) for s in read(content, max_words=10) if len(s)] == [2]
    assert b"".join(map(bytes, Reader(io.BytesIO(content), max_words=10).blocks())) == content


@pytest.mark.parametrize("skip_bad", [False, True])
def test_memory_is_bounded_where_a_small_gzip_file_holds_one_long_line(tmp_path, skip_bad):
    path = tmp_path / "a.conllu.gz"
    path.write_bytes(gzip.compress(b"1\t" + bytes(2**26), 1))
    reader = Reader(path, skip_bad=skip_bad)
    tracemalloc.start()
    try:
        if skip_bad:
            assert sum(len(bytes(block)) for block in reader.blocks()) == 2**26 + 2
        else:
            with pytest.raises(InputError, match="line 1: the sentence has more than 1,000 kB"):
                list(reader)
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()
