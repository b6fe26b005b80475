"""SNES: NES where sigma stands still, the derivative by sigma, and what an adaptive sigma buys."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn
from toys import Formula, bits, gradient, vae

import nestruct
from nestruct import NES, SNES, InputError, NestructError
from nestruct.noise import Noise
from nestruct.population.directions import fill_directions

X = bits(8, 6)
ONE = torch.zeros(1, 1, dtype=torch.float64)
SCALES = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)  # of sigma, where they shall differ


def unequal(**options: Any) -> SNES:
    """For three parameters, with sigmas that differ."""
    defaults: dict[str, Any] = {"sigma": 0.3, "adapt": "parameter", "sigma_lr": 1.0, "mode": "vmap"}
    estimator = SNES(**(defaults | options))
    estimator.load_state_dict({"log_scale": SCALES.log()})
    return estimator


def log_sigmas(estimator: SNES, model: nn.Module) -> torch.Tensor:
    return torch.cat([s.flatten() for s in estimator.sigmas(model).values()]).log()


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ranks": {"shaping": "centered_rank"},
    "raw, not mirrored": {"shaping": "none", "mirrored": False},
    "per member": {"gumbel": "per_member", "num_samples": 2},
    "chunks": {"chunk_size": 4, "memory_budget": 1},
    "some parameters": {"perturb": lambda name, p: "encoder" in name},
}


@pytest.mark.parametrize("adapt", ["tensor", "parameter"])
@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_a_step_size_it_is_nes(options, adapt, dtype):
    model, batch = vae().to(dtype), X.to(dtype)
    nes = NES(sigma=0.2, population_size=12, mode="vmap", **options)
    snes = SNES(sigma=0.2, population_size=12, mode="vmap", adapt=adapt, sigma_lr=0.0, **options)
    for step in range(3):
        plain = nes.backward(model, batch, seed=1, step=step)
        expected = gradient(model)
        report = snes.backward(model, batch, seed=1, step=step)
        assert torch.equal(gradient(model), expected)
        assert report.loss == plain.loss
        assert report.grad_norm == plain.grad_norm
    assert all((s == snes.sigma).all() for s in snes.sigmas(model).values())


@pytest.mark.parametrize("adapt", ["tensor", "parameter"])
@pytest.mark.parametrize("mirrored", [True, False])
@pytest.mark.parametrize("shaping", ["standard_score", "centered_rank", "none"])
def test_its_exact_value(shaping, mirrored, adapt):
    """Gradient and change of sigma against the formulas, written out member by member."""
    model = Formula(lambda theta, other: theta.exp().sum() + (other**4).sum(), 3, 2)
    sizes, sigma, rate = (3, 2), 0.4, 0.3
    log_scale = torch.linspace(-0.5, 0.7, 5 if adapt == "parameter" else 2, dtype=torch.float64)
    each = log_scale if adapt == "parameter" else log_scale.repeat_interleave(torch.tensor(sizes))
    sigmas = sigma * each.exp()
    options = {"mirrored": mirrored, "shaping": shaping, "adapt": adapt, "sigma_lr": rate}
    estimator = SNES(sigma=sigma, population_size=10, **options)
    estimator.load_state_dict({"log_scale": log_scale})
    estimator.backward(model, ONE, seed=2, step=5)

    s = torch.empty(estimator.num_pairs, 5, dtype=torch.float64)
    fill_directions(s, 0, seed=2, step=5, sigma=1.0, kind="gaussian")
    s = torch.cat([s, -s]) if mirrored else s
    members = torch.cat([t.detach() for t in model.theta]) + sigmas * s
    losses = members[:, :3].exp().sum(1) + (members[:, 3:] ** 4).sum(1)
    if shaping == "none":
        utilities = losses
        others = 10 / 8 if mirrored else 10 / 9  # less the mean over the other pairs
        centred = (losses - losses.mean()) * others
        centred = (centred[:5] + centred[5:]).repeat(2) / 2 if mirrored else centred
    elif shaping == "standard_score":
        utilities = centred = (losses - losses.mean()) / losses.std(correction=0)
    else:
        utilities = centred = losses.argsort().argsort().double() / 9 - 0.5
    torch.testing.assert_close(gradient(model), utilities @ s / sigmas / 10)
    slope = centred @ (s**2 - 1) / 10
    if adapt == "tensor":
        slope = torch.stack([piece.mean() for piece in slope.split(sizes)])
    expected = log_scale - rate / 2 * slope
    torch.testing.assert_close(estimator.state_dict()["log_scale"], expected)


@pytest.mark.parametrize("adapt", ["tensor", "parameter"])
@pytest.mark.parametrize("mirrored", [True, False])
def test_the_mean_change_is_the_derivative(mirrored, adapt):
    """E[loss] of a quadratic is its value at the centre + the sum of A_ii sigma_i^2 / 2."""
    matrix = torch.tensor([[2.0, 0.3, 0.0], [0.3, -1.0, 0.1], [0, 0.1, 3.0]], dtype=torch.float64)
    model = Formula(lambda theta: theta @ matrix @ theta / 2 + 20)
    changes = []
    for step in range(300):
        estimator = unequal(population_size=100, shaping="none", mirrored=mirrored, adapt=adapt)
        scales = SCALES if adapt == "parameter" else SCALES[2:]
        estimator.load_state_dict({"log_scale": scales.log()})
        estimator.backward(model, ONE, seed=0, step=step)
        changes.append(estimator.state_dict()["log_scale"] - scales.log())
    found = torch.stack(changes)
    by_log_sigma = matrix.diag() * (0.3 * scales) ** 2
    truth = -by_log_sigma / 2 if adapt == "parameter" else -by_log_sigma.mean()[None] / 2
    error = found.std(0) / len(found) ** 0.5
    assert ((found.mean(0) - truth).abs() < 4 * error).all()
    if mirrored:  # few enough errors to tell each from zero
        assert (truth.abs() > 4 * error).all()


def test_the_gradient_is_right_with_sigmas_that_differ():
    """The smoothed quartic's gradient at the centre: 4 m^3 + 12 m sigma_i^2."""
    model = Formula(lambda theta: (theta**4).sum())
    estimates = []
    for step in range(400):
        estimator = unequal(population_size=40, shaping="none")
        estimator.backward(model, ONE, seed=0, step=step)
        estimates.append(gradient(model))
    found, centre = torch.stack(estimates), model.theta[0].detach()
    truth = 4 * centre**3 + 12 * centre * (0.3 * SCALES) ** 2
    error = found.std(0) / len(found) ** 0.5
    assert ((found.mean(0) - truth).abs() < 4 * error).all()


