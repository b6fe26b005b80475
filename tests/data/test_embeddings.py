"""Word vectors: text and npz give the same, only what is asked for is kept."""

import gzip

import numpy as np
import pytest

from nestruct.data.embeddings import read_embeddings
from nestruct.errors import InputError

TEXT = "4 2\nde 1 2\nNew York 3 4.5\nde 9 9\ncan -1e-3 0 \n"


@pytest.mark.parametrize("kind", ["vec", "vec.gz", "npz", "headless"])
def test_formats_agree(tmp_path, kind):
    path = tmp_path / f"v.{kind}"
    if kind == "npz":
        words = np.array(["de", "New York", "de", "can"])
        np.savez(path, words=words, vectors=np.array([[1, 2], [3, 4.5], [9, 9], [-1e-3, 0]]))
    else:
        text = TEXT if kind != "headless" else TEXT.partition("\n")[2]
        path.write_bytes(gzip.compress(text.encode()) if kind == "vec.gz" else text.encode())
    words, vectors = read_embeddings(path)
    assert words == ["de", "New York", "can"]
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
        (b"alone\n", "line 1: it must have a word and 1 numbers"),
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
