"""Source and target treebanks: splits, vocabularies, vectors, what is missing."""

import gzip

import numpy as np
import pytest
import torch

from nestruct.data import Grammar, Treebanks
from nestruct.data.treebank import read_treebank, sentence_of, write_treebank
from nestruct.errors import InputError
from nestruct.structures import ProjectiveTree


def bank(folder, **splits) -> None:
    """Writes splits, each given by the lengths of its sentences."""
    folder.mkdir(parents=True)
    for split, lengths in splits.items():
        sentences = [
            sentence_of([f"{folder.name}{n}"] * n, range(n), ["root"] + ["dep"] * (n - 1))
            for n in lengths
        ]
        write_treebank(folder / f"{split}.conllu.gz", sentences)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("NESTRUCT_DATA", str(tmp_path))
    bank(tmp_path / "ud" / "xx_a", train=range(1, 21), test=[3])
    bank(tmp_path / "ud" / "xx_b", train=[2, 30, 150], dev=[4], test=[5, 6])
    (tmp_path / "emb").mkdir()
    np.savez(
        tmp_path / "emb" / "xx_v.npz",
        words=np.array(["xx_a3", "xx_b5", "elsewhere"]),
        vectors=np.array([[1, 2], [3, 4], [5, 6]], np.float16),
    )
    return tmp_path


def test_source_without_dev_is_split(folder):
    data = Treebanks(source="xx_a", target="xx_b")
    splits = data.splits()
    assert {name: len(split) for name, split in splits.items()} == {
        "train": 18,
        "validation": 2,
        "test": 2,
    }
    lengths = torch.cat([splits["train"].lengths, splits["validation"].lengths])
    assert sorted(lengths.tolist()) == list(range(1, 21))
    again = Treebanks(source="xx_a", target="xx_b").splits()["validation"]
    assert again.words.equal(splits["validation"].words)
    other = Treebanks(source="xx_a", target="xx_b", seed=3).splits()["validation"]
    assert not other.lengths.equal(splits["validation"].lengths)


def test_vocabulary_is_of_training_text(folder):
    data = Treebanks(source="xx_b", target="xx_a")
    words = data.vocabulary.words
    assert words[2 : data.vocabulary.num_embedded] == ("xx_b150", "xx_b30", "xx_b2")
    assert set(words[data.vocabulary.num_embedded : data.vocabulary.num_outputs]) == {
        f"xx_a{n}" for n in range(1, 21)
    }
    assert "xx_b4" not in words  # of dev
    assert "elsewhere" not in words
    everything = Treebanks(source="xx_b", target="xx_a", words="all").vocabulary
    assert {"xx_b4", "xx_a3"} <= set(everything.words[: everything.num_embedded])
    assert "xx_b5" not in everything.words  # of the source's test, which nobody reads


def test_vectors(folder):
    data = Treebanks(source="xx_a", target="xx_b")
    known = data.vectors[data.vocabulary.index("xx_a3")]
    assert known.tolist() == [1, 2]
    assert data.vectors[data.vocabulary.index("xx_b5")].tolist() == [3, 4]
    assert data.vocabulary.index("xx_b5") >= data.vocabulary.num_outputs  # by its vector only
    made_up = data.vectors[data.vocabulary.index("xx_a7")]
    assert made_up.abs().sum() > 0
    assert data.vectors[0].abs().sum() == 0
    assert Treebanks(source="xx_a", embeddings="none").vectors.shape[1] == 300


def test_the_target_has_no_trees_and_long_sentences_are_left_out(folder):
    splits = Treebanks(source="xx_a", target="xx_b", train_on="target").splits()
    assert splits["train"].lengths.tolist() == [2, 30]
    assert splits["train"].heads.sum() == splits["train"].labels.sum() == 0
    assert splits["test"].heads.sum() > 0
    whole = Treebanks(source="xx_a", target="xx_b", train_on="target", max_words=None)
    assert whole.splits()["train"].lengths.tolist() == [2, 30, 150]


def test_a_folder_of_ones_own_and_names_of_ud(folder):
    path = folder / "mine"
    bank(path, train=[3, 4, 5])
    (path / "train.conllu.gz").rename(path / "mine-ud-train.conllu.gz")
    data = Treebanks(source=f"{path}/", embeddings="none")
    assert {name: len(part) for name, part in data.splits().items()} == {
        "train": 2,
        "validation": 1,
    }