CURVATURES = torch.logspace(0, 3, 10, dtype=torch.float64)


def valley() -> Formula:
    model = Formula(lambda theta: (CURVATURES * theta**2).sum() / 2, 10)
    nn.init.ones_(model.theta[0])
    return model


def steps_to(target: float, estimator: NES, lr: float, limit: int) -> int:
    model = valley()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for step in range(limit):
        estimator.backward(model, ONE, seed=0, step=step)
        optimizer.step()
        with torch.no_grad():
            if model.loss(ONE, None) < target:
                return step + 1
    return limit


def test_steep_parameters_get_small_sigmas():
    """At the bottom, where curvature is all there is; the ideal is sigma ~ curvature^-1/2."""
    model = valley()
    nn.init.zeros_(model.theta[0])
    estimator = SNES(sigma=0.1, population_size=40, adapt="parameter", mode="vmap")
    for step in range(60):
        estimator.backward(model, ONE, seed=0, step=step)
    found = log_sigmas(estimator, model)
    assert torch.corrcoef(torch.stack([found, CURVATURES.log()]))[0, 1] < -0.9
    assert found[0] - found[-1] > 2.3  # ten times wider


def test_an_ill_scaled_loss_needs_fewer_evaluations():
    """Condition 1000, same Adam, from a loss of 1000 to 0.01; the first sigma may be far off.

    With its learning rate tuned for each sigma too, the best NES needs as few.
    """
    options = {"population_size": 20, "mode": "vmap"}
    adapted = steps_to(0.01, SNES(sigma=1.0, adapt="parameter", **options), 0.01, 300)
    assert adapted < 250
    for sigma in (1.0, 0.1, 0.01):
        assert steps_to(0.01, NES(sigma=sigma, **options), 0.01, 350) == 350


