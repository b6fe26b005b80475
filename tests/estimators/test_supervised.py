"""Plain backpropagation of a loss without a latent structure."""

import torch
from toys import vae

from nestruct import Noise, Supervised
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
