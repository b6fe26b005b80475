"""check_layer: its truth against enumeration, what it passes, and what it catches."""

import pytest
import torch
from torch import Tensor, nn

import nestruct
from nestruct import (
    AIMLE,
    IMLE,
    BlackboxDifferentiation,
    ExactMarginals,
    Identity,
    InputError,
    PerturbedOptimizer,
    SolverLayer,
    StraightThrough,
    check_layer,
    perturb_and_map_law,
)

SUBSETS = nestruct.KSubset(4, 2)
generator = torch.Generator().manual_seed(0)
SCORES = torch.randn(3, 4, generator=generator, dtype=torch.float64)
COSTS = torch.randn(3, 4, generator=generator, dtype=torch.float64)
MIXING = torch.randn(4, 3, generator=generator, dtype=torch.float64)


def linear(z: Tensor) -> Tensor:
    return (z * COSTS).sum(-1)


def curved(z: Tensor) -> Tensor:
    return ((z @ MIXING).tanh() * COSTS[:, :3]).sum(-1).exp()


def exact(loss) -> Tensor:
    """The gradient of the expected loss of all instances, by listing members."""
    leaf = SCORES.clone().requires_grad_()
    law, members = perturb_and_map_law(SUBSETS, leaf), SUBSETS.enumerate().double()
    losses = torch.stack([loss(member.expand(3, 4)) for member in members], -1)
    (law * losses).sum().backward()
    assert leaf.grad is not None
    return leaf.grad


class Given(torch.autograd.Function):
    """Anyone's layer: its z is the argmax, its gradient whatever is wanted."""

    @staticmethod
    def forward(ctx, scores, gradient):
        ctx.gradient = gradient
        return SUBSETS.argmax(scores)

    @staticmethod
    def backward(ctx, slope):
        return ctx.gradient, None


def noisy(gradient: Tensor):
    """A layer with that gradient on average."""
    return lambda scores: Given.apply(scores, gradient + 0.3 * torch.randn_like(gradient))


def as_perturb_and_map(scores: Tensor) -> Tensor:
    return SUBSETS.argmax(scores)


LOSSES = {"linear": linear, "curved": curved}
each_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)


@each_loss
def test_the_exact_gradient_passes_and_mistakes_are_caught(loss):
    truth = exact(loss)
    right = check_layer(noisy(truth), loss, SCORES, SUBSETS)
    assert right.passed
    assert not right.biased_by_design
    assert right.cosine > 0.9
    assert right.scale == pytest.approx(1, abs=4 * right.scale_error)
    assert right.variance == pytest.approx(12 * 0.3**2, rel=0.2)
    wrongs = {"sign": -truth, "scale": 3 * truth, "direction": truth.roll(1, 1)}
    for name, wrong in wrongs.items():
        found = check_layer(lambda scores, w=wrong: Given.apply(scores, w), loss, SCORES, SUBSETS)
        assert (found.passed, found.undecided) == (False, False), name
        assert found.bias > 0.5
    wrong = check_layer(lambda scores: Given.apply(scores, -truth), loss, SCORES, SUBSETS)
    assert wrong.cosine == pytest.approx(-1)
    assert wrong.scale == pytest.approx(-1)
    assert wrong.bias == pytest.approx(2)


@pytest.mark.parametrize("alone", [False, True], ids=["batch", "one instance"])
def test_losses_of_one_number(alone):
    """A sum over the batch has the same truth; an instance alone has a loss of one number too."""
    if alone:
        loss, scores, truth = lambda z: linear(z)[0], SCORES[0], exact(linear)[0]
    else:
        loss, scores, truth = lambda z: curved(z).sum(), SCORES, exact(curved)
    found = check_layer(lambda scores: Given.apply(scores, truth), loss, scores, SUBSETS)
    assert found.passed
    assert found.bias < 1e-6


def test_a_loss_that_mixes_the_instances():
    """Against listing all triples of members."""

    def loss(z):
        return linear(z).sum().tanh()

    leaf = SCORES.clone().requires_grad_()
    law, members = perturb_and_map_law(SUBSETS, leaf), SUBSETS.enumerate().double()
    total = torch.zeros((), dtype=torch.float64)
    for first in range(6):
        for second in range(6):
            for third in range(6):
                chance = law[0, first] * law[1, second] * law[2, third]
                total = total + chance * loss(members[[first, second, third]])
    total.backward()
    assert leaf.grad is not None
    found = check_layer(lambda scores: Given.apply(scores, leaf.grad), loss, SCORES, SUBSETS)
    assert found.passed
    assert found.bias < 5 * found.noise
    assert found.noise < 0.2


@each_loss
def test_a_solver_without_a_law_has_a_long_reference(loss):
    """The same subsets as a black box: the truth is sampled."""
    solver = nestruct.BlackBox(as_perturb_and_map, 4)
    truth = exact(loss)
    right = check_layer(noisy(truth), loss, SCORES, solver)
    assert right.passed
    wrong = check_layer(noisy(0.5 * truth), loss, SCORES, solver)
    assert (wrong.passed, wrong.undecided) == (False, False)


