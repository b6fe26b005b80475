"""Plain backpropagation of a loss without a latent structure."""

import pytest
import torch
from toys import vae

import nestruct
from nestruct import InputError, Noise, Supervised
from nestruct.data import Grammar
from nestruct.models import ParserVAE


def test_is_the_gradient_of_the_loss():
    data = Grammar(num_train=6)
    model = ParserVAE(data.vocabulary, data.vectors, lstm_size=5).double()
    batch = data.splits()["train"]
    report = Supervised().backward(model, batch, seed=3, step=2)
    found = [p.grad.clone() for p in model.parameters() if p.requires_grad]
    loss = model.loss(batch, Noise(seed=3, step=2)).mean()
    wanted = [p for p in model.parameters() if p.requires_grad]
    torch.testing.assert_close(found, list(torch.autograd.grad(loss, wanted)))
    torch.testing.assert_close(report.loss, loss.detach())
    assert all(p.grad is None for p in model.parameters() if not p.requires_grad)


def test_a_structure_inside_is_taken_as_it_is():
    assert Supervised().backward(vae(), torch.ones(2, 6).double(), seed=0).grad_norm > 0


class Scored(nestruct.StructuredModel):
    """Scores of subsets by a linear layer, with truth of both kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.structure = nestruct.KSubset(5, 2)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.encoder = torch.nn.Linear(3, 5).double()

    def encode(self, batch):
        return self.encoder(batch["x"])

    def true_scores(self, batch):
        return batch["scores"]


def labelled() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x, scores = (torch.randn(6, n, generator=generator).double() for n in (3, 5))
    return {"x": x, "scores": scores, "z": nestruct.KSubset(5, 2).argmax(scores)}


LOSSES = ["fenchel_young", "likelihood", "spo_plus", "soft_spo_plus", "squared_error"]


@pytest.mark.parametrize("loss", LOSSES)
def test_losses_that_compare_with_the_truth(loss):
    model, batch = Scored(), labelled()
    options = {"sigma": 0.7, "num_draws": 3, "noise": "gumbel"}
    estimator = Supervised(loss=loss, **options)
    report = estimator.backward(model, batch, seed=3, step=2)
    scores, structure = model.encode(batch), model.structure
    if loss == "fenchel_young":
        own = nestruct.FenchelYoungLoss(structure, 0.7, 3, "gumbel")
        losses = own(scores, batch["z"], draws=Noise(seed=3, step=2))
    elif loss == "likelihood":
        losses = nestruct.FenchelYoungLoss(structure, 0.7, law="gibbs")(scores, batch["z"])
    elif loss in ("spo_plus", "soft_spo_plus"):
        sigma = 0.0 if loss == "spo_plus" else 0.7
        losses = nestruct.SPOPlusLoss(structure, sigma)(scores, batch["scores"])
    else:
        losses = (scores - batch["scores"]).square().mean(-1)
    wanted = torch.autograd.grad(losses.mean(), list(model.parameters()))
    torch.testing.assert_close([p.grad for p in model.parameters()], list(wanted))
    torch.testing.assert_close(report.loss, losses.mean().detach())
    first = [p.grad.clone() for p in model.parameters()]
    estimator.backward(model, batch, seed=3, step=3)
    same = all(map(torch.equal, first, [p.grad for p in model.parameters()]))
    assert same == (loss != "fenchel_young")
    # Without an entry z the best structures of the true scores are the truth.
    del batch["z"]
    estimator.backward(model, batch, seed=3, step=2)
    torch.testing.assert_close([p.grad for p in model.parameters()], first)


def test_what_has_no_truth_is_refused_in_a_sentence():
    model, batch = vae(), torch.ones(2, 6).double()
    with pytest.raises(InputError, match="has no true_scores"):
        Supervised(loss="spo_plus").backward(model, batch, seed=0)
    with pytest.raises(InputError, match="entry z"):
        Supervised(loss="fenchel_young").backward(model, batch, seed=0)
    black_box = vae(nestruct.BlackBox(lambda scores: scores > 0, (6,)))
    with pytest.raises(InputError, match="fenchel_young"):
        Supervised(loss="likelihood").backward(black_box, batch, seed=0)
    with pytest.raises(InputError, match="no tractable Gibbs law; leave sigma out"):
        nestruct.SPOPlusLoss(nestruct.BlackBox(lambda scores: scores > 0, (6,)), sigma=1.0)
    with pytest.raises(InputError, match="num_draws"):
        Supervised(num_draws=0)
