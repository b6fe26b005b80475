"""Losses that compare structures: against lists of all members, closed forms and differences."""

import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from cases import CASES, GIBBS_CASES, SIZED_CASES, Case, totals
from torch import Tensor, nn

import nestruct
from nestruct import FenchelYoungLoss, InputError, Noise, SPOPlusLoss

WITH_CHOICE = [case for case in CASES if len(case.members()) > 1]
each_case = pytest.mark.parametrize("case", WITH_CHOICE, ids=repr)
SUBSET = nestruct.KSubset(5, 2)
PATHS = nestruct.GridPath(3, 3, scores="edges")


def drawn(case: Case, rows: int = 4, seed: int = 0) -> Tensor:
    """Scores below what noise and doubling can make positive, which some solvers count as 0."""
    generator = torch.Generator().manual_seed(seed)
    return -3 - 0.3 * torch.rand(rows, *case.shape, generator=generator, dtype=torch.float64)


def truths(case: Case, rows: int = 4) -> Tensor:
    members = case.members()
    return members[torch.arange(rows) * 7 % len(members)]


def slope(loss: Any, scores: Tensor, *more: Tensor, **context: Any) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    leaf = scores.clone().requires_grad_()
    values = loss(leaf, *more, **context)
    (found,) = torch.autograd.grad(values.sum(), leaf)
    return values.detach(), found


def difference(loss: Any, scores: Tensor, *more: Tensor, step: float = 1e-6) -> Tensor:
    """The derivative of the sum along one random direction, by two values with the same draws."""
    generator = torch.Generator().manual_seed(5)
    direction = torch.randn(scores.shape, generator=generator, dtype=scores.dtype)
    values = []
    for sign in (1, -1):
        torch.manual_seed(0)
        values.append(loss(scores + sign * step * direction, *more).sum())
    found = slope(loss, scores, *more)[1]
    torch.testing.assert_close((found * direction).sum(), (values[0] - values[1]) / (2 * step))
    return found


@pytest.mark.parametrize("noise", ["gaussian", "gumbel"])
@each_case
def test_fenchel_young_is_that_of_the_list_for_the_same_draws(case, noise):
    loss = FenchelYoungLoss(case.structure, sigma=0.3, num_samples=3, noise=noise)
    scores, z_true, members = drawn(case), truths(case), case.members()
    values, found = slope(loss, scores, z_true)
    torch.manual_seed(0)
    eps = torch.empty(3, *scores.shape, dtype=torch.float64)
    eps = eps.normal_() if noise == "gaussian" else -eps.exponential_().log()
    perturbed = scores + 0.3 * eps
    best = totals(members, case.counted(perturbed)).max(-1)
    assert (best.values == totals(members, perturbed).amax(-1)).all()  # nothing was clipped
    axes = tuple(range(-len(case.shape), 0))
    expected = (best.values - (perturbed * z_true).sum(axes)).mean(0)
    torch.testing.assert_close(values, expected)
    torch.testing.assert_close(found, members[best.indices].mean(0) - z_true)
    assert (values >= -1e-9).all()
    difference(loss, scores, z_true)


def test_gumbel_noise_over_categories_gives_the_cross_entropy():
    scores = torch.tensor([[0.3, -1.0, 0.8]], dtype=torch.float64)
    z_true, cases = torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64), 200_000
    loss = FenchelYoungLoss(nestruct.Categorical(3), num_samples=cases, noise="gumbel")
    values, found = slope(loss, scores, z_true)
    # A draw's deviation is below 2 for the loss, and 1/2 for the gradient: five errors of the mean.
    assert (values - (scores.logsumexp(-1) - 0.8)).abs() < 5 * 2 / math.sqrt(cases)
    assert ((found - (scores.softmax(-1) - z_true)).abs() < 2.5 / math.sqrt(cases)).all()


def test_gaussian_noise_over_two_categories_has_a_closed_form():
    """E max(h + a, b) for normal a and b: a normal difference of variance 2 sigma^2."""
    gap, sigma, cases = 0.7, 1.5, 200_000
    scores, z_true = torch.tensor([[gap, 0.0]]).double(), torch.tensor([[0.0, 1.0]]).double()
    normal, spread = torch.distributions.Normal(0.0, 1.0), sigma * math.sqrt(2)
    ratio = torch.tensor(gap / spread)
    expected = gap * normal.cdf(ratio) + spread * normal.log_prob(ratio).exp()
    loss = FenchelYoungLoss(nestruct.Categorical(2), sigma=sigma, num_samples=cases)
    values, found = slope(loss, scores, z_true)
    assert (values - expected).abs() < 5 * 2 * sigma / math.sqrt(cases)
    assert (found[0, 0] - normal.cdf(ratio)).abs() < 2.5 / math.sqrt(cases)