def test_context_and_losses_that_look_at_values():
    def above(scores, limit):
        return scores > limit[:, None]

    solver, limit = nestruct.BlackBox(above, 4), torch.tensor([0.0, 0.5, 1.0])

    def loss(z):
        assert float(z.detach().sum()) >= 0  # cannot be vmapped
        return linear(z)

    layer = SolverLayer(solver, IMLE(strength=0.5, num_samples=8))
    options = {"num_trials": 100, "num_reference": 2000}
    found = check_layer(layer, loss, SCORES, solver, context={"limit": limit}, **options)
    assert found.passed
    # Part by part: the chance to be above the limit has the derivative f(limit - score).
    at = limit[:, None] - SCORES
    truth = COSTS * (-at - (-at).exp()).exp()
    found = check_layer(
        lambda scores: Given.apply(scores, truth),
        loss,
        SCORES,
        solver,
        context={"limit": limit},
        **options,
    )
    assert found.bias < 5 * found.noise
    assert found.passed


@pytest.mark.parametrize(
    "gradient",
    [
        IMLE(),
        IMLE(strength=3.0, num_samples=4),
        Identity(),
        Identity(noise="none"),
        ExactMarginals(),
        ExactMarginals(num_samples=3),
        AIMLE(),
        AIMLE(differences="central", num_samples=3, beta=0.5),
        BlackboxDifferentiation(),
        PerturbedOptimizer(),
        PerturbedOptimizer(num_samples=3, noise="gumbel", sigma=0.7),
        StraightThrough(temperature=0.5),
    ],
    ids=repr,
)
@each_loss
def test_ours_agree_with_their_own_limit(loss, gradient):
    found = check_layer(SolverLayer(SUBSETS, gradient), loss, SCORES, SUBSETS, num_trials=400)
    assert found.biased_by_design
    assert found.passed
    if not isinstance(gradient, BlackboxDifferentiation):  # which is of another loss, not a mean
        assert found.cosine > 0.5


class Wrong(IMLE):
    """Forgets what its strength is, like the public code."""

    def there_and_back(self, structure, scores, draws, **context):
        z, back = super().there_and_back(structure, scores, draws, **context)
        return z, lambda g: self.factor * back(g)

    factor = 1.0


@pytest.mark.parametrize("factor", [-1.0, 3.0, 0.3])
def test_a_mistake_in_ours_is_caught(factor):
    gradient = Wrong(strength=3.0, num_samples=8)
    gradient.factor = factor
    found = check_layer(SolverLayer(SUBSETS, gradient), curved, SCORES, SUBSETS, num_trials=400)
    assert found.biased_by_design
    assert (found.passed, found.undecided) == (False, False)


def test_a_linear_loss_and_a_small_strength_have_hardly_a_bias():
    layer = SolverLayer(SUBSETS, IMLE(strength=0.1, num_samples=64))
    found = check_layer(layer, linear, SCORES, SUBSETS)
    assert found.cosine > 0.99
    assert found.scale == pytest.approx(1, abs=0.1)


def test_few_trials_decide_nothing():
    found = check_layer(SolverLayer(SUBSETS, IMLE()), linear, SCORES, SUBSETS, num_trials=5)
    assert (found.passed, found.undecided) == (False, True)


def test_nothing_of_the_surroundings_is_changed():
    decoder = nn.Linear(4, 1).double()
    scores = SCORES.clone().requires_grad_()
    before = torch.get_rng_state()
    found = check_layer(
        SolverLayer(SUBSETS, IMLE()), lambda z: decoder(z)[..., 0], scores, SUBSETS, num_trials=20
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert scores.grad is None
    assert decoder.weight.grad is None
    again = check_layer(
        SolverLayer(SUBSETS, IMLE()), lambda z: decoder(z)[..., 0], scores, SUBSETS, num_trials=20
    )
    assert found == again


LAYER = SolverLayer(SUBSETS, IMLE())


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda: check_layer(LAYER, linear, SCORES, SUBSETS, num_trials=1), "num_trials must be"),
        (lambda: check_layer(LAYER, linear, SCORES, LAYER), "must be what the layer solves"),  # type: ignore[arg-type]
        (lambda: check_layer(LAYER, lambda z: z, SCORES, SUBSETS), r"shape \(3,\); got \(3, 4\)"),
        (
            lambda: check_layer(LAYER, lambda z: linear(z > 0), SCORES, SUBSETS),
            "no derivative with respect to z",
        ),
        (lambda: check_layer(lambda s: s[0], linear, SCORES, SUBSETS), "z shaped as the scores"),
        (lambda: check_layer(SUBSETS.argmax, linear, SCORES, SUBSETS), "without a gradient"),
        (lambda: check_layer(None, linear, SCORES, SUBSETS), "from scores to z, got None"),  # type: ignore[arg-type]
        (lambda: check_layer(LAYER, linear, SCORES.int(), SUBSETS), "of floats, got torch.int32"),
        (lambda: check_layer(LAYER, linear, SCORES.numpy(), SUBSETS), "floats, got ndarray"),  # type: ignore[arg-type]
        (lambda: check_layer(LAYER, lambda z: 1.0, SCORES, SUBSETS), "must give a tensor, got 1"),  # type: ignore[arg-type,return-value]
        (
            lambda: check_layer(SolverLayer(SUBSETS, IMLE()).eval(), linear, SCORES, SUBSETS),
            r"in evaluation mode: call its train\(\)",
        ),
    ],
)
def test_mistakes_are_refused(mistake, message):
    with pytest.raises(InputError, match=f"check_layer: .*{message}"):
        mistake()
