"""Plain backpropagation of a loss without a latent structure."""

import pytest
import torch
from toys import vae

import nestruct
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


def test_takes_structured_models_only():
    with pytest.raises(nestruct.InputError, match="needs a StructuredModel"):
        Supervised().backward(torch.nn.Linear(2, 2), torch.ones(1, 2), seed=0)
    assert Supervised().backward(vae(), torch.ones(2, 6).double(), seed=0).grad_norm > 0
