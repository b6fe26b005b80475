"""NES on a GPU: counter-based directions, the captured step equal to the plain one."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn
from toys import bits, gradient, vae

import nestruct
from nestruct import NES, NestructError
from nestruct.population.directions import fill_directions

pytestmark = pytest.mark.cuda

X = bits(8, 6)


def fill(pairs: int, size: int, first: int = 0, step=0, **changes) -> torch.Tensor:
    options: dict[str, Any] = {"seed": 0, "sigma": 1.0, "kind": "gaussian"} | changes
    out = torch.full((pairs, size), torch.nan, device="cuda")
    fill_directions(out, first, step=step, **options)
    return out


@pytest.mark.parametrize("kind", ["gaussian", "rademacher"])
def test_directions_depend_on_seed_step_and_pair_only(kind):
    for size in (1, 7, 4096, 5001):
        whole = fill(6, size, kind=kind)
        assert whole.isfinite().all()
        parts = torch.cat([fill(2, size, kind=kind), fill(4, size, 2, kind=kind)])
        assert torch.equal(parts, whole)
    whole = fill(6, 50_001, kind=kind)
    assert torch.equal(
        fill(6, 50_001, kind=kind, step=torch.zeros((), dtype=torch.long, device="cuda")), whole
    )
    for change in ({"seed": 1}, {"step": 1}):
        assert not torch.equal(fill(6, 50_001, kind=kind, **change), whole)
    assert abs(whole.mean()) < 0.01
    assert abs(whole.std() - 1) < 0.01
    assert abs(torch.corrcoef(whole)[0, 1:]).max() < 0.02
    torch.testing.assert_close(fill(6, 50_001, kind=kind, sigma=0.1), 0.1 * whole)
    if kind == "gaussian":
        assert abs((whole**4).mean() - 3) < 0.1


@pytest.mark.parametrize("gumbel", ["shared", "per_member"])
@pytest.mark.parametrize(
    "structure",
    [nestruct.Categorical(4), nestruct.SpanningTree(4), nestruct.KSubset(4, 2)],
    ids=repr,
)
def test_the_captured_step_equals_the_plain_one(structure, gumbel):
    model = vae(structure).cuda()
    eager = NES(sigma=0.2, population_size=12, gumbel=gumbel, graph="off")
    graphed = dataclasses.replace(eager, graph="on")
    for step in range(4):
        batch = bits(8, 6, seed=step).cuda()
        reports = [e.backward(model, batch, seed=3, step=step) for e in (eager, graphed)]
        found = gradient(model).clone()
        eager.backward(model, batch, seed=3, step=step)
        torch.testing.assert_close(found, gradient(model))
        torch.testing.assert_close(reports[0].loss, reports[1].loss)
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.01 * torch.sign(p.grad)


def test_chunks_and_loop_agree():
    model = vae(nestruct.SpanningTree(4)).cuda()
    batch = X.cuda()
    base = NES(sigma=0.2, population_size=12, graph="off")
    base.backward(model, batch, seed=0)
    expected = gradient(model).clone()
    for change in ({"chunk_size": 4}, {"mode": "loop"}, {"chunk_size": 4, "memory_budget": 1}):
        dataclasses.replace(base, **change).backward(model, batch, seed=0)
        torch.testing.assert_close(gradient(model), expected)


def test_what_cannot_be_captured_runs_without_a_graph(caplog):
    model = vae(nestruct.Categorical(4)).cuda()
    model.structure = nestruct.BlackBox(
        lambda s: (s == s.max(-1, keepdims=True)).astype(int), 4, backend="numpy"
    )
    model.kl = "none"
    with caplog.at_level("INFO", logger="nestruct"):
        NES(sigma=0.2, population_size=12).backward(model, X.cuda(), seed=0)
    assert "No CUDA graph" in caplog.text
    assert gradient(model).isfinite().all()


def test_running_statistics_follow_a_captured_step():
    found = []
    for graph in ("on", "off", "auto"):
        torch.manual_seed(0)
        model = vae(nestruct.Categorical(4))
        model.encoder = nn.Sequential(nn.BatchNorm1d(6), model.encoder)
        model, batch = model.double().cuda().train(), X.double().cuda()
        estimator = NES(sigma=0.2, population_size=12, graph=graph)
        for step in range(4):
            estimator.backward(model, batch + step, seed=0, step=step)
        norm = model.encoder[0]
        assert norm.num_batches_tracked == 4
        found.append(torch.cat([norm.running_mean, norm.running_var]))
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[2], found[1])


def test_all_members_failing_is_said_one_step_later():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.theta = nn.Parameter(torch.zeros(3))

        def loss(self, batch, noise):
            return self.theta.sum() * torch.nan + batch[:, 0]

    model, estimator = Broken().cuda(), NES(sigma=0.1, population_size=4)
    report = estimator.backward(model, X.cuda().float(), seed=0)
    assert report.num_failed == 4
    assert (model.theta.grad == 0).all()
    with pytest.raises(NestructError, match="not finite"):
        estimator.backward(model, X.cuda().float(), seed=0, step=1)


def test_a_captured_step_notices_what_changed():
    model, batch = vae(nestruct.Categorical(4)).cuda(), X.cuda()
    graphed = NES(sigma=0.2, population_size=12, graph="on")
    eager = NES(sigma=0.2, population_size=12, graph="off")

    def compare(**options) -> None:
        graphed.backward(model, batch, **options)
        found = gradient(model).clone()
        eager.backward(model, batch, **options)
        torch.testing.assert_close(found, gradient(model))

    first = graphed.backward(model, batch, seed=0, step=0)
    loss = float(first.loss)
    compare(seed=0, step=1)
    assert float(first.loss) == loss  # a report is not overwritten by the next step
    compare(seed=1, step=1)
    graphed.sigma = eager.sigma = 0.1
    compare(seed=1, step=2)
    model.decoder.requires_grad_(False)
    for p in model.parameters():
        p.grad = None
    compare(seed=1, step=3)
    model.encoder[0].weight = nn.Parameter(model.encoder[0].weight + 1)
    compare(seed=1, step=4)
    batch = bits(5, 6).cuda()
    compare(seed=1, step=5)
    model.eval()
    compare(seed=1, step=6)


@pytest.mark.parametrize("kind", ["gaussian", "rademacher"])
def test_more_pairs_than_an_axis_of_a_grid_has_places(kind):
    whole = fill(70_000, 10, kind=kind)
    assert torch.equal(fill(3, 10, 69_990, kind=kind), whole[69_990:69_993])
    assert whole.std(0).sub(1).abs().max() < 0.05


@pytest.mark.parametrize("graph", ["on", "off"])
@pytest.mark.parametrize("structure", [nestruct.Categorical(4), nestruct.KSubset(4, 2)], ids=repr)
@pytest.mark.parametrize("own", [{}, {"minibatch": "per_pair", "pair_batch_size": 1}])
@pytest.mark.parametrize("shaping", ["clipped", "centered_rank", "standard_score"])
def test_rank_one_with_kernels_is_the_loop(structure, graph, own, shaping):
    model, batch = vae(structure, inputs=45, hidden=37).float().cuda(), bits(9, 45).float().cuda()
    options: dict[str, Any] = {"sigma": 0.2, "population_size": 64, "directions": "rank1", **own}
    nes = NES(**options, shaping=shaping, graph=graph)
    loop = NES(**options, shaping=shaping, graph="off", mode="loop")
    for step in range(3):
        nes.backward(model, batch, seed=3, step=step)
        found = gradient(model).clone()
        loop.backward(model, batch, seed=3, step=step)
        torch.testing.assert_close(found, gradient(model), rtol=1e-3, atol=1e-3)


def test_snes_and_a_recurrent_network_of_rank_one_are_captured(monkeypatch):
    # The loop's LSTM is cuDNN's, whose products are in TF32 unless it is told otherwise.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.out = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 1)

        def loss(self, batch, noise):
            return self.out(self.lstm(batch)[0][:, -1])[:, 0].square()

    torch.manual_seed(0)
    model, x = Reader().cuda(), torch.randn(6, 5, 3, device="cuda")
    for sigma_rule in ("constant", "fan_in"):
        options: dict[str, Any] = {"directions": "rank1", "factors": "gaussian"}
        options |= {"sigma": 0.1, "population_size": 40, "sigma_rule": sigma_rule}
        one = nestruct.SNES(**options, graph="on", mode="vmap")
        other = nestruct.SNES(**options, graph="off", mode="loop")
        for step in range(3):
            one.backward(model, x, seed=3, step=step)
            found = gradient(model).clone()
            other.backward(model, x, seed=3, step=step)
            torch.testing.assert_close(found, gradient(model), rtol=1e-3, atol=1e-4)
