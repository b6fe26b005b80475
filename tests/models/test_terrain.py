"""Predicted costs of tiles and the paths they choose: both losses, the metrics, and learning."""

import math

import pytest
import torch

import nestruct
from nestruct import InputError, Noise
from nestruct.data import Terrain
from nestruct.models import TerrainPaths

DATA = Terrain(
    height=6, width=6, smoothness=0, noise=0.5, num_train=200, num_validation=1, num_test=100
).splits()


def model(**options) -> TerrainPaths:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return TerrainPaths(6, 6, 6, **options)


@pytest.mark.parametrize("loss", ["hamming", "squared", "regret"])
def test_the_loss_of_each_path_is_what_it_is_called(loss):
    batch, found = DATA["train"], model(loss=loss)
    z = found.sample(batch, 3, Noise(seed=0))
    losses = -found.decode(batch, z)
    for sample in range(3):
        for row in (0, 7):
            path, truth, costs = (each.tolist() for each in (z[sample, row], *_truth(batch, row)))
            expected = 0.0
            for i in range(6):
                for j in range(6):
                    differs = path[i][j] - truth[i][j]
                    expected += differs * costs[i][j] if loss == "regret" else abs(differs)
            assert float(losses[sample, row]) == pytest.approx(expected, abs=1e-4)
            assert losses[sample, row] > -1e-4


def _truth(batch, row):
    return batch["z"][row], batch["costs"][row]


def test_hamming_and_squared_differ_in_their_derivative():
    batch = DATA["train"]
    z = model().sample(batch, 1, Noise(seed=0))[0].requires_grad_()
    slopes = []
    for loss in ("hamming", "squared"):
        (slope,) = torch.autograd.grad(-model(loss=loss).decode(batch, z).sum(), z)
        slopes.append(slope)
    torch.testing.assert_close(slopes[0], 1 - 2 * batch["z"])
    torch.testing.assert_close(slopes[1], 2 * (z.detach() - batch["z"]))


def test_the_metrics():
    batch, found = DATA["test"], model()
    values = nestruct.evaluate(found, batch, batch_size=70)
    z = found.infer(batch)
    regret = (batch["costs"] * (z - batch["z"])).sum((1, 2))
    total = (batch["costs"] * batch["z"]).sum()
    assert values["regret"] == pytest.approx(float(regret.sum() / total), rel=1e-5)
    assert values["accuracy"] == pytest.approx(float((regret < 1e-4).float().mean()))
    assert 0 < values["accuracy"] < 1
    # All tiles are predicted to cost about 3, so those that cost 3.2 are right.
    right = (batch["costs"] - 3.2).abs() < 0.1
    assert values["accuracy_tiles"] == pytest.approx(float(right.float().mean()), abs=0.02)
    # Gumbel noise is above 3 with chance 1 - exp(-exp(-3)).
    assert values["share_free"] == pytest.approx(1 - math.exp(-math.exp(-3)), abs=0.01)


def test_every_optimal_path_counts_not_only_the_true_one():
    costs = torch.ones(1, 6, 6)
    costs[0, 2, 2] = 9.0
    structure = model().structure
    batch = {"x": torch.zeros(1, 1, 36, 36), "costs": costs, "z": structure.argmax(-costs)}
    other = structure.argmax(-costs.mT.contiguous() - 1e-3 * torch.arange(6.0)[:, None])

    class Given(TerrainPaths):
        def encode(self, batch):
            return other - 1

    found = Given(6, 6, 6)
    assert torch.equal(found.infer(batch), other)
    assert not torch.equal(other, batch["z"])
    assert found.metrics(batch, Noise(seed=0))["accuracy"].tolist() == [1.0]


@pytest.mark.parametrize("positive", ["absolute", "softplus"])
def test_costs_are_positive_begin_as_said_and_scale(positive):
    batch, one = DATA["test"], model(positive=positive, first_cost=2.0)
    costs = one.costs(batch).detach()
    assert (costs > 0).all()
    assert costs.mean() == pytest.approx(2, abs=0.2)
    four = model(positive=positive, first_cost=2.0, score_scale=4.0)
    torch.testing.assert_close(four.encode(batch).detach(), -4 * costs)
    torch.testing.assert_close(four.true_scores(batch), -4 * batch["costs"])
    assert torch.equal(one.infer(batch), four.infer(batch))


def test_context_is_what_a_tile_is_read_by():
    changed = {key: value.clone() for key, value in DATA["test"].items()}
    changed["x"][:, :, :6, :6] += 1.0  # the first tile
    for context, reach in ((1, 1), (3, 2), (5, 3)):
        found = model(context=context)
        moved = (found.costs(DATA["test"]) - found.costs(changed)).abs().amax(0) > 1e-6
        expected = torch.zeros(6, 6, dtype=torch.bool)
        expected[:reach, :reach] = True
        assert torch.equal(moved, expected)


ESTIMATORS = {
    "two-stage": (nestruct.Supervised(loss="squared_error"), "hamming"),
    "SPO+": (nestruct.Supervised(loss="spo_plus"), "hamming"),
    "Fenchel-Young": (nestruct.Supervised(loss="fenchel_young", num_draws=4), "hamming"),
    "IMLE": (nestruct.IMLE(), "hamming"),
    "AIMLE": (nestruct.AIMLE(), "regret"),
    "Identity": (nestruct.Identity(noise="none"), "regret"),
    "StructureNES": (nestruct.StructureNES(num_samples=8, num_covariance=8), "regret"),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_methods_learn_to_choose(name):
    estimator, loss = ESTIMATORS[name]
    found = model(loss=loss)
    before = nestruct.evaluate(found, DATA["test"])["regret"]
    adam = torch.optim.Adam(found.parameters(), lr=0.01)
    nestruct.fit(
        found, estimator, adam, DATA["train"], max_steps=150, batch_size=16, progress=False
    )
    after = nestruct.evaluate(found, DATA["test"])["regret"]
    assert before > 0.28
    assert after < 0.14, (before, after)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"loss": "hammnig"}, "loss must be one of 'hamming'"),
        ({"context": 2}, "context must be odd"),
        ({"score_scale": 0}, "score_scale"),
        ({"positive": "relu"}, "positive must be one of"),
        ({"hidden_size": 0}, "hidden_size"),
    ],
)
def test_wrong_options_are_refused(options, said):
    with pytest.raises(InputError, match=said):
        model(**options)
