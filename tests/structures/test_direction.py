"""A solver that minimises is told from one that maximises, by its answers."""

import pytest
import torch
from toys import bits, vae

import nestruct
from nestruct import InputError
from nestruct.structures.direction import Direction


def cheapest(scores):
    return torch.nn.functional.one_hot(scores.argmin(-1), scores.shape[-1])


def cheapest_allowed(scores, allowed):
    return cheapest(torch.where(allowed, scores, torch.inf))


def gaussian(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_a_solver_that_minimises_is_refused():
    with pytest.raises(InputError, match=r"seems to minimise.*-scores"):
        nestruct.BlackBox(cheapest, (6,)).argmax(gaussian(20, 6))


def test_what_it_is_given_turns_it_round():
    solver = nestruct.BlackBox(lambda scores: cheapest(-scores), (6,))
    assert solver.argmax(gaussian(20, 6)).sum() == 20


def test_examples_with_context_are_compared_with_themselves_only():
    allowed = gaussian(8, 6) > -0.5
    allowed[:, 0] = True
    solver = nestruct.BlackBox(cheapest_allowed, (6,))
    solver.argmax(gaussian(8, 6), allowed=allowed)  # nothing tells that they have the same members
    with pytest.raises(InputError, match="seems to minimise"):
        solver.argmax(gaussian(4, 8, 6), allowed=allowed)


def test_examples_whose_context_turns_everything_round_are_fine():
    """Each example's solver maximises, and across examples the inequality fails."""

    def near(scores, wanted):
        return torch.nn.functional.one_hot(wanted, scores.shape[-1])

    wanted = torch.arange(6)
    scores = -torch.eye(6)
    nestruct.BlackBox(near, (6,)).argmax(scores.expand(4, 6, 6), wanted=wanted)


def test_a_heuristic_is_no_minimiser():
    generator = torch.Generator().manual_seed(1)

    def guess(scores):
        random = torch.randint(scores.shape[-1], scores.shape[:-1], generator=generator)
        return torch.nn.functional.one_hot(random, scores.shape[-1])

    solver = nestruct.BlackBox(guess, (6,))
    for _ in range(5):
        solver.argmax(gaussian(20, 6))


def test_constants_rows_without_answer_and_infinite_scores_tell_nothing():
    looks = Direction()
    scores, z = gaussian(20, 3), torch.zeros(20, 3)
    assert not looks.minimises(scores, z, 1)
    z[:, 0] = torch.arange(20) % 2
    z[::3] = torch.nan
    assert not looks.minimises(scores * torch.inf, z, 1)
    assert not looks.is_known


@pytest.mark.parametrize(
    "estimator", [nestruct.StructureNES(num_samples=8), nestruct.NES(sigma=0.1, population_size=16)]
)
def test_a_training_says_so_in_its_first_step(estimator):
    model = vae(nestruct.Categorical(4))
    model.structure, model.kl = nestruct.BlackBox(cheapest, (4,)), "none"
    with pytest.raises(InputError, match="seems to minimise"):
        estimator.backward(model, bits(8, 6), seed=0)


def test_answers_that_only_rounding_tells_apart_tell_nothing():
    """As of a network that gives all instances the same scores at first."""
    scores = 3 + 1e-8 * gaussian(40, 6).double()
    looks = Direction()
    assert not looks.minimises(scores, cheapest(scores), 1)
    assert not looks.is_known


def test_it_looks_until_it_knows():
    scores = answers = torch.eye(4)  # three pairs of neighbours, and five are needed
    worst, best = Direction(), Direction()
    assert not worst.minimises(-scores, answers, 1)
    assert worst.minimises(-scores, answers, 1)
    assert not best.minimises(scores, answers, 1)
    assert best.is_known
    assert not best.minimises(-scores, answers, 1)  # it is not looked at any more