def test_says_what_is_missing(folder, monkeypatch):
    with pytest.raises(InputError, match=r"xx_c/train.conllu.gz is missing; get xx_c-ud-train"):
        _ = Treebanks(source="xx_c").vocabulary
    (folder / "mine").mkdir()
    remedy = rf"mine/train.conllu.gz is missing; put train.conllu or .* into {folder}/mine\.$"
    with pytest.raises(InputError, match=remedy):
        _ = Treebanks(source=f"{folder}/mine").vocabulary
    with pytest.raises(InputError, match=r"say which: data\.target=NAME"):
        _ = Treebanks(source="xx_a", train_on="target").texts
    (folder / "emb" / "xx_v.npz").unlink()
    with pytest.raises(InputError, match=r"cc.xx.300.vec.gz is missing.*embeddings=none"):
        _ = Treebanks(source="xx_a").vectors
    (folder / "ud" / "xx_a" / "train.conllu.gz").write_bytes(b"")
    with pytest.raises(InputError, match="has no sentences"):
        _ = Treebanks(source="xx_a").texts
    monkeypatch.delenv("NESTRUCT_DATA")
    with pytest.raises(InputError, match="NESTRUCT_DATA is not set"):
        _ = Treebanks(source="xx_a").texts
    with pytest.raises(InputError, match="train_on must be one of"):
        Treebanks(source="xx_a", train_on="both")
    with pytest.raises(InputError, match="max_words must be"):
        Treebanks(source="xx_a", max_words=0)


def test_bad_sentences_are_refused_or_left_out(folder, caplog):
    path = folder / "ud" / "xx_b" / "dev.conllu.gz"
    good = read_treebank(path)[0]
    write_treebank(path, [good, bytes(good).replace(b"\t0\troot\t", b"\t9\troot\t")])
    with pytest.raises(InputError, match=r"dev.conllu.gz, line 6: the HEAD 9 is out of range"):
        Treebanks(source="xx_b").splits()
    assert len(Treebanks(source="xx_b", skip_bad=True).splits()["validation"]) == 1
    assert "malformed sentences, 1 of them, the first: " in caplog.text


def test_the_target_needs_no_trees_to_train_on(folder):
    path = folder / "ud" / "xx_b" / "train.conllu.gz"
    known = Treebanks(source="xx_a", target="xx_b", train_on="target").splits()["train"].words
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    bare = ["\t".join([*line.split("\t")[:6], *"____"]) if line else "" for line in lines]
    path.write_bytes(gzip.compress("\n".join([*bare, ""]).encode()))
    data = Treebanks(source="xx_a", target="xx_b", train_on="target")
    assert data.splits()["train"].words.equal(known)
    assert data.hidden == ("train",)


def test_a_target_can_be_none_and_a_source_no_file(folder):
    alone, none = Treebanks(source="xx_a"), Treebanks(source="xx_a", target="none")
    assert none.texts == alone.texts
    with pytest.raises(InputError, match="is a file; give the folder"):
        _ = Treebanks(source=str(folder / "ud" / "xx_a" / "train.conllu.gz")).texts


def test_generated_trees_are_projective():
    splits = Grammar(num_train=50, num_dev=20, num_target=30).splits()
    for split in splits.values():
        assert ProjectiveTree().contains(split.z, split.lengths).all()
    again = Grammar(num_train=50, num_dev=20, num_target=30).splits()
    assert again["train"].words.equal(splits["train"].words)
    assert set(splits) == {"train", "validation", "test"}


def test_the_generated_target_has_words_of_its_own():
    data = Grammar(num_train=300)
    assert data.vocabulary.num_embedded < data.vocabulary.num_outputs
    drawn = data.drawing(data.splits()["validation"])["words"][0]
    assert tuple(drawn) == tuple(data.texts.dev[0].forms)


@pytest.mark.data
def test_the_real_treebanks():
    import os

    for source, target, sizes in (
        ("gl_treegal", "gl_ctg", (540, 60, 861)),
        ("ru_gsd", "ru_taiga", (522, 57, 881)),
        ("id_csui", "id_gsd", (591, 65, 557)),
    ):
        data = Treebanks(source=source, target=target, max_words=None)
        splits = data.splits()
        assert tuple(len(part) for part in splits.values()) == sizes
        assert data.vectors.shape[1] == 300
        assert os.environ["NESTRUCT_DATA"]
