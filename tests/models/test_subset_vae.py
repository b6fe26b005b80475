"""The subset VAE: its bounds against sums over all latents, and what SIMPLE's entropy lacks."""

import itertools
import math
from typing import Any

import pytest
import torch

import nestruct
from nestruct import InputError, Noise
from nestruct.models import SubsetVAE
from nestruct.structures import KSubset, perturb_and_map_law
from nestruct.structures.relaxations.elementary_symmetric import entropy_from

X = (torch.rand(5, 12, generator=torch.Generator().manual_seed(1)) < 0.5).double()


@pytest.fixture
def vae() -> SubsetVAE:
    torch.manual_seed(0)
    model = SubsetVAE(12, num_subsets=2, num_items=4, k=2, hidden_sizes=(7,)).double()
    for parameter in model.parameters():
        parameter.data *= 3  # far from uniform
    return model


def latents(model: SubsetVAE) -> torch.Tensor:
    """Every latent of an example, ``[latents, rows, items]``."""
    members = model.structure.enumerate().double()
    return torch.stack([torch.stack(rows) for rows in itertools.product(members, members)])


def exact_loss(model: SubsetVAE, chances: torch.Tensor) -> torch.Tensor:
    """The negative ELBO of a law ``[batch, rows, members]``, by summing over the 36 latents."""
    pairs = chances[:, 0, :, None] * chances[:, 1, None, :]
    law, z = pairs.flatten(1), latents(model)
    log_p = model.decode(X, z[:, None].expand(-1, len(X), -1, -1)).T
    return (law * (law.log() + math.log(36) - log_p)).sum(-1)


def test_the_protocol_has_a_million_parameters():
    assert sum(p.numel() for p in SubsetVAE(784).parameters()) == 1_272_480


@pytest.mark.parametrize("name", ["loss", "loss_top_k"])
def test_each_bound_is_that_of_its_own_law(vae, name):
    scores = vae.encode(X).detach()
    members = vae.structure.enumerate().double()
    gibbs = (scores @ members.T).softmax(-1)
    law = gibbs if name == "loss" else perturb_and_map_law(vae.structure, scores)
    drawn = torch.stack([vae.metrics(X, Noise(seed=0, step=s))[name] for s in range(600)])
    off = (drawn.mean(0) - exact_loss(vae, law)) / (drawn.std(0) / 600**0.5)
    assert off.abs().max() < 4
    assert (
        exact_loss(vae, gibbs) - exact_loss(vae, perturb_and_map_law(vae.structure, scores))
    ).abs().max() > 0.01


def test_a_layer_for_each_size_and_rows_of_subsets(vae):
    z = vae.sample(X, 3, Noise(seed=0))
    assert z.shape == (3, 5, 2, 4)
    assert (z.sum(-1) == 2).all()
    assert vae.decode(X, z).shape == (3, 5)
    torch.testing.assert_close(
        vae.metrics(X, Noise(seed=0))["kl"], vae.divergence(vae.encode(X), X)
    )


def test_simples_entropy_begins_at_item_k():
    """12.13 nats are right; the recursion that begins at item ten has 7.51 of them."""
    scores, structure = torch.zeros(20, dtype=torch.float64), KSubset(20, 10)
    exact = math.log(math.comb(20, 10))
    assert (
        structure.entropy(scores).item() == pytest.approx(exact) == pytest.approx(12.13, abs=0.005)
    )
    assert entropy_from(scores, 10).item() == pytest.approx(exact)
    assert entropy_from(scores, 10, first=10).item() == pytest.approx(7.507, abs=0.001)
    # What is left out is the entropy of the first nine, given all others: by enumeration.
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(7, dtype=torch.float64, generator=generator)
    structure = KSubset(7, 3)
    members = structure.enumerate().double()
    chances = (members @ scores).softmax(0)
    later = [tuple(row) for row in members[:, 2:].tolist()]  # items 3 to 7
    of_later = torch.stack([chances[[t == one for t in later]].sum() for one in sorted(set(later))])
    right = -(chances * chances.log()).sum()
    torch.testing.assert_close(entropy_from(scores, 3), right)
    torch.testing.assert_close(entropy_from(scores, 3, first=3), -(of_later * of_later.log()).sum())


def test_simples_kl_is_charged_where_it_is_asked_for():
    options: dict[str, Any] = {"num_subsets": 2, "num_items": 5, "k": 3, "hidden_sizes": (7,)}
    plain, simple = (SubsetVAE(12, divergence=d, **options).double() for d in ("gibbs", "simple"))
    simple.load_state_dict(plain.state_dict())
    found, same = (model.metrics(X, Noise(seed=0)) for model in (plain, simple))
    assert all(torch.equal(found[name], same[name]) for name in found)  # evaluations are alike
    scores = plain.encode(X)
    charged = simple.divergence(scores, X) - plain.divergence(scores, X)
    assert (charged > 0.1).all()
    torch.testing.assert_close(found["loss_simple"] - found["loss"], charged.detach())


@pytest.mark.parametrize("k", [0, 4])
def test_subsets_that_say_nothing(k):
    found = SubsetVAE(12, num_subsets=2, num_items=4, k=k, hidden_sizes=(3,)).metrics(
        X.float(), Noise(seed=0)
    )
    torch.testing.assert_close(found["kl"], torch.zeros(5), atol=1e-5, rtol=0)
    torch.testing.assert_close(found["loss_top_k"], found["loss"])


def test_bad_options_are_refused():
    with pytest.raises(InputError, match=r"hidden_sizes\[1\] must be a whole number"):
        SubsetVAE(4, hidden_sizes=(3, 0))
    with pytest.raises(InputError, match="divergence must be one of 'gibbs', 'simple'"):
        SubsetVAE(4, divergence="gumbel")
    with pytest.raises(InputError, match="k must be a whole number from 0 to 5"):
        SubsetVAE(4, num_items=5, k=6)


ESTIMATORS = {
    "Reinforce": nestruct.Reinforce(law="gibbs", num_samples=16),
    "NVIL": nestruct.NVIL(law="gibbs", num_samples=16, hidden_size=4),
    "StructureNES": nestruct.StructureNES(num_samples=24),
    "ScoreNES": nestruct.ScoreNES(sigma=0.5),
    "IMLE": nestruct.IMLE(num_samples=2),
    "AIMLE": nestruct.AIMLE(differences="central"),
    "BlackboxDifferentiation": nestruct.BlackboxDifferentiation(),
    "PerturbedOptimizer": nestruct.PerturbedOptimizer(noise="gumbel"),
    "ExactMarginals": nestruct.ExactMarginals(num_samples=2),
    "StraightThrough": nestruct.StraightThrough(),
    "Identity": nestruct.Identity(),
    "SST": nestruct.SST(temperature=0.5),
    "NES": nestruct.NES(sigma=0.1, population_size=60, mode="vmap"),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_takes_rows_of_structures(vae, name):
    """The mean of its estimates points as the exact gradient of the Gibbs law's ELBO does."""
    members = vae.structure.enumerate().double()
    exact_loss(vae, (vae.encode(X) @ members.T).softmax(-1)).mean().backward()
    exact = torch.cat([p.grad.flatten() for p in vae.parameters()])
    found = torch.zeros_like(exact)
    for step in range(40):
        report = ESTIMATORS[name].backward(vae, X, seed=0, step=step)
        found += torch.cat([p.grad.flatten() for p in vae.parameters()])
    assert report.num_failed == 0
    assert torch.nn.functional.cosine_similarity(found, exact, dim=0) > 0.7
