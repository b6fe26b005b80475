"""The categorical VAE: sizes of the paper, and three exact forms of evaluation."""

import json
import math

import pytest
import torch

import nestruct
from nestruct import Noise
from nestruct.models import CategoricalVAE


@pytest.mark.parametrize(("hidden", "count"), [(16, 26234), (512, 814874)])
def test_parameter_counts_of_table_3(hidden, count):
    assert sum(p.numel() for p in CategoricalVAE(784, hidden_size=hidden).parameters()) == count


@pytest.fixture
def vae():
    torch.manual_seed(0)
    model = CategoricalVAE(12, hidden_size=5, num_classes=4).double()
    for parameter in model.parameters():
        parameter.data *= 3  # far from uniform
    return model


def test_the_three_forms(vae):
    x = (torch.rand(7, 12, generator=torch.Generator().manual_seed(1)) < 0.5).double()
    found = vae.metrics(x, Noise(seed=0))
    scores = vae.encode(x)
    q = scores.softmax(-1)
    log_p = torch.stack(
        [
            torch.distributions.Bernoulli(logits=vae.decoder(one)).log_prob(x).sum(-1)
            for one in torch.eye(4).double()
        ],
        -1,
    )
    kl = (q * (q.log() + math.log(4))).sum(-1)
    torch.testing.assert_close(found["loss"], kl - (q * log_p).sum(-1))
    best = scores.argmax(-1, keepdim=True)
    torch.testing.assert_close(found["loss_mode"], kl - log_p.gather(1, best)[:, 0])
    torch.testing.assert_close(found["nll"], math.log(4) - log_p.logsumexp(-1))
    assert (found["nll"] <= found["loss"] + 1e-9).all()  # the ELBO is a bound


def test_the_exact_loss_is_the_mean_of_the_sampled_one(vae):
    x = torch.ones(3, 12).double()
    sampled = torch.stack([vae.loss(x, Noise(seed=0, step=s)) for s in range(2000)])
    error = sampled.std(0) / 2000**0.5
    assert ((sampled.mean(0) - vae.metrics(x, Noise(seed=0))["loss"]).abs() < 5 * error).all()


def test_prototypes_are_probabilities(vae):
    shown = vae.prototypes()
    assert shown.shape == (4, 12)
    assert ((shown > 0) & (shown < 1)).all()


def test_an_illustration_is_plain_and_always_the_same(vae):
    before = torch.get_rng_state()
    shown = vae.illustrate()
    assert torch.equal(torch.get_rng_state(), before)
    assert shown == vae.illustrate() == json.loads(json.dumps(shown))
    rows = [row for (row,) in shown["prototypes"]]  # twelve inputs make no square
    found = torch.tensor([[int(digit, 16) for digit in row] for row in rows])
    assert torch.equal(found, (vae.prototypes() * 15).round().long())
    assert [len(row) for (row,) in shown["samples"]] == [12] * 10


def test_a_square_illustration_has_rows_and_follows_the_model():
    vae = CategoricalVAE(9, hidden_size=2, num_classes=2)
    with torch.no_grad():
        for parameter in vae.parameters():
            parameter.zero_()
        vae.decoder[-1].bias.copy_(torch.tensor([99.0] * 3 + [-99.0] * 5 + [math.nan]))
    assert vae.illustrate() == {
        "prototypes": [["fff", "000", "000"]] * 2,
        "samples": [["fff", "000", "000"]] * 10,
    }


def test_nes_uses_the_savings(vae):
    """A member's losses come from K decoded categories, whatever the batch."""
    from nestruct.population import Layout, Population
    from nestruct.population.savings import categorical_losses

    batch = torch.ones(6, 12).double()
    layout = Layout(vae, None)
    flat = torch.zeros(2, layout.size, dtype=torch.float64)
    population = Population(layout.centre(), layout.split(flat), True)
    assert categorical_losses(vae, population, batch, Noise(seed=0)) is not None


def test_bad_options():
    with pytest.raises(nestruct.InputError, match="hidden_size"):
        CategoricalVAE(4, hidden_size=0)
