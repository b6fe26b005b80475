"""The ListOps model on a GPU: the CPU's numbers, and captured steps are plain ones."""

import pytest
import torch

import nestruct
from nestruct.data import ListOps, to_device
from nestruct.models import ListOpsModel

pytestmark = pytest.mark.cuda
BATCH = ListOps(num_train=32, num_validation=2, num_test=2).splits()["train"]


def make(**options) -> ListOpsModel:
    torch.manual_seed(0)
    return ListOpsModel(14, 10, hidden_size=16, **options)


@pytest.mark.parametrize("tree", ["latent", "given", "none"])
def test_losses_are_those_of_the_cpu(tree):
    model = make(tree=tree)
    here = model.metrics(BATCH, nestruct.Noise(seed=0))
    there = model.cuda().metrics(to_device(BATCH, torch.device("cuda")), nestruct.Noise(seed=0))
    torch.testing.assert_close(there["loss"].cpu(), here["loss"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "options", "tree"),
    [
        (nestruct.StructureNES, {"num_samples": 4}, "latent"),
        (nestruct.SST, {}, "latent"),
        (nestruct.NES, {"sigma": 0.05, "population_size": 8, "mode": "vmap"}, "latent"),
        (nestruct.Supervised, {}, "given"),
        (nestruct.Supervised, {}, "none"),
    ],
)
def test_a_captured_step_is_a_plain_one(kind, options, tree):
    batch, gradients = to_device(BATCH, torch.device("cuda")), []
    for graph in ("on", "off"):
        model, estimator = make(tree=tree).cuda(), kind(**options, graph=graph)
        for step in range(4):
            estimator.backward(model, batch, seed=0, step=step)
            pieces = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
            gradients.append(torch.cat(pieces))
    for captured, plain in zip(gradients[:4], gradients[4:], strict=True):
        assert torch.cosine_similarity(captured, plain, dim=0) > 0.999
