"""Words in, trees out: the same trees as by a batch, words by their vectors, mistakes said."""

import io

import numpy as np
import pytest
import torch
from parser_models import DATA, make

from nestruct import InputError, plots
from nestruct.data.sentences import collate
from nestruct.data.treebank import Reader


@pytest.fixture(scope="module")
def model():
    return make(dtype=torch.float32).eval()


@pytest.fixture
def file(model, tmp_path):
    """Word vectors: those of the parser, and one more."""
    known = model.vocabulary.words[2:]
    vectors = np.concatenate([model.vectors[2:].numpy(), np.ones((1, 6), np.float16)])
    np.savez(tmp_path / "emb.npz", words=np.array([*known, "zebra"]), vectors=vectors)
    return tmp_path / "emb.npz"


def test_trees_are_those_of_a_batch(model):
    texts = DATA.texts.target_test[:7]
    heads, labels = model.parse(collate(texts, model.vocabulary, trees=False))
    parsed = model.parse([list(sentence.forms) for sentence in texts])
    for row, (sentence, one) in enumerate(zip(texts, parsed, strict=True)):
        here = slice(1, len(sentence) + 1)
        assert one.words == sentence.forms
        assert one.heads == tuple(heads[row, here].tolist())
        names = [model.vocabulary.labels[k] for k in labels[row, here].tolist()]
        assert one.labels == tuple(names)
    assert model.parse(texts[0].forms) == parsed[0]
    assert model.parse([texts[0].forms]) == parsed[:1]
    assert model.parse([]) == []


def test_a_parsed_sentence_says_all_there_is(model):
    word = model.vocabulary.words[3]
    parsed = model.parse([word, "zebra", "!"])
    assert parsed.unknown == ("zebra", "!")
    assert len(parsed) == 3
    (back,) = Reader(io.BytesIO(parsed.to_conllu(7).encode()))
    assert (back.forms, back.heads, back.labels) == (parsed.words, parsed.heads, parsed.labels)
    assert parsed.to_conllu(7).startswith(f"# sent_id = 7\n# text = {word} zebra !\n1\t")
    assert all(word in str(parsed) for word in parsed.words)
    assert plots.sentences([parsed, parsed]).svg.count('class="tip"') == 6


def test_new_words_are_known_by_their_vectors(file):
    model = make(dtype=torch.float32).eval()
    before = model.parse([*model.vocabulary.words[3:8], "Zebra"])
    assert before.unknown == ("Zebra",)
    assert model.read_vectors(file, ["ZEBRA", "gnu"]) == 1
    after = model.parse(before.words)
    assert after.unknown == ()
    batch = collate(DATA.texts.dev[:1], model.vocabulary, trees=False)
    batch.words[0, 1] = model.vocabulary.index("zebra")
    assert model.vectors_of(batch.words)[0, 1].tolist() == [1.0] * 6
    # Its trained vector is that of unknown words, as in training under word dropout.
    mixed = model.encode(batch)
    batch.words[0, 1] = 0
    assert not mixed.equal(model.encode(batch))
    assert model.read_vectors(file) == 0  # nothing is new any more
    assert make(dtype=torch.float32).read_vectors(file) == 1


def test_other_vectors_than_those_of_the_training_are_refused(model, file, tmp_path):
    with np.load(file) as archive:
        words, vectors = archive["words"], archive["vectors"]
    np.savez(tmp_path / "other.npz", words=words, vectors=vectors[::-1])
    np.savez(tmp_path / "none.npz", words=["zebra"], vectors=vectors[:1])
    np.savez(tmp_path / "wide.npz", words=["zebra"], vectors=np.ones((1, 9)))
    for name, message in (
        ("other", "other vectors than those that the parser was trained with: give the file"),
        ("none", "none for any word that it knows"),
        ("wide", "has vectors of 9 numbers, and the parser was trained with 6"),
        ("missing", "missing.npz cannot be read"),
    ):
        with pytest.raises(InputError, match=message):
            model.read_vectors(tmp_path / f"{name}.npz")
    assert model.vocabulary.index("zebra") == 0


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        ("The dog barks", "nestruct.data.tokenise makes words of a text"),
        (["a", "b\tc"], "the sentence, word 2: it has the control character U[+]0009"),
        (["a", ""], "the sentence, word 2: a word is blank"),
        (["\udcff"], "control character U[+]DCFF"),
        ([["a"], []], "sentence 2 has no words"),
        ([["a"], "b c"], "sentence 2 must be a list of words, got 'b c': nestruct.data.tokenise"),
        (["a", ["b"]], "the sentence must be a list of words"),
        ([["a"], [1]], "sentence 2 must be a list of words"),
        (3, "parse takes a sentence as a list of words"),
        (["a"] * 10_000, "the sentence has 10,000 words, more than 1,000 [(]max_words[)]"),
    ],
    ids=str,
)
def test_mistakes_are_said(model, sentences, message):
    with pytest.raises(InputError, match=message):
        model.parse(sentences)
