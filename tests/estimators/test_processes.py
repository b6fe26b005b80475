"""Every estimator on two and three processes gives what it gives on one. Real processes, gloo."""

from pathlib import Path

import pytest
import safetensors.torch
import torch
from forked import run_on_ranks
from on_ranks import CASES, two_steps

from nestruct.estimators.registry import ESTIMATORS

SCRIPT = Path(__file__).parents[1] / "on_ranks.py"


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request, tmp_path_factory):
    """What each rank found, in all cases."""
    folder = tmp_path_factory.mktemp(f"ranks{request.param}")
    run_on_ranks(request.param, SCRIPT, folder / "rank")
    files = [folder / f"rank-{rank}.safetensors" for rank in range(request.param)]
    return [safetensors.torch.load_file(file) for file in files]


def test_every_estimator_is_a_case():
    assert set(CASES) >= set(ESTIMATORS)


@pytest.mark.parametrize("name", CASES)
def test_many_processes_give_what_one_gives(name, ranks):
    for key, expected in two_steps(name).items():
        first, *others = (rank[f"{name}: {key}"] for rank in ranks)
        assert all(torch.equal(first, other) for other in others), key  # bit for bit
        if expected.dtype == torch.float64:
            distance = (first - expected).norm() / expected.norm()
            assert distance < 1e-9, key
        elif "two examples" not in name:  # where ranks without an example solve one for nothing
            assert torch.equal(first, expected), key


@pytest.mark.parametrize("name", CASES)
def test_so_many_collectives(name, ranks):
    """Losses and the gradient; costs for a baseline, or norms of scores and slopes; two for each
    layer of batch normalisation."""
    shares_members = name.startswith(("NES", "SNES"))
    layers = 0 if shares_members else int(ranks[0][f"{name}: normalised"])
    more = name.startswith(("Reinforce, batch", "Reinforce, ema", "NVIL", "AIMLE"))
    assert int(ranks[0][f"{name}: calls"]) == 2 * (2 + more) + 2 * layers
    gradient = ranks[0][f"{name}: gradient 0"]
    assert int(ranks[0][f"{name}: largest"]) >= gradient.numel() * gradient.element_size()


def test_the_cases_have_examples_that_fail_and_layers_that_normalise():
    found = two_steps("SST, one fails")
    assert int(found["counts 0"][0]) == 1
    assert int(found["normalised"]) == 4  # two layers, two steps
