"""Word vectors: text and npz give the same, only what is asked for is kept."""

import gzip
import zipfile

import numpy as np
import pytest

from nestruct.data.embeddings import read_embeddings
from nestruct.errors import InputError

TEXT = "4 2\nde 1 2\nNew_York 3 4.5\nde 9 9\ncan -1e-3 0 \n"


@pytest.mark.parametrize("kind", ["vec", "vec.gz", "npz", "headless", "with-mark"])
def test_formats_agree(tmp_path, kind):
    path = tmp_path / f"v.{kind}"
    if kind == "npz":
        words = np.array(["de", "New_York", "de", "can"])
        np.savez(path, words=words, vectors=np.array([[1, 2], [3, 4.5], [9, 9], [-1e-3, 0]]))
    else:
        text = TEXT if kind != "headless" else TEXT.partition("\n")[2]
        text = "\ufeff" + text if kind == "with-mark" else text
        path.write_bytes(gzip.compress(text.encode()) if kind == "vec.gz" else text.encode())
    words, vectors = read_embeddings(path)
    assert words == ["de", "New_York", "can"]
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, [[1, 2], [3, 4.5], [-1e-3, 0]])
    words, vectors = read_embeddings(path, {"can", "absent"})
    assert words == ["can"]
    assert vectors.shape == (1, 2)
    assert read_embeddings(path, set())[1].shape == (0, 2)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"2 3\na 1 2 3\nb 1 2\n", "line 3: it must have a word and 3 numbers"),
        (b"a 1 x\n", "line 1: the vector of 'a' is not of numbers"),
        (b"a 1 nan\n", "line 1: the vector of 'a' is not of numbers"),
        (b"a 1\n\xff 2\n", "line 2: it is not UTF-8"),
        (b"alone\n", "line 1: it must have a word and 1 number, "),
        (b"0 0\n", "line 1: it says 0 0: there are no vectors"),
        (b"2 0\na\nb\n", "line 1: it says 2 0: there are no vectors"),
        (b"2 2\na 1 2\nb 1 2 3\n", "line 3: it must have a word and 2 numbers"),
        (b"a 1 2\nb 1 2 3\n", "line 2: it must have a word and 2 numbers"),
        (b"3 2\na 1 2\nb 1 2\n", "says that it has 3 words and has 2"),
        ("³ ²\na 1\n".encode(), "line 1: the vector of '³' is not of numbers"),
        (gzip.compress(b"a 1 2\n" * 99, mtime=0)[:-9], "damaged or cut short"),
        (b"PK\x03\x04 no", "damaged or cut short"),
    ],
)
def test_says_what_is_wrong(tmp_path, content, words):
    path = tmp_path / "v.vec"
    path.write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        read_embeddings(path)
    assert "v.vec" in str(caught.value)


def test_a_word_may_start_as_archives_do(tmp_path):
    (tmp_path / "v.vec").write_text("PKW 1 2\n")
    assert read_embeddings(tmp_path / "v.vec")[0] == ["PKW"]


@pytest.mark.parametrize("dtype", ["U3", "complex64", "bool"])
def test_refuses_vectors_of_anything_else(tmp_path, dtype):
    np.savez(tmp_path / "a.npz", words=np.array(["a"]), vectors=np.ones((1, 2), dtype))
    with pytest.raises(InputError, match="must hold words as strings and vectors as numbers"):
        read_embeddings(tmp_path / "a.npz")


@pytest.mark.parametrize("name", ["words", "vectors"])
def test_refuses_members_that_are_no_arrays(tmp_path, name):
    np.savez(tmp_path / "a.npz", words=np.array(["a"]), vectors=np.ones((1, 2)))
    with zipfile.ZipFile(tmp_path / "a.npz") as old, zipfile.ZipFile(tmp_path / "b", "w") as new:
        for member in old.namelist():
            new.writestr(member, "text" if member == f"{name}.npy" else old.read(member))
    with pytest.raises(InputError, match="must hold words as strings and vectors as numbers"):
        read_embeddings(tmp_path / "b")


def test_refuses_other_archives(tmp_path):
    np.savez(tmp_path / "a.npz", words=np.array(["a"]), vectors=np.zeros((2, 3)))
    with pytest.raises(InputError, match=r"words of shape \(1,\) and vectors of shape \(2, 3\)"):
        read_embeddings(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", words=np.array(["a", None]), vectors=np.zeros((2, 3)))
    with pytest.raises(InputError, match="must hold words"):  # pickled inside: never loaded
        read_embeddings(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", other=np.zeros(3))
    with pytest.raises(InputError, match="must hold words"):
        read_embeddings(tmp_path / "c.npz")
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_embeddings(tmp_path / "d.npz")