@pytest.mark.parametrize("case", [c for c in GIBBS_CASES if c in WITH_CHOICE], ids=repr)
def test_with_the_gibbs_law_it_is_the_negative_log_likelihood(case):
    scores, z_true, members = drawn(case), truths(case), case.members()
    values, found = slope(FenchelYoungLoss(case.structure, law="gibbs"), scores, z_true)
    total = totals(members, scores)
    axes = tuple(range(-len(case.shape), 0))
    torch.testing.assert_close(values, total.logsumexp(-1) - (scores * z_true).sum(axes))
    marginals = torch.tensordot(total.softmax(-1), members, 1)
    torch.testing.assert_close(found, marginals - z_true, rtol=1e-6, atol=1e-7)
    cold = slope(FenchelYoungLoss(case.structure, sigma=0.5, law="gibbs"), scores, z_true)[0]
    doubled = slope(FenchelYoungLoss(case.structure, law="gibbs"), 2 * scores, z_true)[0]
    torch.testing.assert_close(cold, doubled / 2)


@each_case
def test_spo_plus_is_that_of_the_list(case):
    loss, members = SPOPlusLoss(case.structure), case.members()
    scores, true = drawn(case), drawn(case, seed=1)
    values, found = slope(loss, scores, true)
    moved = totals(members, 2 * scores - true)
    best = totals(members, true).max(-1)
    rows = torch.arange(4)
    torch.testing.assert_close(values, moved.amax(-1) - moved[rows, best.indices])
    expected = 2 * (members[moved.argmax(-1)] - members[best.indices])
    torch.testing.assert_close(found, expected)
    decided = totals(members, true)[rows, totals(members, scores).argmax(-1)]
    assert (values >= best.values - decided - 1e-9).all()  # the regret
    difference(loss, scores, true)
    again = slope(loss, scores, true, z_true=members[best.indices])
    torch.testing.assert_close((values, found), again)


@pytest.mark.parametrize("case", [c for c in GIBBS_CASES if c in WITH_CHOICE], ids=repr)
def test_soft_spo_plus_is_that_of_the_list(case):
    members, scores, true = case.members(), drawn(case), drawn(case, seed=1)
    values, found = slope(SPOPlusLoss(case.structure, sigma=0.5), scores, true)
    moved, best = totals(members, 2 * scores - true), totals(members, true).argmax(-1)
    rows = torch.arange(4)
    torch.testing.assert_close(values, (moved / 0.5).logsumexp(-1) * 0.5 - moved[rows, best])
    mean = torch.tensordot((moved / 0.5).softmax(-1), members, 1)
    torch.testing.assert_close(found, 2 * (mean - members[best]), rtol=1e-6, atol=1e-7)
    hard = SPOPlusLoss(case.structure)(scores, true)
    assert (values >= hard - 1e-9).all()
    torch.testing.assert_close(
        SPOPlusLoss(case.structure, sigma=1e-4)(scores, true), hard, rtol=0, atol=1e-2
    )
    again = slope(SPOPlusLoss(case.structure, 0.5), scores, true, z_true=members[best])
    torch.testing.assert_close((values, found), again)


def test_both_losses_are_those_of_pyepo():
    """Where PyEPO is installed, which the set-up does not do; its solver is OR-Tools."""
    func = pytest.importorskip("pyepo.func")
    model = pytest.importorskip("pyepo.model.ort").shortestPathModel((3, 3))
    structure, many = nestruct.GridPath(3, 3, scores="edges"), 500
    torch.manual_seed(0)
    costs, true = torch.rand(5, 12), torch.rand(5, 12)
    best = structure.argmax(-true)
    lowest = (true * best).sum(-1, keepdim=True)
    theirs = func.SPOPlus(model, reduction="none")
    values, found = slope(lambda c: SPOPlusLoss(structure)(-c, -true), costs)
    peer, expected = slope(lambda c: theirs(c, true, best, lowest), costs)
    torch.testing.assert_close(values, peer.view(-1))
    torch.testing.assert_close(found, expected)
    sampled = func.perturbedFenchelYoung(model, n_samples=many, reduction="none")
    ours = FenchelYoungLoss(structure, num_samples=20_000)
    expected = slope(lambda c: sampled(c, best), costs)[1]
    found = slope(lambda c: ours(-c, best), costs)[1]
    # A part's deviation is at most 1/2: five errors of the mean of the fewer draws.
    torch.testing.assert_close(found, expected, rtol=0, atol=2.5 / many**0.5)
    assert expected.abs().max() > 0.3


