"""The exact gradient: by listing, against numbers and against what sampling converges to."""

import pytest
import torch
from toys import bits, gradient, vae

import nestruct
from nestruct import Enumeration, InputError, Noise
from nestruct.estimators.enumeration import exact_loss

X = bits(3, 6)
STRUCTURES = [nestruct.Categorical(4), nestruct.KSubset(4, 2), nestruct.SpanningTree(4)]


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
@pytest.mark.parametrize("kl", ["gumbel", "gibbs", "none"])
def test_the_perturb_and_map_law_is_what_sampling_gives(structure, kl):
    model = vae(structure, divergence=kl)
    exact = exact_loss(model, X, "perturb_and_map")
    with torch.no_grad():
        draw = torch.func.vmap(lambda stream: model.loss(X, Noise(seed=0, stream=stream)))
        draws = draw(torch.arange(2000))
    error = draws.std(0) / 2000**0.5
    assert ((draws.mean(0) - exact).abs() < 4 * error + 1e-9).all()


@pytest.mark.parametrize("law", ["gibbs", "perturb_and_map"])
@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_its_gradient_is_the_derivative_of_the_exact_loss(structure, law):
    model = vae(structure)
    report = Enumeration(law=law).backward(model, X, seed=0)
    found = gradient(model)
    parameter = model.encoder[0].weight
    step = 1e-5
    with torch.no_grad():
        values = []
        for sign in (1, -1):
            parameter[1, 2] += sign * step
            values.append(exact_loss(model, X, law).mean())
            parameter[1, 2] -= sign * step
    slope = (values[0] - values[1]) / (2 * step)
    assert parameter.grad[1, 2].item() == pytest.approx(slope.item(), rel=1e-5, abs=1e-8)
    torch.testing.assert_close(report.loss, exact_loss(model, X, law).mean().detach())
    torch.testing.assert_close(report.grad_norm, found.norm())


def test_the_laws_agree_for_categorical_only():
    for structure in STRUCTURES:
        model = vae(structure, divergence="none")
        with torch.no_grad():
            model.encoder[-1].weight *= 10
        difference = (exact_loss(model, X, "gibbs") - exact_loss(model, X, "perturb_and_map")).abs()
        same = isinstance(structure, nestruct.Categorical)
        assert (difference.max() < 1e-9) == same


def test_mistakes_are_refused():
    with pytest.raises(InputError, match="law must be one of"):
        Enumeration(law="uniform")
    box = vae()
    box.structure = nestruct.BlackBox(lambda s: s > 0, 4)
    with pytest.raises(InputError, match="cannot be listed"):
        Enumeration().backward(box, X, seed=0)
