"""Predicted costs and the paths they choose: the loss is the regret, and every kind learns it."""

import pytest
import torch

import nestruct
from nestruct import InputError, Noise
from nestruct.data import ShortestPaths
from nestruct.models import PathCosts

DATA = ShortestPaths(num_train=64, num_validation=40, num_test=200, degree=2).splits()


def model(**options) -> PathCosts:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return PathCosts(5, 5, 5, **options)


def test_the_loss_is_the_regret_of_each_path():
    batch, found = DATA["train"], model()
    z = found.sample(batch, 3, Noise(seed=0))
    for sample in range(3):
        for row in (0, 7):
            costs = batch["costs"][row]
            paid = sum(float(costs[edge]) for edge in z[sample, row].nonzero()[:, 0])
            best = min(float(each @ costs) for each in found.structure.enumerate())
            regret = -found.decode(batch, z)[sample, row]
            assert float(regret) == pytest.approx(paid - best, abs=1e-5)
            assert regret >= 0


def test_the_metric_is_the_normalised_regret():
    batch, found = DATA["test"], model()
    values = nestruct.evaluate(found, batch, batch_size=70)
    regret = (batch["costs"] * (found.infer(batch) - batch["z"])).sum(-1)
    total = (batch["costs"] * batch["z"]).sum()
    assert values["regret"] == pytest.approx(float(regret.sum() / total), rel=1e-5)
    assert values["accuracy"] == pytest.approx(float((regret < 1e-5).float().mean()))
    assert 0 < values["accuracy"] < 1


def test_the_scale_moves_scores_and_no_decision():
    batch, one, four = DATA["test"], model(), model(score_scale=4.0)
    torch.testing.assert_close(four.encode(batch), 4 * one.encode(batch))
    torch.testing.assert_close(four.true_scores(batch), -4 * batch["costs"])
    assert torch.equal(one.infer(batch), four.infer(batch))
    assert model(hidden_size=7).encode(batch).shape == (200, 40)


ESTIMATORS = {
    "spo+": nestruct.Supervised(loss="spo_plus"),
    "Fenchel-Young": nestruct.Supervised(loss="fenchel_young", num_draws=8),
    "likelihood": nestruct.Supervised(loss="likelihood"),
    "two-stage": nestruct.Supervised(loss="squared_error"),
    "StructureNES": nestruct.StructureNES(),
    "ScoreNES": nestruct.ScoreNES(),
    "Reinforce": nestruct.Reinforce(law="gibbs", num_samples=16),
    "IMLE": nestruct.IMLE(num_samples=8),
    "Identity": nestruct.Identity(projection="none", num_samples=8),
    "NES": nestruct.NES(sigma=0.1, population_size=60, mode="vmap"),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_method_learns_to_decide(name):
    found = model()
    before = nestruct.evaluate(found, DATA["test"])["regret"]
    adam = torch.optim.Adam(found.parameters(), lr=0.1)
    nestruct.fit(
        found, ESTIMATORS[name], adam, DATA["train"], max_steps=60, batch_size=32, progress=False
    )
    after = nestruct.evaluate(found, DATA["test"])["regret"]
    assert before > 0.15
    assert after < 0.07, (before, after)


def test_wrong_options_are_refused():
    with pytest.raises(InputError, match="score_scale"):
        model(score_scale=0)
    with pytest.raises(InputError, match="num_features"):
        PathCosts(0, 2, 2)
