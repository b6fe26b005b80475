"""Sinkhorn's matrices: doubly stochastic, in their limits, and what training with them finds."""

import pytest
import torch

import nestruct
from nestruct import InputError


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("size", [1, 2, 5, 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_rows_and_columns_sum_to_one(size, dtype):
    scores = gaussian(30, size, size).to(dtype)
    z = nestruct.Permutation(size).relax(scores, 1.0)
    assert z.dtype == dtype
    assert (z >= 0).all()
    ones = torch.ones(30, size, dtype=dtype)
    torch.testing.assert_close(z.sum(-2), ones)
    torch.testing.assert_close(z.sum(-1), ones, rtol=0, atol=1e-3)
    many = nestruct.Permutation(size, sinkhorn_iterations=2000).relax(scores, 0.5)
    torch.testing.assert_close(many.sum(-1), ones, rtol=0, atol=1e-5)


def test_it_is_the_best_of_its_kind():
    """Where rows and columns sum to 1, log z - scores is a number per row and one per column."""
    scores = gaussian(6, 4, 4)
    z = nestruct.Permutation(4, sinkhorn_iterations=2000).relax(scores, 0.7)
    rest = z.log() - scores / 0.7
    rest = rest - rest[:, :1] - rest[:, :, :1] + rest[:, :1, :1]
    torch.testing.assert_close(rest, torch.zeros_like(rest), rtol=0, atol=1e-9)


def test_it_tends_to_the_argmax_and_to_equal_shares():
    structure = nestruct.Permutation(5, sinkhorn_iterations=3000)
    scores = gaussian(40, 5, 5)
    best, totals = structure.kbest(scores, 2)
    clear = totals[0] - totals[1] > 0.2
    assert clear.sum() > 20
    # A cycle of c other places weighs exp(-gap / (c temperature)), here exp(-10) at most; what the
    # iteration leaves falls like 1 / iterations.
    cold = structure.relax(scores, 0.004)
    assert (cold - best[0])[clear].abs().max() < 5 / structure.sinkhorn_iterations
    hot = structure.relax(scores, 1e6)
    torch.testing.assert_close(hot, torch.full_like(hot, 0.2), rtol=0, atol=1e-5)
    huge = nestruct.Permutation(5).relax(50 * scores.float(), 0.5)
    assert huge.isfinite().all()


def test_derivatives_and_vmap():
    structure = nestruct.Permutation(3, sinkhorn_iterations=10)
    scores = gaussian(2, 3, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: structure.relax(s, 0.8), scores)
    flat = structure.relax(scores.detach(), 0.8)
    torch.testing.assert_close(torch.func.vmap(lambda s: structure.relax(s, 0.8))(scores), flat)


def test_forbidden_places_and_bad_rows():
    structure = nestruct.Permutation(3)
    scores = gaussian(2, 3, 3)
    scores[0, 0, 1] = scores[0, 1, 0] = -torch.inf
    z = structure.relax(scores.requires_grad_(), 0.5)
    assert z[0, 0, 1] == z[0, 1, 0] == 0
    assert torch.autograd.grad(z.square().sum(), scores)[0].isfinite().all()
    scores = scores.detach()
    for change, reason in (((1, 2, 2), "holds NaN"), ((1, 2), "leaves no legal member")):
        wrong = scores.clone()
        wrong[change] = torch.nan if len(change) == 3 else -torch.inf
        with pytest.raises(InputError, match=f"relax: scores row 1 {reason}"):
            structure.relax(wrong, 0.5)
        with nestruct.nan_rows():
            lenient = structure.relax(wrong, 0.5)
        assert lenient[1].isnan().all()
        torch.testing.assert_close(lenient[0], z[0].detach())
    with pytest.raises(InputError, match="temperature must be positive"):
        structure.relax(scores, 0.0)
    with pytest.raises(InputError, match="sinkhorn_iterations must be a whole number"):
        nestruct.Permutation(3, sinkhorn_iterations=0)


class Sorter(nestruct.StructuredModel):
    """Numbers -> a score for each pair of number and place -> a permutation -> the sorted row."""

    structure = nestruct.Permutation(5)

    def __init__(self) -> None:
        super().__init__()
        self.network = nestruct.models.mlp(1, 16, 5)

    def encode(self, batch):
        return self.network(batch[..., None])

    def decode(self, batch, z):
        placed = (z.mT @ batch[..., None])[..., 0]
        return -(placed - batch.sort(-1).values).square().sum(-1)


def test_sst_learns_to_sort():
    torch.manual_seed(0)
    train, unseen = torch.rand(300, 5), torch.rand(300, 5)
    model = Sorter()

    def placed_right() -> float:
        found = (model.infer(unseen).mT @ unseen[..., None])[..., 0]
        return float((found == unseen.sort(-1).values).float().mean())

    assert placed_right() < 0.4
    adam = torch.optim.Adam(model.parameters(), lr=0.03)
    sst = nestruct.SST(temperature=0.5)
    nestruct.fit(model, sst, adam, train, max_steps=150, batch_size=50, progress=False)
    assert placed_right() > 0.7
