"""The appendix's objective: what it is, that it bounds nothing, and that it can be trained."""

import pytest
import torch

import nestruct
from nestruct import InputError, Noise
from nestruct.models import AppendixVAE
from nestruct.models.appendix import appendix_divergence
from nestruct.objective import DIVERGENCES


def gaussian(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_it_can_be_driven_down_by_a_shift():
    """The erratum that its docstring warns of."""
    structure, scores = nestruct.SpanningTree(4), gaussian(2, 6)
    z = structure.argmax(scores)
    expected = (z * scores).sum(-1) + structure.log_count()
    torch.testing.assert_close(appendix_divergence(structure, scores, z), expected)
    assert (appendix_divergence(structure, scores - 100, z) < expected - 299).all()
    gibbs = DIVERGENCES["gibbs"]  # which the true KL does not notice
    torch.testing.assert_close(gibbs(structure, scores - 100), gibbs(structure, scores))


def test_a_space_without_a_count_is_refused():
    structure = nestruct.BlackBox(lambda scores: scores > 0, 2)
    with pytest.raises(InputError, match="needs a count"):
        appendix_divergence(structure, gaussian(3, 2), gaussian(3, 2) > 0)


def test_the_model_is_trained_by_it_and_evaluated_by_the_elbo():
    torch.manual_seed(0)
    model, batch, noise = AppendixVAE(6, hidden_size=4, num_classes=3), torch.eye(6), Noise(seed=0)
    scores = model.encode(batch)
    z = model.structure.argmax(scores + noise.gumbel(scores))
    expected = (z * scores).sum(-1) + model.structure.log_count() - model.decode(batch, z)
    torch.testing.assert_close(model.loss(batch, noise), expected.float())
    adam = torch.optim.Adam(model.parameters(), lr=0.05)
    before = model.loss(batch, noise).mean()
    for step in range(60):
        nestruct.NES(sigma=0.1, population_size=20).backward(model, batch, seed=0, step=step)
        adam.step()
    assert model.loss(batch, noise).mean() < before - 1
    assert (model.metrics(batch, noise)["loss"] >= model.metrics(batch, noise)["nll"] - 1e-5).all()
