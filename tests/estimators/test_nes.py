"""NES: its exact value, its equalities, its options and what it does when things go wrong."""

import dataclasses
import logging
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from torch import nn
from toys import Formula, bits, gradient, vae

import nestruct
from nestruct import NES, InputError, NestructError
from nestruct.population import Layout
from nestruct.population.directions import fill_directions

X = bits(8, 6)
ONE = torch.zeros(1, 1, dtype=torch.float64)


def by_hand(model, batch, estimator: NES, seed: int, step: int) -> torch.Tensor:
    """Eq. 8 in a loop over members, with raw losses."""
    layout = Layout(model, estimator.perturb)
    flat = torch.empty(estimator.num_pairs, layout.size, dtype=layout.dtype)
    kind = estimator.directions
    fill_directions(flat, 0, seed=seed, step=step, sigma=1.0, kind=kind)
    noise = nestruct.Noise(seed=seed, step=step)
    centre = [p.detach().clone() for p in layout.parameters.values()]
    total = torch.zeros(layout.size, dtype=layout.dtype)
    signs = (1, -1) if estimator.mirrored else (1,)
    with torch.no_grad():
        for direction in flat:
            for sign in signs:
                for p, c, w in zip(
                    layout.parameters.values(),
                    centre,
                    layout.split(direction).values(),
                    strict=True,
                ):
                    p.copy_(c + sign * estimator.sigma * w)
                total += model.loss(batch, noise).mean() * sign * direction / estimator.sigma
        for p, c in zip(layout.parameters.values(), centre, strict=True):
            p.copy_(c)
    return total / estimator.population_size


@pytest.mark.parametrize("directions", ["gaussian", "rademacher"])
@pytest.mark.parametrize("mirrored", [True, False])
def test_its_exact_value_on_a_model(mirrored, directions):
    model = vae()
    estimator = NES(
        sigma=0.3, population_size=6, shaping="none", mirrored=mirrored, directions=directions
    )
    expected = by_hand(model, X, estimator, seed=5, step=7)
    estimator.backward(model, X, seed=5, step=7)
    torch.testing.assert_close(gradient(model), expected)


def test_linear_and_quadratic_losses():
    """Mirrored, a quadratic's gradient estimate is that of its tangent: exact in sigma."""
    slope = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    matrix = torch.tensor([[2.0, 0.3, 0.0], [0.3, 1.0, 0.1], [0, 0.1, 3.0]], dtype=torch.float64)
    linear = Formula(lambda theta: theta @ slope + 7)
    quadratic = Formula(lambda theta: theta @ matrix @ theta / 2)
    for model, truth in ((linear, slope), (quadratic, matrix @ quadratic.theta[0].detach())):
        estimator = NES(sigma=0.5, population_size=8, shaping="none")
        estimator.backward(model, ONE, seed=0, step=3)
        flat = torch.empty(4, 3, dtype=torch.float64)
        fill_directions(flat, 0, seed=0, step=3, sigma=1.0, kind="gaussian")
        torch.testing.assert_close(model.theta[0].grad, flat.T @ (flat @ truth) / 4)
        estimator = NES(sigma=0.5, population_size=40_000, shaping="none")
        estimator.backward(model, ONE, seed=0, step=0)
        error = 4 * truth.norm() / 20_000**0.5
        assert (model.theta[0].grad - truth).abs().max() < error


VARIANTS = {
    "plain": {},
    "per member": {"gumbel": "per_member"},
    "per pair": {"gumbel": "per_pair", "num_samples": 2},
    "own minibatches": {"minibatch": "per_pair", "pair_batch_size": 3},
    "ranks": {"shaping": "centered_rank"},
    "not mirrored": {"mirrored": False, "gumbel": "per_member"},
    "rademacher": {"directions": "rademacher", "shaping": "none"},
    "rank 1": {"directions": "rank1", "shaping": "clipped"},
    "rank 1, one example each": {
        "directions": "rank1",
        "factors": "gaussian",
        "minibatch": "per_pair",
        "pair_batch_size": 1,
    },
    "rank 1, not mirrored": {"directions": "rank1", "mirrored": False, "sigma_rule": "fan_in"},
    "fan-in": {"sigma_rule": "fan_in"},
}