def test_one_sigma_for_each_tensor():
    model = Formula(lambda flat, steep: (flat**2).sum() + 100 * (steep**2).sum(), 6, 4)
    for theta in model.theta:
        nn.init.zeros_(theta)
    estimator = SNES(sigma=0.1, population_size=40, mode="vmap")
    for step in range(20):
        estimator.backward(model, ONE, seed=0, step=step)
    sigmas = estimator.sigmas(model)
    assert {name: s.shape for name, s in sigmas.items()} == {"theta.0": (), "theta.1": ()}
    assert sigmas["theta.1"] < 0.5 * sigmas["theta.0"]
    each = SNES(sigma=0.1, population_size=40, adapt="parameter")
    each.backward(model, ONE, seed=0)
    assert [tuple(s.shape) for s in each.sigmas(model).values()] == [(6,), (4,)]


@pytest.mark.parametrize("adapt", ["tensor", "parameter"])
def test_chunks_modes_and_memory_do_not_change_the_update(adapt):
    model = vae(nestruct.SpanningTree(4))

    def three_steps(**options) -> tuple[torch.Tensor, torch.Tensor]:
        options = {"mode": "vmap", "adapt": adapt, "sigma_lr": 0.5, **options}
        estimator = SNES(sigma=0.2, population_size=14, **options)
        for step in range(3):
            estimator.backward(model, X, seed=3, step=step)
        return gradient(model), log_sigmas(estimator, model)

    expected = three_steps()
    assert expected[1].std() > 0
    for change in (
        {"mode": "loop"},
        {"chunk_size": 4},
        {"chunk_size": 4, "memory_budget": 1},  # too little to keep directions
        {"mode": "auto"},
    ):
        for found, value in zip(three_steps(**change), expected, strict=True):
            torch.testing.assert_close(found, value, rtol=1e-9, atol=1e-9)


def test_a_step_reads_sigma_and_changes_it_once():
    """Capture runs a step several times over; what it reads must stay where it is."""
    model = vae()
    estimator = SNES(sigma=0.2, population_size=12, sigma_lr=0.5, mode="vmap")
    estimator.backward(model, X, seed=0)
    state, options = estimator._log_scale, estimator._captured()
    before = state.clone()
    layout = nestruct.population.Layout(model)
    for _ in range(3):
        estimator.estimate(model, layout, X, Noise(seed=0, step=1))
    assert torch.equal(state, before)
    estimator.backward(model, X, seed=0, step=1)
    assert estimator._log_scale is state
    assert not torch.equal(state, before)
    assert estimator._captured() == options


@pytest.mark.parametrize("adapt", ["tensor", "parameter"])
def test_state_is_restored_to_the_bit(adapt):
    options = {"sigma": 0.2, "population_size": 12, "adapt": adapt, "sigma_lr": 0.5}
    model, first, second = vae().float(), SNES(**options), SNES(**options)
    assert first.state_dict() == {}
    for step in range(3):
        first.backward(model, X.float(), seed=0, step=step)
    saved = first.state_dict()
    copy = saved["log_scale"].clone()
    second.load_state_dict(saved)
    for step in range(3, 6):
        found = []
        for estimator in (first, second):
            estimator.backward(model, X.float(), seed=0, step=step)
            found.append((gradient(model), log_sigmas(estimator, model)))
        assert torch.equal(found[0][0], found[1][0])
        assert torch.equal(found[0][1], found[1][1])
    assert torch.equal(saved["log_scale"], copy)  # what was saved does not follow
    second.load_state_dict({})
    assert (log_sigmas(second, model) == torch.tensor(0.2).log()).all()


def test_another_model_starts_anew(caplog):
    estimator = SNES(sigma=0.2, population_size=12, sigma_lr=0.5, adapt="parameter", mode="vmap")
    small, large = vae(), vae(hidden=9)
    estimator.backward(small, X, seed=0)
    assert (log_sigmas(estimator, large) == log_sigmas(estimator, large)[0]).all()
    assert log_sigmas(estimator, small).std() > 0  # looking changes nothing
    with caplog.at_level("INFO", logger="nestruct"):
        estimator.backward(large, X, seed=0)
    assert "sigma starts anew" in caplog.text


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_members_that_fail_lose_their_pair(value):
    def loss(theta):
        return (theta**2).sum() + torch.where(theta[0] > 0.1, value, 0.0)

    model = Formula(loss)
    nn.init.zeros_(model.theta[0])
    estimator = unequal(population_size=40, shaping="none")
    report = estimator.backward(model, ONE, seed=0)
    assert 0 < report.num_failed < 40
    s = torch.empty(20, 3, dtype=torch.float64)
    fill_directions(s, 0, seed=0, step=0, sigma=1.0, kind="gaussian")
    s = s[(s[:, 0] * 0.3 * SCALES[0]).abs() <= 0.1]
    losses = ((0.3 * SCALES * s) ** 2).sum(1)
    slope = (losses - losses.mean()) @ (s**2 - 1) / (len(s) - 1)
    torch.testing.assert_close(estimator.state_dict()["log_scale"], SCALES.log() - slope / 2)


