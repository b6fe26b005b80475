"""The distance between a loss and its smoothed self."""

import pytest
import torch
import toys

import nestruct
from nestruct import smoothing_gap


def test_a_quadratic_is_lifted_by_its_curvature():
    model = toys.Formula(lambda theta: 2 * (theta**2).sum(), 5)
    found = smoothing_gap(model, torch.zeros(3, 1).double(), sigma=0.3, num_perturbations=4000)
    assert found.gap == pytest.approx(2 * 5 * 0.3**2, abs=4 * found.error)


def test_a_linear_loss_has_no_gap_and_mirrored_pairs_no_error():
    model = toys.Formula(lambda theta: theta.sum(), 5)
    found = smoothing_gap(model, torch.zeros(3, 1).double(), sigma=0.3)
    assert found.gap < 1e-12
    assert found.error < 1e-12


def test_it_grows_with_sigma_for_a_vae():
    model, batch = toys.vae(), toys.bits(8, 6)
    gaps = [smoothing_gap(model, batch, sigma=sigma).gap for sigma in (0.01, 0.1, 0.5)]
    assert gaps == sorted(gaps)
    assert gaps[2] > 5 * gaps[0]


def test_chunks_and_the_model_are_of_no_consequence():
    model, batch = toys.vae(), toys.bits(8, 6)
    before = [p.clone() for p in model.parameters()]
    one, two = (smoothing_gap(model, batch, sigma=0.1, chunk_size=size) for size in (7, 500))
    assert one.gap == pytest.approx(two.gap)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("options", [{"sigma": 0}, {"num_perturbations": 2}, {"chunk_size": 0}])
def test_bad_options(options):
    with pytest.raises(nestruct.InputError, match=next(iter(options))):
        smoothing_gap(toys.vae(), toys.bits(2, 6), **({"sigma": 0.1} | options))