@pytest.mark.parametrize("structure", [nestruct.Categorical(4), nestruct.SpanningTree(4)], ids=repr)
@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_chunks_modes_and_memory_do_not_change_the_update(options, structure):
    model = vae(structure)
    base = NES(sigma=0.2, population_size=12, mode="vmap", **options)
    first = base.backward(model, X, seed=3, step=4)
    expected = gradient(model)
    assert expected.abs().sum() > 0
    for change in (
        {"mode": "loop"},
        {"chunk_size": 4},
        {"chunk_size": 2, "mode": "loop"},
        {"chunk_size": 4, "memory_budget": 1},  # too little to keep directions
        {"mode": "auto"},
    ):
        other = dataclasses.replace(base, **change)
        report = other.backward(model, X, seed=3, step=4)
        torch.testing.assert_close(gradient(model), expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(report.loss, first.loss)
    base.backward(model, X, seed=3, step=4)
    assert torch.equal(gradient(model), expected)
    base.backward(model, X, seed=3, step=5)
    assert not torch.equal(gradient(model), expected)


def test_a_module_says_what_is_estimated():
    model = vae()
    for p in model.parameters():
        p.grad = torch.full_like(p, 7.0)
    NES(sigma=0.2, population_size=4, perturb=model.encoder).backward(model, X, seed=0)
    assert all((p.grad == 7).all() for p in model.decoder.parameters())
    assert all((p.grad != 7).all() for p in model.encoder.parameters())


@pytest.mark.parametrize("shaping", ["standard_score", "centered_rank", "none"])
@pytest.mark.parametrize("mirrored", [True, False])
def test_equal_losses_give_a_zero_update(shaping, mirrored):
    model = Formula(lambda theta: 0 * theta.sum() + 558.1513)
    NES(sigma=0.1, population_size=30, shaping=shaping, mirrored=mirrored).backward(
        model, ONE, seed=0
    )
    if shaping == "none" and not mirrored:  # raw losses times directions: noise around zero
        assert model.theta[0].grad.isfinite().all()
    else:
        assert (model.theta[0].grad == 0).all()


def test_equal_losses_in_single_precision():
    """A mean over examples must not turn equal losses into different ones."""

    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.theta = nn.Parameter(torch.zeros(3))

        def loss(self, batch, noise):
            return batch.exp().sum(1) * 1.2345 + 0 * self.theta.sum()

    model = Constant()
    for seed in range(20):
        batch = torch.randn(7, 5, generator=torch.Generator().manual_seed(seed))
        for size in (10, 34):
            NES(sigma=0.1, population_size=size, mode="vmap").backward(model, batch, seed=seed)
            assert (model.theta.grad == 0).all()


@pytest.mark.parametrize("minibatch", ["shared", "per_pair"])
@pytest.mark.parametrize("shaping", ["standard_score", "clipped"])
def test_rounding_is_no_difference(shaping, minibatch):
    model = Formula(lambda theta: 100 + 1e-14 * theta.sum().sign())
    nes = NES(sigma=0.5, population_size=10, shaping=shaping, minibatch=minibatch)
    nes.backward(model, ONE, seed=0)
    assert (model.theta[0].grad == 0).all()


def test_shaping_is_what_it_says():
    model = Formula(lambda theta: theta.exp().sum())
    flat = torch.empty(5, 3, dtype=torch.float64)
    fill_directions(flat, 0, seed=0, step=0, sigma=1.0, kind="gaussian")
    theta = model.theta[0].detach()
    losses = torch.cat([(theta + 0.5 * flat).exp().sum(1), (theta - 0.5 * flat).exp().sum(1)])
    both = torch.cat([flat, -flat])
    scores = (losses - losses.mean()) / losses.std(correction=0)
    NES(sigma=0.5, population_size=10).backward(model, ONE, seed=0)
    torch.testing.assert_close(model.theta[0].grad, scores @ both / (10 * 0.5))
    ranks = losses.argsort().argsort().double() / 9 - 0.5
    NES(sigma=0.5, population_size=10, shaping="centered_rank").backward(model, ONE, seed=0)
    torch.testing.assert_close(model.theta[0].grad, ranks @ both / (10 * 0.5))


def test_own_minibatches_are_shaped_by_pair_differences():
    """A loss that differs wildly between examples: only differences within a pair may count."""
    offsets = 1e6 * torch.arange(8, dtype=torch.float64)[:, None]

    class Offset(nn.Module):
        def __init__(self):
            super().__init__()
            self.theta = nn.Parameter(torch.tensor([1.0, -1.0], dtype=torch.float64))

        def loss(self, batch, noise):
            return batch[:, 0] + (self.theta**2).sum()

    model = Offset()
    NES(sigma=0.1, population_size=200, minibatch="per_pair").backward(model, offsets, seed=0)
    cosine = nn.functional.cosine_similarity(model.theta.grad, 2 * model.theta, dim=0)
    assert cosine > 0.95


class Fragile(nn.Module):
    """Not finite where theta is positive."""

    def __init__(self, centre: float, value: float):
        super().__init__()
        self.theta = nn.Parameter(torch.tensor([centre, 0.5], dtype=torch.float64))
        self.value = value

    def loss(self, batch, noise):
        bad = torch.where(self.theta[0] > 0, self.value, 0.0)
        return (self.theta**2).sum() + bad + 0 * batch.flatten(1).sum(1)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("mode", ["vmap", "loop"])
def test_members_that_fail_lose_their_pair(value, mode):
    model = Fragile(-0.15, value)
    estimator = NES(sigma=0.1, population_size=200, mode=mode, shaping="none")
    report = estimator.backward(model, ONE, seed=0)
    flat = torch.empty(100, 2, dtype=torch.float64)
    fill_directions(flat, 0, seed=0, step=0, sigma=0.1, kind="gaussian")
    failed = (-0.15 + torch.cat([flat, -flat])[:, 0] > 0).sum()
    assert 0 < report.num_failed == failed
    assert report.loss.isfinite()
    kept = flat[(flat[:, 0].abs() <= 0.15)]
    truth = 2 * model.theta.detach()
    expected = (kept.T @ (kept @ truth)) / (len(kept) * 0.1**2)
    torch.testing.assert_close(model.theta.grad, expected)


def test_all_members_failing_is_an_error_that_says_why():
    model = Fragile(50.0, torch.nan)
    with pytest.raises(NestructError, match=r"every pair .* not finite.*sigma may be too large"):
        NES(sigma=0.1, population_size=10).backward(model, ONE, seed=0)


@pytest.mark.parametrize("mode", ["vmap", "loop"])
def test_nan_scores_of_one_member_do_not_stop_the_rest(mode):
    class Sometimes(nestruct.StructuredVAE):
        def encode(self, batch):
            scores = self.encoder(batch)
            return torch.where(self.encoder[0].bias[0] > 0, scores, torch.nan)

    plain = vae(nestruct.SpanningTree(4))
    model = Sometimes(plain.encoder, plain.decoder, plain.structure)
    with torch.no_grad():
        model.encoder[0].bias[0] = 0.1
    report = NES(sigma=0.1, population_size=40, mode=mode).backward(model, X, seed=0)
    assert 0 < report.num_failed < 20
    assert gradient(model).isfinite().all()


def test_batch_norm_follows_the_centre():
    torch.manual_seed(0)
    model = vae(nestruct.Categorical(4))
    model.encoder.insert(1, nn.BatchNorm1d(5).double())
    expected = nn.BatchNorm1d(5).double()
    expected(model.encoder[0](X))
    NES(sigma=5.0, population_size=20).backward(model, X, seed=0)
    torch.testing.assert_close(model.encoder[1].running_mean, expected.running_mean)
    torch.testing.assert_close(model.encoder[1].running_var, expected.running_var)
    assert model.encoder[1].num_batches_tracked == 1
    model.eval()
    NES(sigma=5.0, population_size=20).backward(model, X, seed=0)
    assert model.encoder[1].num_batches_tracked == 1


def test_the_mode_is_chosen_once_and_said(caplog):
    caplog.set_level(logging.INFO, logger="nestruct")
    estimator = NES(sigma=0.1, population_size=8)
    model = vae(nestruct.SpanningTree(4))
    estimator.backward(model, X, seed=0)
    estimator.backward(model, X, seed=0, step=1)
    assert len(caplog.records) == 1
    assert "a pair takes vmap" in caplog.text
    resumed = NES(sigma=0.1, population_size=8)
    resumed.load_state_dict(estimator.state_dict())
    resumed.backward(model, X, seed=0)
    assert len(caplog.records) == 1


def test_layers_that_cannot_be_vmapped_are_looped(caplog):
    caplog.set_level(logging.INFO, logger="nestruct")

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.recurrent = nn.LSTM(3, 4, batch_first=True)

        def forward(self, batch):
            return self.recurrent(batch.view(-1, 2, 3))[0][:, -1]

    model = vae()
    model.encoder = Encoder().double()
    NES(sigma=0.1, population_size=8).backward(model, X, seed=0)
    assert "loop (it has recurrent layers" in caplog.text
    assert gradient(model).isfinite().all()

    class Opaque(nn.Module):
        """What no transform can look into."""

        def __init__(self):
            super().__init__()
            self.theta = nn.Parameter(torch.ones(2, dtype=torch.float64))

        def loss(self, batch, noise):
            value = sum(v * v for v in self.theta.tolist())
            return torch.full((len(batch),), value, dtype=torch.float64)

    opaque = Opaque()
    NES(sigma=0.1, population_size=400).backward(opaque, X, seed=0)
    assert "it cannot be vmapped" in caplog.text
    cosine = nn.functional.cosine_similarity(opaque.theta.grad, opaque.theta, dim=0)
    assert cosine > 0.9

    class Refusing(Opaque):
        """It does not even say why."""

        def loss(self, batch, noise):
            if torch._C._functorch.is_batchedtensor(self.theta):
                raise NotImplementedError
            return super().loss(batch, noise)

    NES(sigma=0.1, population_size=8).backward(Refusing(), X, seed=0)
    assert "it cannot be vmapped: NotImplementedError" in caplog.text


@pytest.mark.parametrize("minibatch", ["shared", "per_pair"])
def test_a_recurrent_model_may_evaluate_its_population_itself(minibatch, caplog):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.LSTM(3, 4, batch_first=True).double()

        def loss(self, batch, noise):
            return self.layer(batch.view(-1, 2, 3))[0].sum((1, 2))

        def population_losses(self, population, batch, noise):
            members = population.parameters()
            each = [{k: v[i] for k, v in members.items()} for i in range(population.num_members)]
            call = torch.func.functional_call
            return torch.stack([call(self, one, (batch, noise)) for one in each])

        forward = loss

    caplog.set_level(logging.INFO, logger="nestruct")
    options = {"sigma": 0.1, "population_size": 8, "minibatch": minibatch}
    found = []
    for mode in ("auto", "loop"):
        torch.manual_seed(0)
        model = Recurrent()
        NES(mode=mode, **options).backward(model, X, seed=0)
        found.append(gradient(model))
    torch.testing.assert_close(*found)
    expected = "by its own population_losses" if minibatch == "shared" else "loop (it has recurrent"
    assert expected in caplog.text


def test_chunks_of_pairs_that_share_a_batch_are_larger():
    """A member sees its pair's examples only, and takes no more memory than they do."""
    model, batch = vae(nestruct.SpanningTree(4)), bits(160, 6)
    chunks = []
    for options in ({}, {"minibatch": "per_pair", "pair_batch_size": 4}):
        nes = NES(sigma=0.1, population_size=1000, memory_budget=1 << 20, mode="vmap", **options)
        nes.backward(model, batch, seed=0)
        chunks.append(nes.state_dict()["chunk"])
    assert chunks[1] > 5 * chunks[0]


def test_generators_of_other_devices_are_left_alone(monkeypatch):
    """torch warns where all GPUs of a machine are asked for their state."""
    model = vae()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    NES(sigma=0.1, population_size=8).backward(model, X, seed=0)


def test_chunks_are_halved_when_memory_runs_out(caplog):
    class Hungry(nestruct.StructuredVAE):
        def population_losses(self, population, batch, noise):
            if population.num_members > 6:
                raise torch.OutOfMemoryError("not enough")
            return NotImplemented

    plain = vae()
    model = Hungry(plain.encoder, plain.decoder, plain.structure)
    NES(sigma=0.2, population_size=24, mode="vmap").backward(plain, X, seed=0)
    expected = gradient(plain).clone()
    with caplog.at_level(logging.INFO, logger="nestruct"):
        NES(sigma=0.2, population_size=24, mode="vmap").backward(model, X, seed=0)
    torch.testing.assert_close(gradient(model), expected)
    assert "chunks of 3 pairs" in caplog.text


def test_not_finite_at_the_centre_on_the_first_step():
    model = vae(nestruct.SpanningTree(4))
    with torch.no_grad():
        model.encoder[0].bias[0] = torch.nan
    with pytest.raises(NestructError, match="every pair has a member"):
        NES(sigma=0.1, population_size=8).backward(model, X, seed=0)


def test_dropout_and_batch_norm_are_reproducible():
    found = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        model = vae(seed=0)
        model.encoder.insert(1, nn.Dropout(0.5))
        model.encoder.insert(2, nn.BatchNorm1d(5).double())
        state = torch.get_rng_state()
        NES(sigma=0.1, population_size=8, mode="vmap").backward(model, X, seed=0)
        assert torch.equal(torch.get_rng_state(), state)
        found.append((gradient(model), model.encoder[2].running_mean.clone()))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_one_estimator_for_several_models():
    estimator = NES(sigma=0.1, population_size=np.int64(8))
    small, large = vae(), vae(hidden=50)
    estimator.backward(small, X, seed=np.int64(3), step=np.int32(1))
    estimator.backward(large, X, seed=0)
    recurrent = vae()
    recurrent.encoder = nn.Sequential(
        nn.Unflatten(1, (2, 3)), nn.LSTM(3, 4, batch_first=True), _Last()
    )
    estimator.backward(recurrent.double(), X, seed=0)
    assert gradient(recurrent).isfinite().all()


class _Last(nn.Module):
    def forward(self, result):
        return result[0][:, -1]


BAD_OPTIONS = [
    ({"population_size": 7}, "population_size 7 is odd"),
    ({"mirrored": False, "minibatch": "per_pair"}, "needs pairs"),
    ({"mirrored": False, "gumbel": "per_pair"}, "needs pairs"),
    ({"sigma": 0}, "sigma must be positive"),
    ({"sigma": float("nan")}, "sigma must be positive"),
    ({"sigma": "0.1"}, "sigma must be positive, got '0.1'"),
    ({"population_size": 0}, "whole number of at least 1"),
    ({"shaping": "rank"}, "shaping must be one of"),
    ({"chunk_size": 3}, "chunk_size must be even"),
    ({"pair_batch_size": 3}, "needs minibatch='per_pair'"),
    ({"gumbel": "none"}, "gumbel must be one of"),
]


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS, ids=[m for _, m in BAD_OPTIONS])
def test_bad_options_are_refused_in_a_sentence(options, message):
    with pytest.raises(InputError, match=message):
        NES(**({"sigma": 0.1, "population_size": 8} | options))