def test_sigma_stays_where_all_members_fail_or_are_equal():
    broken = Formula(lambda theta: theta.sum() * torch.nan)
    estimator = unequal(population_size=8)
    with pytest.raises(NestructError, match="not finite"):
        estimator.backward(broken, ONE, seed=0)
    assert torch.equal(estimator.state_dict()["log_scale"], SCALES.log())
    for shaping in ("standard_score", "centered_rank", "none"):
        constant = Formula(lambda theta: 0 * theta.sum() + 558.1513)
        estimator = unequal(population_size=30, shaping=shaping)
        estimator.backward(constant, ONE, seed=0)
        found = estimator.state_dict()["log_scale"]
        torch.testing.assert_close(found, SCALES.log(), rtol=0, atol=1e-10)


BAD_OPTIONS = [
    ({"adapt": "layer"}, "adapt must be one of 'tensor', 'parameter'"),
    ({"sigma_lr": -0.1}, "sigma_lr must not be negative"),
    ({"sigma_lr": float("nan")}, "sigma_lr must not be negative"),
    ({"minibatch": "per_pair"}, "differ by their examples"),
    ({"directions": "rademacher"}, "the same squares"),
    ({"population_size": 7}, "SNES: a mirrored population comes in pairs"),
    ({"sigma": 0.0}, "SNES: sigma must be positive"),
]


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS, ids=[m for _, m in BAD_OPTIONS])
def test_bad_options_are_refused_in_a_sentence(options, message):
    with pytest.raises(InputError, match=message):
        SNES(**({"population_size": 8} | options))


def test_a_vae_learns_with_a_sigma_for_each_parameter():
    data = bits(4, 8, seed=3)
    model = vae(inputs=8, hidden=8, divergence="none")
    estimator = SNES(population_size=40, adapt="parameter", mode="vmap")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    losses = []
    for step in range(151):
        if step % 150 == 0:
            with torch.no_grad():
                draws = [model.loss(data, Noise(seed=9, stream=s)).mean() for s in range(20)]
            losses.append(float(torch.stack(draws).mean()))
        estimator.backward(model, data, seed=0, step=step)
        optimizer.step()
    assert losses[1] < 0.6 * losses[0]


@pytest.mark.cuda
@pytest.mark.parametrize("adapt", ["tensor", "parameter"])
def test_the_captured_step_equals_the_plain_one(adapt):
    model = vae(nestruct.SpanningTree(4)).cuda()
    options = {"sigma": 0.2, "population_size": 12, "adapt": adapt, "sigma_lr": 0.5}
    eager, graphed = SNES(graph="off", **options), SNES(graph="on", **options)
    for step in range(6):
        batch = bits(8, 6, seed=step).cuda()
        graphed.backward(model, batch, seed=3, step=step)
        found = gradient(model).clone()
        eager.backward(model, batch, seed=3, step=step)
        torch.testing.assert_close(found, gradient(model))
        torch.testing.assert_close(log_sigmas(graphed, model), log_sigmas(eager, model))
    assert log_sigmas(eager, model).std() > 0
    assert len(graphed._graphed.captured) == 1  # another sigma is no reason to capture again
    other = dataclasses.replace(eager)  # and from the CPU's state to the same bits on the GPU
    other.load_state_dict(
        {k: v.cpu() if k == "log_scale" else v for k, v in eager.state_dict().items()}
    )
    for estimator in (eager, other):
        estimator.backward(model, X.cuda(), seed=3, step=9)
    assert torch.equal(log_sigmas(eager, model), log_sigmas(other, model))
