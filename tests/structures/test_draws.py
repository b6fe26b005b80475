"""Exact samples from a noise: the right law, and draws that belong to examples."""

import pytest
import torch
import toys
from scipy.stats import chisquare, kstest

import nestruct
from nestruct import Noise
from nestruct.structures import Draws, swap_edges

CASES = [
    (nestruct.Categorical(5), (5,), None),
    (nestruct.KSubset(4, 2), (4,), None),
    (nestruct.SpanningTree(4), (6,), None),
    (nestruct.GridPath(3, 3), (3, 3), None),
    (nestruct.ProjectiveTree(), (4, 4), 3),
    (nestruct.ProjectiveTree(single_root=False), (4, 4), 3),
    (nestruct.NonProjectiveTree(), (4, 4), 3),
    (nestruct.NonProjectiveTree(single_root=False), (4, 4), 3),
]
each_case = pytest.mark.parametrize(("structure", "shape", "size"), CASES, ids=repr)


def gaussian(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def p_value(structure, size, scores, z) -> float:
    members = structure.enumerate(size).double().flatten(1)
    chances = (members * scores.flatten()).sum(1).softmax(0)
    found = (z.reshape(-1, 1, members.shape[1]) == members).all(-1)
    assert found.any(-1).all()
    counts = found.sum(0).double()
    return float(chisquare(counts, counts.sum() * chances / chances.sum()).pvalue)


@each_case
def test_the_law_over_examples_and_over_streams(structure, shape, size):
    scores = gaussian(*shape)
    over_examples = structure.sample(scores.expand(20_000, *shape), Noise(seed=2))
    assert p_value(structure, size, scores, over_examples) > 1e-3
    streams = Noise(seed=2, step=5, stream=torch.arange(2000)[:, None])
    over_streams = structure.sample(scores.expand(10, *shape), streams)
    assert over_streams.shape == (2000, 10, *shape)
    assert p_value(structure, size, scores, over_streams) > 1e-3


@each_case
def test_a_draw_belongs_to_its_example(structure, shape, size):
    scores, noise = gaussian(7, *shape), Noise(seed=4, step=9)
    whole = structure.sample(scores, noise)
    assert torch.equal(structure.sample(scores[:3], noise), whole[:3])
    rows = torch.tensor([5, 1])
    own = structure.sample(scores[rows], noise.replace(example=rows))
    assert torch.equal(own, whole[rows])
    streams = noise.replace(stream=torch.arange(3)[:, None])
    together = structure.sample(scores, streams)
    for stream in range(3):
        alone = structure.sample(scores, noise.replace(stream=stream))
        assert torch.equal(together[stream], alone)


def test_the_chain_takes_a_noise_too():
    tree, scores = nestruct.SpanningTree(4), gaussian(6).expand(20_000, 6)
    z = swap_edges(tree, tree.argmax(scores), scores, num_steps=40, draws=Noise(seed=1))
    assert p_value(tree, None, scores[0], z) > 1e-3
    few = swap_edges(tree, tree.argmax(scores[:5]), scores[:5], num_steps=40, draws=Noise(seed=1))
    assert torch.equal(few, z[:5])


@pytest.mark.parametrize("sampler", ["exact", "mcmc"])
def test_reinforce_on_the_gibbs_law_does_not_depend_on_batching(sampler):
    """An example has the same samples in any batch."""
    model, batch = toys.vae(nestruct.SpanningTree(4)), toys.bits(6, 6)
    options = {"law": "gibbs", "sampler": sampler, "num_samples": 3, "num_mcmc_steps": 9}
    estimator = nestruct.Reinforce(**options)
    terms = estimator.terms(model, batch, Noise(seed=0))
    for rows in (torch.arange(3), torch.arange(3, 6)):
        part = estimator.terms(model, batch[rows], Noise(seed=0, example=rows))
        torch.testing.assert_close(part.losses, terms.losses[:, rows])


@pytest.mark.parametrize("streams", [torch.tensor(1), torch.arange(3), torch.zeros(2, 3)])
def test_streams_of_another_shape_are_refused(streams):
    with pytest.raises(nestruct.InputError, match=r"must have the shape \[samples, 1\]"):
        nestruct.KSubset(4, 2).sample(gaussian(3, 4), Noise(seed=0, stream=streams))


def test_normal_draws_belong_to_examples_as_gumbel_draws_do():
    like, noise = gaussian(20_000, 3), Noise(seed=4, stream=torch.tensor([[0], [1]]))
    z = Draws("here", noise).normal(Draws("here", noise).repeat(like))
    assert z.shape == (2, 20_000, 3)
    assert kstest(z.flatten().numpy(), "norm").pvalue > 1e-3
    assert abs(float((z[0] * z[1]).mean())) < 5 / 60_000**0.5
    part = noise.replace(example=torch.tensor([7, 5]))
    assert torch.equal(Draws("here", part).normal(like[:2].expand(2, 2, 3)), z[:, [7, 5]])
    generator = torch.Generator().manual_seed(0)
    other = Draws("here", generator).normal(like)
    generator.manual_seed(0)
    assert torch.equal(other, torch.randn(20_000, 3, dtype=like.dtype, generator=generator))
