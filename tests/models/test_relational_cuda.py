"""The fast way of the relational model on a GPU: compiled, or by kernels, with short numbers."""

import pytest
import torch

import nestruct
from nestruct.data import GraphLayout
from nestruct.models import RelationalVAE

# torch.compile warns of what it meets inside torch while it traces (TF32, .grad of non-leaves).
pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("default")]


def models_and_batch(hidden=32):
    data = GraphLayout(num_nodes=6, num_train=32, num_validation=2, num_test=2).splits()
    models = []
    for fused in (True, False):
        torch.manual_seed(0)
        models.append(
            RelationalVAE(6, 10, hidden_size=hidden, num_rollout_steps=3, fused=fused).cuda()
        )
    return models, {"x": data["train"]["x"].cuda()}


@pytest.mark.parametrize(
    "estimator",
    [
        nestruct.StructureNES(num_samples=4),
        nestruct.SST(temperature=0.5),
        nestruct.NES(sigma=0.01, population_size=16, mode="vmap"),
    ],
    ids=["StructureNES", "SST", "NES"],
)
def test_the_fast_way_is_close_to_the_plain_one(estimator):
    models, batch = models_and_batch()
    gradients, losses = [], []
    for model in models:
        for step in range(3):
            report = estimator.backward(model, batch, seed=0, step=step)
        losses.append(report.loss)
        pieces = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        gradients.append(torch.cat(pieces))
    torch.testing.assert_close(losses[0], losses[1], rtol=0.02, atol=0.0)
    assert torch.cosine_similarity(*gradients, dim=0) > 0.98


@pytest.mark.parametrize("hidden", [24, 256])  # without the kernels, and with them
def test_a_population_is_close_to_the_plain_one(hidden):
    models, batch = models_and_batch(hidden)
    gradients = []
    for model in models:
        nes = nestruct.NES(
            sigma=0.01, population_size=64, mode="vmap", minibatch="per_pair", pair_batch_size=8
        )
        for step in range(3):
            nes.backward(model, batch, seed=0, step=step)
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert torch.cosine_similarity(*gradients, dim=0) > 0.98
    means = [model.encoder.edge_in.norm.running_mean for model in models]
    torch.testing.assert_close(*means, rtol=0.02, atol=0.002)


def test_a_curriculum_is_captured_anew():
    gradients = []
    for graph in ("on", "off"):
        torch.manual_seed(0)
        model = RelationalVAE(6, 10, hidden_size=32, rollout_curriculum=[[2, 3]]).cuda()
        _, batch = models_and_batch()
        estimator = nestruct.StructureNES(num_samples=4, graph=graph)
        for step in range(4):
            estimator.backward(model, batch, seed=0, step=step)
            gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    for captured, plain in zip(gradients[:4], gradients[4:], strict=True):
        assert torch.cosine_similarity(captured, plain, dim=0) > 0.9999


def test_evaluation_is_exact():
    models, batch = models_and_batch()
    found = [model.eval().loss(batch, nestruct.Noise(seed=0)) for model in models]
    torch.testing.assert_close(*found, rtol=0, atol=0)