def test_spo_plus_is_one_call_and_none_more_than_needed():
    calls: list[int] = []

    def solve(scores: Tensor) -> Tensor:
        calls.append(len(scores))
        return scores > 0

    loss, scores = SPOPlusLoss(nestruct.BlackBox(solve, 4)), torch.randn(3, 4)
    loss(scores, -scores)
    loss(scores, -scores, z_true=scores < 0)
    assert calls == [6, 3]


LOSSES: dict[str, Any] = {
    "gaussian": FenchelYoungLoss(PATHS, num_samples=5),
    "gumbel": FenchelYoungLoss(PATHS, num_samples=5, noise="gumbel"),
    "gibbs": FenchelYoungLoss(PATHS, law="gibbs"),
    "spo+": SPOPlusLoss(PATHS),
    "soft spo+": SPOPlusLoss(PATHS, sigma=0.5),
}
each_loss = pytest.mark.parametrize("name", LOSSES)


def paths(rows: int = 6) -> tuple[Tensor, Tensor]:
    """Scores, and a truth that fits each of the losses: a path is also a legal list of scores."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(rows, 12, generator=generator)
    return scores, PATHS.argmax(torch.randn(rows, 12, generator=generator))


@each_loss
def test_forbidden_parts_give_no_nan(name):
    scores, truth = paths(3)
    scores[0, (truth[0] == 0).nonzero()[0]] = -torch.inf
    scores[1, (truth[1] == 1).nonzero()[0]] = -torch.inf
    values, found = slope(LOSSES[name], scores, truth)
    assert found.isfinite().all()
    assert values[[0, 2]].isfinite().all()
    # A structure that is forbidden cannot be the truth; true scores there are only left out.
    assert values[1].isfinite() if "spo+" in name else values[1] == torch.inf


def test_parts_that_the_true_scores_forbid_are_never_taken():
    loss, (scores, truth) = SPOPlusLoss(PATHS), paths(3)
    true = torch.where(truth == 1, 1.0, -torch.inf)
    true[:, (truth.sum(0) == 0)] = 0.5
    values, found = slope(loss, scores, true)
    assert values.isfinite().all()
    assert (found[true == -torch.inf] == 0).all()


@each_loss
def test_rows_without_an_answer(name):
    scores, truth = paths(3)
    scores[1] = torch.nan
    with pytest.raises(InputError, match=r"\b1\b"):
        LOSSES[name](scores, truth)
    with nestruct.nan_rows():
        values, found = slope(LOSSES[name], scores, truth)
    assert values.isnan().tolist() == [False, True, False]
    assert found.isfinite().all()
    assert not found[1].any()
    assert found[0].any() or found[2].any()


@each_loss
def test_any_leading_axes(name):
    loss, (scores, truth) = LOSSES[name], paths(6)
    values, found = slope(loss, scores, truth)
    assert values.shape == (6,)
    folded = slope(loss, scores.view(2, 3, 12), truth.view(2, 3, 12))
    torch.testing.assert_close((folded[0].view(6), folded[1].view(6, 12)), (values, found))
    one = slope(loss, scores[0], truth[0])
    assert one[0].shape == ()
    first = slope(loss, scores[:1], truth[:1])
    torch.testing.assert_close((one[0][None], one[1][None]), first)
    assert loss(scores.view(2, 3, 12), truth[:3]).shape == (2, 3)  # the truth is repeated
    assert loss(scores[:0], truth[:0]).shape == (0,)


@each_loss
def test_start_and_goal_are_seen(name):
    scores, _ = paths(4)
    ends = {"start": torch.tensor([0, 1, 3, 4]), "goal": torch.tensor([8, 8, 5, 4])}
    truth = PATHS.argmax(-scores, **ends)
    values, found = slope(LOSSES[name], scores, truth, **ends)
    between = PATHS.counting(scores, **ends)
    assert between is not None
    assert not found[~between].any()
    assert values[-1] == 0  # there is nothing to choose
    junk = torch.where(between, truth, 5.0)
    torch.testing.assert_close(slope(LOSSES[name], scores, junk, **ends)[0], values)


@pytest.mark.parametrize("kind", ["gibbs", "gaussian", "spo+", "soft spo+"])
@pytest.mark.parametrize("case", [c for c in SIZED_CASES if c.least < 2 < c.size], ids=repr)  # type: ignore[operator]
def test_padding_changes_nothing(case, kind):
    lengths = torch.tensor([2, case.size])
    scores = drawn(case, 2)
    context = {"lengths": lengths}
    counting = case.structure.counting(scores, **context)
    assert counting is not None
    truth = case.structure.argmax(drawn(case, 2, seed=3), **context)
    if "spo+" in kind:
        if kind != "spo+" and case not in GIBBS_CASES:
            pytest.skip("no Gibbs law")
        loss: Any = SPOPlusLoss(case.structure, 0.0 if kind == "spo+" else 0.1)
    else:
        law: Any = "gibbs" if kind == "gibbs" else "perturbed"
        loss = FenchelYoungLoss(case.structure, sigma=0.1, num_samples=4, law=law)
    values, found = slope(loss, scores, truth, **context)
    assert found.isfinite().all()
    assert not found[~counting].any()
    padded = torch.where(counting, scores, torch.nan)
    again = slope(loss, padded, torch.where(counting, truth, 7.0), **context)
    torch.testing.assert_close(again, (values, found))


@each_loss
def test_half_precision_scores(name):
    scores, truth = paths()
    values, found = slope(LOSSES[name], scores.bfloat16(), truth.bool())
    wide, exact = slope(LOSSES[name], scores.bfloat16().float(), truth)
    assert values.dtype == torch.float32
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(values, wide)
    torch.testing.assert_close(found, exact.bfloat16())


# The solver breaks the graph, and torch looks at what goes on after the break, hiding this warning.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@each_loss
def test_compiled_surroundings_give_the_same(name):
    loss, (scores, truth) = LOSSES[name], paths()
    encoder = nn.Linear(12, 12)

    def call(x: Tensor) -> Tensor:
        return loss(encoder(x).tanh(), truth).mean()

    torch.compiler.reset()
    found = []
    for run in (call, torch.compile(call, backend="aot_eager")):
        torch.manual_seed(0)
        value = run(scores)
        found.append((value, torch.autograd.grad(value, encoder.weight)[0]))
    torch.testing.assert_close(*found)


def test_importing_nestruct_imports_no_compiler():
    """It takes a second, in every command and every run."""
    code = "import sys, nestruct; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("noise", ["gaussian", "gumbel"])
def test_draws_are_torchs_or_those_of_the_examples(noise):
    loss, (scores, truth) = FenchelYoungLoss(PATHS, num_samples=3, noise=noise), paths()
    torch.manual_seed(0)
    first, second = loss(scores, truth), loss(scores, truth)
    assert not torch.equal(first, second)
    state = torch.get_rng_state()
    whole = loss(scores, truth, draws=Noise(seed=1))
    assert torch.equal(torch.get_rng_state(), state)
    part = loss(scores[2:4], truth[2:4], draws=Noise(seed=1, example=torch.tensor([2, 3])))
    torch.testing.assert_close(part, whole[2:4])
    generator = torch.Generator().manual_seed(0)
    torch.testing.assert_close(loss(scores, truth, draws=generator), first)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: FenchelYoungLoss(lambda s: s), "goes into BlackBox"),  # type: ignore[arg-type]
        (lambda: FenchelYoungLoss(SUBSET, sigma=0), "sigma"),
        (lambda: FenchelYoungLoss(SUBSET, num_samples=0), "num_samples"),
        (lambda: FenchelYoungLoss(SUBSET, noise="cauchy"), "'gaussian', 'gumbel'"),  # type: ignore
        (lambda: FenchelYoungLoss(nestruct.BlackBox(torch.sign, 3), law="gibbs"), "Gibbs law"),
        (lambda: FenchelYoungLoss(SUBSET)(torch.zeros(2, 5), torch.zeros(3, 5)), "z_true"),
        (lambda: FenchelYoungLoss(SUBSET)(torch.zeros(2, 5).long(), None), "convert them"),
        (lambda: SPOPlusLoss(SUBSET)(torch.zeros(2, 5), torch.zeros(4)), "true_scores"),
        (lambda: SPOPlusLoss(SUBSET)(torch.zeros(2, 5), [1.0]), "true_scores must be a tensor"),
        (lambda: SPOPlusLoss(SUBSET)(torch.zeros(2, 5), torch.zeros(5), weights=1), "weights"),
    ],
)
def test_mistakes_are_told(call, said):
    with pytest.raises(InputError, match=said):
        call()


@pytest.mark.parametrize("name", ["gaussian", "gibbs", "spo+"])
def test_a_linear_model_learns_the_paths(name):
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(100, 4, generator=generator), torch.randn(4, 12, generator=generator)
    costs = x @ weight + 3
    best = PATHS.argmax(-costs)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(4, 12)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        before = (PATHS.argmax(-model(x)) == best).all(-1).float().mean()
        for _ in range(40):
            loss = LOSSES[name](-model(x), -costs if name == "spo+" else best).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        after = (PATHS.argmax(-model(x)) == best).all(-1).float().mean()
    assert before < 0.5
    assert after > 0.85
