"""The k best paths by four and eight moves, against the list of all paths."""

import itertools

import pytest
import torch
from cases import totals

import nestruct
from nestruct import InputError
from nestruct.structures import kbest
from nestruct.structures.base import KBest

KINDS = list(itertools.product(("four", "eight"), ("cells", "edges")))
each_kind = pytest.mark.parametrize(("moves", "kind"), KINDS)


def costs(structure, *lead: int, seed: int = 0) -> torch.Tensor:
    """Scores with ties, positive ones, and a few that forbid."""
    generator = torch.Generator().manual_seed(seed)
    shape = (*lead, *structure.part_shape)
    scores = 0.5 - torch.randint(0, 4, shape, generator=generator).double()
    blocked = torch.rand(shape, generator=generator) < 0.1
    return torch.where(blocked, -torch.inf, scores + 0.3 * (scores < -2))


@each_kind
def test_they_are_the_best_of_the_list(moves, kind):
    structure = nestruct.GridPath(3, 3, moves=moves, scores=kind)
    pairs = torch.tensor([(0, 8), (8, 0), (4, 2), (3, 5), (6, 6)]).repeat(2, 1)
    scores, k = costs(structure, len(pairs)), 12
    ends = {"start": pairs[:, 0], "goal": pairs[:, 1]}
    with nestruct.nan_rows():
        z, values = structure.kbest(scores, k, **ends)
        best = structure.argmax(scores, **ends)
    answered = 0
    for row, pair in enumerate(pairs.tolist()):
        members = structure.enumerate(pair).double()
        total = totals(members, scores[row].clamp(max=0)).sort(descending=True).values
        total = total[total > -torch.inf][:k]
        if not len(total):
            assert z[:, row].isnan().all()
            assert values[:, row].isnan().all()
            continue
        answered, found = answered + 1, len(total)
        torch.testing.assert_close(values[:found, row], total)
        assert (values[found:, row] == -torch.inf).all()
        assert not z[found:, row].any()
        listed = {tuple(member) for member in members.flatten(1).tolist()}
        paths = [tuple(path) for path in z[:found, row].flatten(1).tolist()]
        assert set(paths) <= listed
        assert len(set(paths)) == found
        assert torch.equal(z[0, row], best[row])
    assert answered >= 6


@each_kind
def test_every_path_is_listed_once(moves, kind):
    structure = nestruct.GridPath(3, 3, moves=moves, scores=kind)
    members = structure.enumerate()
    z, values = structure.kbest(torch.zeros(structure.part_shape), len(members) + 1)  # all tie
    assert len(z[:-1].unique(dim=0)) == len(members)
    assert structure.contains(z[:-1]).all()
    assert values.tolist() == [0.0] * len(members) + [-torch.inf]


@each_kind
def test_leading_axes_vmap_memory_and_derivatives(moves, kind, monkeypatch):
    structure = nestruct.GridPath(3, 4, moves=moves, scores=kind)
    scores = -torch.rand(2, 3, *structure.part_shape, generator=torch.Generator().manual_seed(0))
    goal = torch.tensor([11, 7, 4])
    z, values = structure.kbest(scores.requires_grad_(), 3, goal=goal)
    (slope,) = torch.autograd.grad(values[1].sum(), scores)
    assert torch.equal(slope, z[1])
    scores = scores.detach()
    alone = structure.kbest(scores[1, 2], 3, goal=goal[2])
    assert torch.equal(alone[0], z[:, 1, 2])
    assert torch.equal(alone[1], values[:, 1, 2])
    mapped = torch.func.vmap(lambda s: structure.kbest(s, 3, goal=goal), out_dims=1)(scores)
    assert torch.equal(mapped[0], z)
    assert torch.equal(mapped[1], values)
    monkeypatch.setattr("nestruct.structures.k_paths.MAX_SCORES", 100)
    assert torch.equal(structure.kbest(scores, 3, goal=goal)[0], z)


def test_only_the_best_with_each_part_is_not_known():
    structure, scores = nestruct.GridPath(2, 2, moves="four"), torch.zeros(3, 2, 2)
    assert not isinstance(structure, KBest)
    assert isinstance(nestruct.GridPath(2, 2), KBest)
    assert torch.equal(kbest(structure, scores, 2)[0], structure.kbest(scores, 2)[0])
    with pytest.raises(InputError, match="GridPath has no max_marginals"):
        structure.max_marginals  # noqa: B018
    with pytest.raises(InputError, match="k must be a whole number of at least 1"):
        structure.kbest(scores, 0)
    scores[1, 0, 0] = torch.nan
    with pytest.raises(InputError, match=r"kbest: scores row 1 holds NaN"):
        structure.kbest(scores, 2)
    with pytest.raises(InputError, match="row 0 has a start or goal that is no cell"):
        structure.kbest(torch.zeros(1, 2, 2), 2, goal=torch.tensor([4]))
