"""The gradient through soft parses: that of the relaxed loss, its limit, its options."""

import pytest
import torch
import toys

import nestruct
from nestruct import DPP, SST, Noise, ProjectiveTree

BATCH = toys.sentences(4, 1, 3)


@pytest.mark.parametrize("single_root", [True, False])
def test_it_is_the_gradient_of_the_relaxed_loss(single_root):
    """By finite differences of the loss at soft parses, with the same noise."""
    tree = ProjectiveTree(single_root)
    model = toys.Sentences(tree)
    DPP(temperature=0.7, num_samples=2).backward(model, BATCH, seed=1, step=4)
    found = toys.gradient(model)
    direction = torch.randn(found.shape, generator=torch.Generator().manual_seed(0)).double()

    def loss(shift: float) -> float:
        moved = toys.Sentences(tree)
        with torch.no_grad():
            flat = torch.nn.utils.parameters_to_vector(moved.parameters())
            torch.nn.utils.vector_to_parameters(flat + shift * direction, moved.parameters())
        scores, words = moved.encode(BATCH).detach(), BATCH["words"]
        total = 0.0
        for stream in range(2):
            noise = Noise(seed=1, step=4, stream=stream).gumbel(scores)
            soft = tree.soft_argmax(scores + noise, 0.7, lengths=words)
            total += float(moved.loss_at(BATCH, scores, soft).mean().detach()) / 2
        return total

    slope = (loss(1e-5) - loss(-1e-5)) / 2e-5
    assert float(found @ direction) == pytest.approx(slope, rel=1e-5)


def test_its_limit_is_the_loss_at_perturb_and_map_samples():
    model = toys.Sentences(ProjectiveTree())
    report = DPP(temperature=1e-6).backward(model, BATCH, seed=3, step=2)
    hard = model.loss(BATCH, Noise(seed=3, step=2)).mean().detach()
    assert float(report.loss) == pytest.approx(float(hard), rel=1e-6)
    decoder = model.decoder.weight.grad
    expected = torch.autograd.grad(
        model.loss(BATCH, Noise(seed=3, step=2)).mean(), model.decoder.weight
    )[0]
    torch.testing.assert_close(decoder, expected, rtol=1e-5, atol=1e-7)


def test_it_is_not_the_stochastic_softmax_trick():
    """That decodes marginals of the Gibbs law, with the same limit."""
    gradients = []
    for estimator in (DPP(), SST(), DPP(temperature=1e-6), SST(temperature=1e-6)):
        model = toys.Sentences(ProjectiveTree())
        report = estimator.backward(model, BATCH, seed=0)
        gradients.append((report.loss, toys.gradient(model)))
    assert (gradients[0][1] - gradients[1][1]).abs().max() > 1e-3
    torch.testing.assert_close(gradients[2][0], gradients[3][0], rtol=1e-5, atol=1e-7)


def test_padding_changes_nothing():
    short = {"x": BATCH["x"][1:, :3], "words": BATCH["words"][1:]}
    long = {"x": torch.cat([short["x"], torch.ones(2, 4, 3)], 1), "words": short["words"]}
    gradients = []
    for batch in (short, long):
        model = toys.Sentences(ProjectiveTree())
        # A loss of the heads of real words only, whatever is beyond them.
        model.decode = lambda batch, z: z[..., :4, :4].square().sum((-1, -2))
        DPP().backward(model, batch, seed=5)
        gradients.append(toys.gradient(model))
    torch.testing.assert_close(*gradients)
    assert gradients[0].abs().max() > 1e-3


class Masked(toys.Sentences):
    """Scores of the second sentence that allow no tree."""

    def encode(self, batch):
        scores = super().encode(batch)
        return torch.where((batch["words"] == 1)[:, None, None], -torch.inf, scores)


@pytest.mark.parametrize("estimator", [DPP(), nestruct.SparseMAP()], ids=["dpp", "sparse map"])
def test_a_sentence_without_a_tree_leaves_the_others_alone(estimator):
    model = Masked(ProjectiveTree())
    report = estimator.backward(model, BATCH, seed=2)
    found = toys.gradient(model)
    assert int(report.num_failed) == 1
    assert found.isfinite().all()
    other = toys.Sentences(ProjectiveTree())
    scores, words = other.encode(BATCH), BATCH["words"]
    perturbed = scores + Noise(seed=2).gumbel(scores)
    z = other.structure.soft_argmax(perturbed, 1.0, lengths=words)
    if isinstance(estimator, nestruct.SparseMAP):
        z = nestruct.structures.sparse_map(other.structure, perturbed, lengths=words)
    other.loss_at(BATCH, scores, z)[[0, 2]].mean().backward()
    torch.testing.assert_close(found, toys.gradient(other))


def test_other_structures_are_refused():
    with pytest.raises(nestruct.InputError, match=r"projective trees only, not NonProjectiveTree"):
        DPP().backward(toys.Sentences(nestruct.NonProjectiveTree()), BATCH, seed=0)


@pytest.mark.parametrize(
    "options", [{"temperature": 0}, {"temperature": float("nan")}, {"num_samples": 0}]
)
def test_bad_options(options):
    with pytest.raises(nestruct.InputError, match=next(iter(options))):
        DPP(**options)
