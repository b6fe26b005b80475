"""Sentences as tensors: numbers of words, padding, minibatches of like lengths."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nestruct.data import Minibatches, Vocabulary, batch_size, select_rows
from nestruct.data.sentences import Buckets, Sentences, collate, normalise
from nestruct.data.treebank import sentence_of


def chains(lengths) -> Sentences:
    """Sentences in which each word hangs from the one before it; the first word says how long."""
    forms = [[f"w{n}", *["b"] * (n - 1)] for n in lengths]
    sentences = [sentence_of(f, range(len(f)), ["root"] + ["dep"] * (len(f) - 1)) for f in forms]
    return collate(sentences, Vocabulary.of(forms, [], ["root", "dep"]), trees=True)


def test_vocabulary_groups():
    vocabulary = Vocabulary.of(
        [["The", "cat", "the"]], [["a", "cat", "zoo"]], ["root", "det"], ["cat", "quark"]
    )
    assert vocabulary.words == ("<unknown>", "<root>", "the", "cat", "a", "zoo", "quark")
    assert vocabulary.counts == (0, 0, 2, 1)
    assert (vocabulary.num_embedded, vocabulary.num_outputs) == (4, 6)
    assert vocabulary.labels == ("det", "root")
    assert Vocabulary.from_state(vocabulary.to_state()) == vocabulary
    assert [vocabulary.index(w) for w in ("THE", "quark", "<root>x", "")] == [2, 6, 0, 0]


def test_numbers():
    assert [normalise(w) for w in ("2nd", "3D", "9", "A1", "½")] == ["NUM"] * 3 + ["a1", "½"]


def test_collate():
    batch = chains([3, 1])
    assert batch.heads.tolist() == [[0, 0, 1, 2], [0, 0, 0, 0]]
    assert batch.is_word.tolist() == [[False, True, True, True], [False, True, False, False]]
    assert batch.z.sum().item() == 4
    assert batch.z[0].nonzero().tolist() == [[0, 1], [1, 2], [2, 3]]
    assert batch_size(batch) == len(batch) == 2
    assert select_rows(batch, torch.tensor([1])).cut(1).words.shape == (1, 2)
    assert batch.cut(6).cut(3).words.equal(batch.words)
    hidden = collate(
        [sentence_of(["a", "."], [0, 1], ["x", "y"])], Vocabulary.of([], [], []), trees=False
    )
    assert hidden.heads.sum() == 0
    assert hidden.scored.tolist() == [[False, True, False]]
    assert len(collate([], Vocabulary.of([], [], []), trees=True)) == 0


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 9))
def test_slices_cover_all_once(lengths, size):
    data = chains(lengths)
    rows = []
    for index, part in data.slices(size):
        assert len(part) <= size
        assert part.words.shape[1] == 1 + part.lengths.max()
        assert part.lengths.equal(data.lengths[index])
        rows += index.tolist()
    assert sorted(rows) == list(range(len(lengths)))


def test_long_sentences_come_few_at_a_time():
    assert [len(rows) for rows, _ in chains([250] * 10).slices(1000)] == [4, 4, 2]


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 12))
def test_minibatches_have_like_lengths(lengths, size):
    data = chains(lengths)
    batches = data.minibatches(size, seed=1)
    assert isinstance(batches, Buckets)
    for epoch in range(2):
        seen = []
        for place in range(batches.steps_per_epoch):
            batch = batches(epoch * batches.steps_per_epoch + place)
            assert len(batch) == min(size, len(lengths))
            longest = int(batch.lengths.max())
            assert batch.words.shape[1] - 1 == max(4, -(-longest // 4) * 4)
            seen += batch.lengths.tolist()
        assert len(seen) == batches.steps_per_epoch * min(size, len(lengths))
        assert all(seen.count(n) <= lengths.count(n) for n in seen)
    again = data.minibatches(size, seed=1)
    assert again(1).words.equal(batches(1).words)


def test_epochs_differ_and_leave_out_others():
    batches = chains(range(1, 12)).minibatches(4, seed=0)
    epochs = [torch.cat([batches(2 * e + k).lengths for k in range(2)]).tolist() for e in range(20)]
    assert set(itertools.chain(*epochs)) == set(range(1, 12))
    assert len({tuple(epoch) for epoch in epochs}) > 10


def test_plain_minibatches_are_what_they_were():
    data = torch.arange(10)
    batches = Minibatches(data, size=3, seed=5)
    assert len(torch.cat([batches(k) for k in range(3)]).unique()) == 9
    assert not batches(0).equal(batches(3))
    with pytest.raises(Exception, match="nothing to train on"):
        Minibatches(data[:0])
