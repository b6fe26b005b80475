"""The exact law of perturb-and-MAP, against simulation and against the sum over orders."""

import itertools
import math

import pytest
import torch

import nestruct
from nestruct import InputError
from nestruct.structures import log_top_k_chance

STRUCTURES = [
    nestruct.Categorical(6),
    nestruct.KSubset(5, 2),
    nestruct.KSubset(4, 0),
    nestruct.SpanningTree(4),
    nestruct.SpanningTree(1),
]
each_structure = pytest.mark.parametrize("structure", STRUCTURES, ids=repr)


def gaussian(structure, *lead: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*lead, *structure.part_shape, dtype=torch.float64, generator=generator)


def gumbel(shape, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return -torch.empty(shape, dtype=torch.float64).exponential_(generator=generator).log()


@each_structure
def test_agrees_with_simulation(structure):
    scores = gaussian(structure)
    draws = structure.argmax(scores + gumbel((200_000, *structure.part_shape), seed=1))
    members = structure.enumerate().double()
    marked = members.sum(-1)
    frequencies = (draws @ members.T == marked).double().mean(0)
    law = nestruct.perturb_and_map_law(structure, scores)
    error = (law * (1 - law) / 200_000).sqrt()
    assert ((frequencies - law).abs() <= 4 * error + 1e-12).all()


def test_gumbel_max_frequencies_equal_softmax_for_categorical():
    """Appendix C of the paper; for the other structures the two laws differ."""
    structure = nestruct.Categorical(6)
    scores = gaussian(structure)
    draws = structure.argmax(scores + gumbel((200_000, 6), seed=2))
    chances = scores.softmax(-1)
    error = (chances * (1 - chances) / 200_000).sqrt()
    assert ((draws.mean(0) - chances).abs() < 4 * error).all()
    torch.testing.assert_close(nestruct.perturb_and_map_law(structure, scores), chances)


@pytest.mark.parametrize("structure", [nestruct.KSubset(5, 2), nestruct.SpanningTree(4)], ids=repr)
def test_is_not_the_gibbs_law(structure):
    scores = gaussian(structure)
    gibbs = (structure.enumerate().double() @ scores).softmax(-1)
    assert (nestruct.perturb_and_map_law(structure, scores) - gibbs).abs().max() > 5e-3


def test_equals_the_sum_over_orders():
    structure = nestruct.SpanningTree(4)
    scores = gaussian(structure, seed=3)
    weights = scores.exp()
    pairs = torch.triu_indices(4, 4, 1).T.tolist()

    def closes_cycle(taken: tuple[int, ...], edge: int) -> bool:
        reach = {pairs[edge][0]}
        for _ in range(4):
            for i, j in (pairs[e] for e in taken):
                if reach & {i, j}:
                    reach |= {i, j}
        return pairs[edge][1] in reach

    law = []
    for member in structure.enumerate():
        total = 0.0
        for order in itertools.permutations(member.nonzero().flatten().tolist()):
            chance = 1.0
            for place, edge in enumerate(order):
                rest = [e for e in range(6) if e not in order[:place]]
                rest = [e for e in rest if not closes_cycle(order[:place], e)]
                chance *= (weights[edge] / weights[rest].sum()).item()
            total += chance
        law.append(total)
    torch.testing.assert_close(
        nestruct.perturb_and_map_law(structure, scores), torch.tensor(law, dtype=torch.float64)
    )


@each_structure
def test_is_a_differentiable_batched_law(structure):
    scores = gaussian(structure, 2, 3).requires_grad_()
    law = nestruct.perturb_and_map_law(structure, scores)
    assert law.shape == (2, 3, len(structure.enumerate()))
    torch.testing.assert_close(law.sum(-1), torch.ones(2, 3, dtype=torch.float64))
    assert torch.autograd.gradcheck(lambda s: nestruct.perturb_and_map_law(structure, s), scores)
    torch.testing.assert_close(nestruct.perturb_and_map_law(structure, scores[1, 2]), law[1, 2])


def test_forbidden_parts_have_no_chance_and_no_gradient():
    structure = nestruct.SpanningTree(4)
    scores = gaussian(structure)
    scores[[0, 1]] = -torch.inf  # node 0 hangs on its last edge
    scores.requires_grad_()
    law = nestruct.perturb_and_map_law(structure, scores)
    uses = structure.enumerate()[:, :2].any(-1)
    assert (law[uses] == 0).all()
    assert law.sum().item() == pytest.approx(1.0)
    gradient = torch.autograd.grad(law @ torch.arange(16, dtype=torch.float64), scores)[0]
    assert gradient.isfinite().all()


def test_function_transforms_and_rows_without_an_answer():
    structure = nestruct.KSubset(3, 2)
    scores = gaussian(structure, 2)
    jacobian = torch.func.jacrev(lambda s: nestruct.perturb_and_map_law(structure, s))(scores[0])
    expected = torch.autograd.functional.jacobian(
        lambda s: nestruct.perturb_and_map_law(structure, s), scores[0]
    )
    torch.testing.assert_close(jacobian, expected)
    scores[1, 0] = torch.nan
    law = torch.func.vmap(lambda s: nestruct.perturb_and_map_law(structure, s))(scores)
    assert torch.equal(law.isnan().all(-1), torch.tensor([False, True]))


def test_mistakes_are_refused():
    with pytest.raises(InputError, match="only Categorical, KSubset and SpanningTree"):
        nestruct.perturb_and_map_law(nestruct.Permutation(2), torch.zeros(2, 2))
    with pytest.raises(InputError, match="row 1 holds NaN"):
        nestruct.perturb_and_map_law(
            nestruct.Categorical(2), torch.tensor([[0.0, 1], [0, torch.nan]])
        )


@pytest.mark.parametrize(("n", "k"), [(1, 1), (4, 0), (4, 4), (5, 2), (7, 3)])
@pytest.mark.parametrize("scale", [0.0, 1.0, 6.0])
def test_the_chance_of_a_subset_is_the_sum_over_orders(n, k, scale):
    scores = scale * gaussian(nestruct.KSubset(n, k))
    for z in nestruct.KSubset(n, k).enumerate().double():
        found = log_top_k_chance(scores, z)
        weights, exact = scores.exp(), 0.0
        for order in itertools.permutations(z.nonzero().flatten().tolist()):  # Plackett-Luce
            left, chance = weights.sum(), torch.ones((), dtype=torch.float64)
            for item in order:
                chance, left = chance * weights[item] / left, left - weights[item]
            exact = exact + chance
        assert found.item() == pytest.approx(math.log(exact), abs=1e-6)


def test_the_chances_of_large_subsets_agree_with_the_law():
    scores = 2 * gaussian(nestruct.KSubset(12, 6), 3)
    structure = nestruct.KSubset(12, 6)
    z = structure.enumerate().double()[:, None].expand(-1, 3, -1)
    law = nestruct.perturb_and_map_law(structure, scores)
    torch.testing.assert_close(
        log_top_k_chance(scores.expand_as(z), z).T, law.log(), atol=1e-6, rtol=0
    )


def test_the_chance_of_a_subset_at_extremes():
    z = torch.tensor([1.0, 1.0, 0.0, 0.0])
    certain = torch.tensor([90.0, 90.0, -torch.inf, 0.0])
    assert log_top_k_chance(certain, z).item() == pytest.approx(0, abs=1e-6)
    never = torch.tensor([-90.0, -90.0, 200.0, 0.0])
    assert log_top_k_chance(never, z).item() == pytest.approx(-580 + math.log(2))
    assert log_top_k_chance(torch.tensor([0.0, -torch.inf, 0.0, 0.0]), z) == -torch.inf
    assert log_top_k_chance(torch.tensor([0.0, torch.nan, 0.0, 0.0]), z).isnan()
    scores = gaussian(nestruct.KSubset(4, 2)).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: log_top_k_chance(s, z), scores)
    assert (
        torch.autograd.grad(log_top_k_chance(certain.requires_grad_(), z), certain)[0]
        .isfinite()
        .all()
    )
    with pytest.raises(
        InputError, match=r"z must have the shape of the scores, \(4,\), got \(3,\)"
    ):
        log_top_k_chance(scores, z[:3])
