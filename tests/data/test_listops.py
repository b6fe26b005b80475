"""ListOps against an evaluator and a parser of their own, one expression at a time."""

import statistics
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from cases import chi_square

import nestruct
from nestruct.data import ListOps
from nestruct.data.listops import TOKENS
from nestruct.structures import NonProjectiveTree, ProjectiveTree

SMALL = {"num_train": 300, "num_validation": 100, "num_test": 100}
VALUES: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(statistics.median(values)),
}


class Parsed(NamedTuple):
    value: int
    end: int  # the place behind it
    depth: int
    heads: dict[int, int]
    operands: list[int]  # how many each list has


def parse(words: list[str], start: int = 0) -> Parsed:
    """The list that begins at a place."""
    values: list[int] = []
    heads: dict[int, int] = {}
    operands: list[int] = []
    depth, here = 0, start + 1
    while words[here] != "]":
        heads[here] = start
        if words[here].isdigit():
            values.append(int(words[here]))
            here += 1
            continue
        inner = parse(words, here)
        values.append(inner.value)
        here, depth, heads = inner.end, max(depth, inner.depth), heads | inner.heads
        operands += inner.operands
    heads[here] = start
    found = VALUES[words[start]](values)
    return Parsed(found, here + 1, depth + 1, heads, [len(values), *operands])


def words_of(batch) -> list[list[str]]:
    rows = zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True)
    return [[TOKENS[number] for number in row[:length]] for row, length in rows]


@pytest.fixture(scope="module")
def splits():
    return ListOps(**SMALL).splits()


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_values_and_trees_are_those_of_a_parser(splits, split):
    batch = splits[split]
    for row, words in enumerate(words_of(batch)):
        found = parse(words)
        assert found.end == len(words)  # the whole of it is one list
        assert found.value == batch.values[row]
        heads = [found.heads.get(place, 0) for place in range(50)]
        assert heads == batch.heads[row].tolist()
        assert batch.tokens[row, len(words) :].sum() == 0
        assert all(2 <= count <= 5 for count in found.operands)


def test_lengths_and_depths_reach_their_bounds_and_no_further():
    options = {"min_length": 8, "max_length": 14, "max_depth": 2, "max_operands": 7}
    batch = ListOps(**options, **SMALL).splits()["train"]
    assert set(batch.lengths.tolist()) == set(range(8, 15))
    parsed = [parse(words) for words in words_of(batch)]
    assert {found.depth for found in parsed} == {1, 2}
    assert {count for found in parsed for count in found.operands} == set(range(2, 8))


def test_bounds_that_are_out_of_reach_are_none():
    deep = ListOps(max_length=30, max_depth=10**9, nesting=0.5, **SMALL)
    words = words_of(deep.splits()["test"])
    assert max(parse(each).depth for each in words) > 5


def test_the_usual_lists_have_all_lengths_depths_and_values():
    batch = ListOps(**SMALL | {"num_train": 3000}).splits()["train"]
    assert set(batch.lengths.tolist()) == set(range(10, 51))
    assert set(batch.values.tolist()) == set(range(10))
    assert {parse(words).depth for words in words_of(batch)} == {2, 3, 4, 5}


def test_operators_and_digits_are_equally_likely():
    """Also among expressions of some lengths: a length depends on neither."""
    batch = ListOps(**SMALL).splits()["train"]
    real = torch.arange(50) < batch.lengths[:, None]
    counts = batch.tokens[real].bincount(minlength=14).double()
    assert chi_square(counts[:10], torch.full((10,), 0.1, dtype=torch.float64)) > 1e-3
    assert chi_square(counts[10:13], torch.full((3,), 1 / 3, dtype=torch.float64)) > 1e-3
    assert counts[13] == counts[10:13].sum()


def test_no_expression_is_there_twice():
    # Of 4 or 5 tokens there are 3 x 100 + 3 x 1,000: chance alone would repeat some of them.
    data = ListOps(min_length=4, max_length=5, num_train=2800, num_validation=250, num_test=250)
    rows = torch.cat([batch.tokens for batch in data.splits().values()])
    assert len(rows) == len(rows.unique(dim=0)) == 3300


def test_the_test_set_is_the_same_for_every_size_of_the_others(splits):
    more = ListOps(**SMALL | {"num_train": 400, "num_validation": 120}).splits()
    assert torch.equal(more["test"].tokens, splits["test"].tokens)
    other = ListOps(**SMALL, seed=1).splits()
    assert not torch.equal(other["test"].tokens, splits["test"].tokens)


def test_true_trees_are_projective_arborescences_below_the_first_token(splits):
    batch = nestruct.select_rows(splits["train"], torch.arange(50))
    lengths = batch.lengths - 1
    for structure in (NonProjectiveTree(single_root=False), ProjectiveTree(single_root=False)):
        assert structure.contains(batch.z, lengths=lengths).all()
    assert torch.equal(batch.z.sum((1, 2)).long(), lengths)
    assert batch.z[0, batch.heads[0, 3], 3] == 1


def test_trees_without_learning(splits):
    batch = splits["validation"]
    found = ListOps(**SMALL).baselines(batch)
    first, nearest = found["all below the first token"], found["below the nearest operator"]
    for row, words in enumerate(words_of(batch)):
        for place in range(1, len(words)):
            assert first[row, 0, place] == 1
            before = [k for k in range(place) if words[k].startswith("[")]
            assert nearest[row, before[-1], place] == 1
    for z in found.values():
        assert torch.equal(z.sum((1, 2)).long(), batch.lengths - 1)


def test_what_is_drawn_are_the_tokens(splits):
    batch = nestruct.select_rows(splits["test"], torch.arange(3))
    drawn = ListOps(**SMALL).drawing(batch)
    both = [[root, *words] for root, *words in zip(drawn["roots"], drawn["words"], strict=True)]
    assert [[row[0], *row[1]] for row in both] == words_of(batch)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 3}, "max_length must be a whole number of at least 4, got 3"),
        ({"min_length": 60}, "max_length must be a whole number from 60 to 250, got 50"),
        ({"max_operands": 1}, "max_operands must be a whole number of at least 2, got 1"),
        ({"max_depth": 0}, "max_depth must be a whole number of at least 1, got 0"),
        ({"nesting": 1.5}, "nesting must be from 0 to 1, got 1.5"),
    ],
)
def test_mistakes_get_one_sentence(options, message):
    with pytest.raises(nestruct.InputError, match=message):
        ListOps(**options)


def test_more_than_there_are_is_refused():
    with pytest.raises(nestruct.InputError, match="0 different expressions of 40 to 50 tokens"):
        ListOps(min_length=40, max_depth=1, **SMALL).splits()
    with pytest.raises(nestruct.InputError, match="take 800,000 GB, more than this machine has"):
        ListOps(num_train=10**12).splits()
    with pytest.raises(nestruct.InputError, match="300 different expressions of 4 to 4 tokens"):
        ListOps(min_length=4, max_length=4, **SMALL).splits()
