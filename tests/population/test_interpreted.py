"""Kernels of populations on a machine without a GPU: Triton's interpreter runs them.

``TRITON_INTERPRET=1 pytest -m slow tests/population/test_interpreted.py``. It shows what a kernel
computes, not that it compiles, nor how fast it is.
"""

import os

import pytest
import torch
from toys import bits, gradient, vae

from nestruct import NES
from nestruct.population import layers, savings

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("TRITON_INTERPRET is not 1", allow_module_level=True)
pytest.importorskip("triton")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("perturbed", ["all", "weights"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_step_with_kernels_is_the_plain_one(count, perturbed, monkeypatch):
    """All of a step but the draws, in float32: 45 pixels and 37 units, which no block divides."""
    model, x = vae(inputs=45, hidden=37).float(), bits(9, 45).float()
    nes = NES(
        sigma=0.2,
        population_size=40,
        directions="rank1",
        shaping="none",
        minibatch="per_pair",
        pair_batch_size=count,
        mode="vmap",
        perturb=None if perturbed == "all" else lambda name, p: p.dim() == 2,
    )
    nes.backward(model, x, seed=0)
    expected = gradient(model)
    from nestruct.population import savings_cuda  # which needs triton

    used, plain = [], savings_cuda.bernoulli

    def counted(*arguments):
        used.append(1)
        return plain(*arguments)

    monkeypatch.setattr(layers, "has_kernels", lambda like: True)
    monkeypatch.setattr(savings, "has_kernels", lambda like: True)
    monkeypatch.setattr(savings_cuda, "bernoulli", counted)
    nes.backward(model, x, seed=0)
    assert used
    torch.testing.assert_close(gradient(model), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["gaussian", "rademacher"])
def test_directions_depend_on_their_place_alone(kind):
    from nestruct.population.directions_cuda import fill_directions_cuda

    def fill(pairs: int, size: int, first: int) -> torch.Tensor:
        out = torch.full((pairs, size), torch.nan)
        fill_directions_cuda(out, first, 7, 4, 0.5, kind)
        return out

    for size in (1, 31, 300, 1500):
        whole = fill(5, size, 0)
        assert torch.equal(torch.cat([fill(2, size, 0), fill(3, size, 2)]), whole)
    assert 0.45 < whole.std() < 0.55
    assert whole.mean().abs() < 0.03
    assert torch.corrcoef(whole)[0, 1:].abs().max() < 0.13
    if kind == "rademacher":
        assert set(whole.unique().tolist()) == {-0.5, 0.5}
        assert (whole.mean(0) != whole.mean()).any()