def test_other_mistakes():
    with pytest.raises(InputError, match="pair_batch_size is 9 but the batch has 8"):
        NES(sigma=0.1, population_size=8, minibatch="per_pair", pair_batch_size=9).backward(
            vae(), X, seed=0
        )
    with pytest.raises(InputError, match=r"must share their first axis, got sizes \[8, 7\]"):
        NES(sigma=0.1, population_size=8).backward(vae(), (X, X[1:]), seed=0)
    with pytest.raises(TypeError):
        NES(0.1, 8)


def test_memory_stays_within_the_budget():
    """600 members of Table 1's model, 931,587 parameters: all their weights would be 2.2 GB."""
    script = """
        import resource
        import torch
        import nestruct
        from nestruct.models import RelationalVAE

        torch.manual_seed(0)
        model, batch = RelationalVAE(10, 10, num_rollout_steps=3), {"x": torch.rand(1, 10, 10, 2)}
        assert sum(p.numel() for p in model.parameters()) == 931_587
        start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        estimator = nestruct.NES(
            sigma=0.01, population_size=600, memory_budget=256 * 2**20, mode="vmap"
        )
        report = estimator.backward(model, batch, seed=0)
        assert int(report.num_decoded) == 600
        assert all(p.grad.isfinite().all() and p.grad.any() for p in model.parameters())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print((peak - start) / 2**20, peak / 2**20)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    grown, peak = map(float, done.stdout.split())
    assert peak < 4
    assert grown < 0.5


def test_statistics_of_ones_own_are_followed():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.theta = nn.Parameter(torch.zeros(2))
            self.register_buffer("mean", torch.zeros(2))

        def loss(self, batch, noise):
            if self.training:  # assigned anew, not changed in place
                self.mean = 0.5 * self.mean + 0.5 * batch.mean(0)
            return ((batch - self.mean) * self.theta).sum(-1)

    model, estimator = Own().eval(), NES(sigma=0.1, population_size=4, mode="vmap")
    batch = torch.ones(6, 2)
    estimator.backward(model, batch, seed=0)
    assert (model.mean == 0).all()
    model.train()
    for step in range(1, 3):
        estimator.backward(model, batch, seed=0, step=step)
    assert (model.mean == 0.75).all()


def test_gradients_have_the_layout_of_their_parameters():
    class Strided(nn.Module):
        def __init__(self):
            super().__init__()
            weight = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
            self.weight = nn.Parameter(weight)

        def loss(self, batch, noise):
            return torch.conv2d(batch, self.weight).square().mean((1, 2, 3))

    model = Strided()
    NES(sigma=0.1, population_size=4).backward(model, torch.randn(5, 3, 6, 6), seed=0)
    assert model.weight.grad.stride() == model.weight.stride()
