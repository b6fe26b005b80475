"""SolverLayer in the surroundings that people have, with every gradient that it can have."""

import copy
import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nestruct
from nestruct import InputError, SolverLayer
from nestruct.estimators import SolverGradient
from nestruct.estimators.registry import ESTIMATORS
from nestruct.structures.dynamic_programme import DynamicProgramme
from nestruct.structures.registry import STRUCTURES

GRADIENTS: dict[str, Any] = {
    name: kind for name, kind in ESTIMATORS.items() if issubclass(kind, SolverGradient)
}
DECODES_MEANS = {"PerturbedOptimizer"}
DRAWS_NOTHING = {"BlackboxDifferentiation"}


def make(name: str, num_samples: int = 1) -> SolverGradient:
    """With so many samples, where there can be several."""
    if any(option.name == "num_samples" for option in dataclasses.fields(GRADIENTS[name])):
        return GRADIENTS[name](num_samples=num_samples)
    return GRADIENTS[name]()


def takes(name: str, structure: nestruct.Structure) -> bool:
    """Whether a structure has what a gradient needs; the others are refused in a sentence."""
    try:
        SolverLayer(structure, GRADIENTS[name]())
    except InputError as error:
        if not str(error).startswith(f"{name}: {structure!r} "):
            raise
        return False
    return True


def scores_of(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


def pack(worth: np.ndarray, weights: np.ndarray, room: np.ndarray) -> np.ndarray:
    """One knapsack, by value for the weight."""
    z = np.zeros_like(worth)
    for item in np.argsort(-worth / weights):
        if worth[item] > 0 and z @ weights + weights[item] <= room:
            z[item] = 1
    return z


KNAPSACK = nestruct.BlackBox(pack, 6, batched=False, backend="numpy")
each_gradient = pytest.mark.parametrize("name", GRADIENTS)
each_that_needs_a_solver_only = pytest.mark.parametrize(
    "name", [name for name in GRADIENTS if takes(name, KNAPSACK)]
)
PACKS = {"weights": scores_of(4, 6, seed=1).abs() + 0.1, "room": torch.tensor([0.5, 1, 1.5, 2])}


def loss_of(z: Tensor) -> Tensor:
    """One number for a batch, as people have it: a mean, and no linear function of z."""
    parts = z.flatten(1)
    wanted = scores_of(*parts.shape, seed=4).to(parts)
    return (parts - wanted).square().mean() + (parts * wanted).sum(-1).tanh().mean()


def gradient_of(layer: nn.Module, scores: Tensor, seed: int = 0, **context: Tensor) -> Tensor:
    torch.manual_seed(seed)
    leaf = scores.clone().requires_grad_()
    loss_of(layer(leaf, **context)).backward()
    assert leaf.grad is not None
    return leaf.grad


SLOW = {"projective_tree", "non_projective_tree", "permutation"}  # their kernels are compiled first


@pytest.mark.parametrize(
    "key", [pytest.param(k, marks=[pytest.mark.slow] if k in SLOW else []) for k in STRUCTURES]
)
@each_gradient
def test_default_options_give_a_gradient_at_scores_of_unit_scale(name, key):
    kind, smalls = STRUCTURES[key]
    structure: Any = kind(**smalls[-1] if key != "k_subset" else {"num_items": 5, "k": 2})
    sized = isinstance(structure, DynamicProgramme)
    sizes = [4] * len(structure.context_names) if sized else []
    shape = structure.shape(*sizes) if sized else getattr(structure, "part_shape", (5, 5))
    scores = scores_of(16, *shape)
    if not takes(name, structure):
        return
    layer = SolverLayer(structure, GRADIENTS[name]())
    assert (name in DECODES_MEANS) != structure.contains(layer(scores)).all()
    found = gradient_of(layer, scores)
    assert found.isfinite().all()
    assert (found.flatten(1) != 0).any(1).float().mean() > 0.2


@each_gradient
def test_draws_come_from_torchs_own_generator(name):
    layer = SolverLayer(nestruct.KSubset(6, 2), GRADIENTS[name]())
    scores, draws = scores_of(8, 6), name not in DRAWS_NOTHING
    torch.manual_seed(0)
    first, second = layer(scores), layer(scores)
    torch.manual_seed(0)
    assert torch.equal(layer(scores), first)
    assert torch.equal(first, second) != draws
    found = [gradient_of(copy.deepcopy(layer), scores, seed) for seed in (0, 0, 1)]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2]) != draws


@each_gradient
def test_in_evaluation_mode_it_is_the_argmax(name):
    structure = nestruct.KSubset(6, 2)
    layer = SolverLayer(structure, make(name, 3)).eval()
    scores = scores_of(8, 6).requires_grad_()
    before = torch.get_rng_state()
    z = layer(scores)
    assert torch.equal(z, structure.argmax(scores))
    assert not z.requires_grad
    assert torch.equal(torch.get_rng_state(), before)


@each_that_needs_a_solver_only
def test_without_autograd_it_solves_once(name):
    """Nothing is kept for a way back."""
    calls = []

    def solve(scores):
        calls.append(len(scores))
        return scores > 0

    layer = SolverLayer(nestruct.BlackBox(solve, 5), make(name))
    with torch.no_grad():
        z = layer(scores_of(8, 5).requires_grad_())
    assert not z.requires_grad
    assert not layer(scores_of(8, 5)).requires_grad
    assert calls == [8, 8]
    calls.clear()
    gradient_of(layer, scores_of(8, 5))
    assert calls == [8] * (1 + layer.gradient.calls_on_the_way_back)


@each_gradient
def test_any_leading_axes(name):
    """Two of them, one, none, and an axis of samples before: the same instances, alike."""
    structure = nestruct.KSubset(6, 2)
    layer, scores = SolverLayer(structure, GRADIENTS[name]()), scores_of(3, 4, 6)
    costs = scores_of(3, 4, 6, seed=2)

    def run(layer, scores, costs):
        torch.manual_seed(0)
        leaf = scores.clone().requires_grad_()
        z = copy.deepcopy(layer)(leaf)  # whose state is that of the first call
        (z * costs).sum().backward()
        return z.detach(), leaf.grad

    z, found = run(layer, scores, costs)
    flat = run(layer, scores.flatten(0, 1), costs.flatten(0, 1))
    assert torch.equal(z.flatten(0, 1), flat[0])
    assert torch.equal(found.flatten(0, 1), flat[1])
    alone = run(layer, scores[0, 0], costs[0, 0])
    row = run(layer, scores[0, :1], costs[0, :1])
    assert torch.equal(alone[0], row[0][0])
    assert torch.equal(alone[1], row[1][0])
    several = SolverLayer(structure, make(name, 5))
    lead = (5,) if several.gradient.num_decoded == 5 else ()
    assert several(scores).shape == (*lead, 3, 4, 6)
    assert several(scores[0, 0]).shape == (*lead, 6)


@pytest.mark.parametrize("samples", [1, 3])
@each_that_needs_a_solver_only
def test_every_instance_is_solved_with_its_own_context(name, samples):
    """On the way there and on the way back; an instance alone has no axis of examples."""
    layer, scores = SolverLayer(KNAPSACK, make(name, samples)), scores_of(4, 6)
    z = layer(scores, **PACKS).reshape(-1, 4, 6)
    assert len(z) == layer.gradient.num_decoded
    assert ((z * PACKS["weights"]).sum(-1) <= PACKS["room"] + 1e-5).all()
    leaf = scores.clone().requires_grad_()
    layer(leaf, **PACKS).sum().backward()  # would rather have nothing
    if name not in DECODES_MEANS:  # one estimate of theirs has any sign; they do not solve again
        assert (leaf.grad.sum(-1) >= 0).all()
    one = layer(scores[2], weights=PACKS["weights"][2], room=PACKS["room"][2])
    assert one.shape == (z[:, 2].shape if len(z) > 1 else (6,))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@each_that_needs_a_solver_only
def test_solvers_see_float32_or_float64(name, dtype):
    seen = []

    def solve(scores):
        seen.append(scores.dtype)
        return scores > 0

    layer, scores = SolverLayer(nestruct.BlackBox(solve, 6), GRADIENTS[name]()), scores_of(4, 6)
    found = gradient_of(layer, scores.to(dtype))
    assert layer(scores.to(dtype)).dtype == found.dtype == dtype
    assert set(seen) == {torch.float64 if dtype == torch.float64 else torch.float32}


@each_that_needs_a_solver_only
def test_under_autocast(name):
    seen = []

    def solve(scores):
        seen.append((scores.dtype, (scores @ scores.mT).dtype))
        return scores > 0

    layer = SolverLayer(nestruct.BlackBox(solve, 6), GRADIENTS[name]())
    before, after = nn.Linear(5, 6), nn.Linear(6, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = layer(before(scores_of(8, 5)))
        loss = after(z).square().sum()
        loss.backward()
    assert z.dtype == torch.bfloat16
    assert set(seen) == {(torch.float32, torch.float32)}
    assert before.weight.grad.dtype == torch.float32
    assert (before.weight.grad != 0).any()


@each_gradient
def test_an_overflow_shows_in_the_gradient(name):
    """Of a scaled loss in half precision: whoever scales has to see it."""
    scores = scores_of(2, 6).requires_grad_()
    z = SolverLayer(nestruct.KSubset(6, 2), GRADIENTS[name]())(scores)
    slope = torch.ones(2, 6)
    slope[0, 3] = math.inf
    z.backward(slope)
    assert not scores.grad[0].isfinite().all()
    assert scores.grad[1].isfinite().all()


class Chooser(nn.Module):
    """Anyone's module with a solver in the middle."""

    def __init__(self, structure, gradient) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.encoder, self.decoder = nn.Linear(4, 6), nn.Linear(6, 1)
        self.layer = SolverLayer(structure, gradient)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.layer(self.encoder(x)).tanh())


@pytest.mark.parametrize(
    "structure",
    [nestruct.KSubset(6, 2), nestruct.BlackBox(lambda s: s > 0, 6)],
    ids=["subsets", "a black box"],
)
@each_gradient
def test_compiled_surroundings_give_the_same(name, structure):
    """The solver is one opaque op: nothing breaks the graph."""
    if not takes(name, structure):
        return
    x = scores_of(8, 4)
    for in_sequence in (False, True):
        found = []
        for compiled in (False, True):
            model = Chooser(structure, GRADIENTS[name]())
            parts = model.encoder, model.layer, model.decoder
            run: Any = nn.Sequential(*parts) if in_sequence else model
            if compiled:
                torch.compiler.reset()
                run = torch.compile(run, backend="aot_eager", fullgraph=True)
            torch.manual_seed(0)
            for _ in range(2):
                y = run(x)
                y.square().sum().backward()
            found.append((y.detach(), model.encoder.weight.grad, model.decoder.weight.grad))
        for eager, other in zip(*found, strict=True):
            torch.testing.assert_close(eager, other)
        assert (found[0][1] != 0).any()


@each_that_needs_a_solver_only
def test_compiled_with_context_samples_and_two_ways_back(name):
    """The second way back solves again, with the draws of the first."""
    layer, scores = SolverLayer(KNAPSACK, make(name, 3)), scores_of(4, 6)

    def call(scores, weights, room):
        z = layer(scores, weights=weights, room=room)
        return z.reshape(-1, 4, 6).mean(0).square().sum(-1)

    torch.compiler.reset()
    both, state = [], layer.gradient.state_dict()
    for run in (call, torch.compile(call, backend="aot_eager", fullgraph=True)):
        layer.gradient.load_state_dict(state)
        leaf = scores.clone().requires_grad_()
        torch.manual_seed(0)
        total = run(leaf, **PACKS).sum()
        both.append([torch.autograd.grad(total, leaf, retain_graph=True)[0] for _ in range(2)])
    torch.testing.assert_close(*both)
    layer.eval()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(scores, **PACKS), KNAPSACK.argmax(scores, **PACKS))


@each_gradient
def test_it_is_copied_and_saved_like_any_module(name):
    model = Chooser(nestruct.KSubset(6, 2), GRADIENTS[name]())
    other = copy.deepcopy(model)
    assert set(model.state_dict()) == {
        *(f"{m}.{p}" for m in ("encoder", "decoder") for p in ("weight", "bias")),
        *(f"layer.gradient.{name}" for name in model.layer.gradient.state_dict()),
    }
    other.load_state_dict(model.state_dict())
    torch.manual_seed(0)
    first = model(scores_of(3, 4))
    torch.manual_seed(0)
    assert torch.equal(other(scores_of(3, 4)), first)
    assert "KSubset(6, 2), " + name in repr(model)


@each_gradient
def test_a_module_learns_in_its_own_loop(name):
    """To pick the two items that a linear function of their features likes best."""
    structure = nestruct.KSubset(6, 2)
    x = scores_of(64, 6, 3)
    wanted = structure.argmax(x @ torch.tensor([1.0, -2.0, 0.5]))
    model = nn.Sequential(nn.Linear(3, 1), nn.Flatten(), SolverLayer(structure, GRADIENTS[name]()))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        nn.init.normal_(model[0].weight)
        adam = torch.optim.Adam(model.parameters(), lr=0.1)
        before = float((model.eval()(x) * wanted).sum(-1).mean() / 2)
        model.train()
        for _ in range(60):
            adam.zero_grad()
            (model(x) - wanted).square().mean().backward()
            adam.step()
    after = float((model.eval()(x) * wanted).sum(-1).mean() / 2)
    assert before < 0.6
    assert after > 0.9


@pytest.mark.integrations
@pytest.mark.filterwarnings("ignore")  # Lightning's own
@each_gradient
def test_lightning_trains_it_with_automatic_optimisation(name, tmp_path):
    lightning = pytest.importorskip("lightning")
    structure = nestruct.KSubset(6, 2)
    x = scores_of(64, 6, 3)
    wanted = structure.argmax(x @ torch.tensor([1.0, -2.0, 0.5]))

    class Picks(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.worth = nn.Linear(3, 1)
            self.layer = SolverLayer(structure, GRADIENTS[name]())

        def forward(self, x):
            return self.layer(self.worth(x)[..., 0])

        def training_step(self, batch, index):
            x, wanted = batch
            return (self(x) - wanted).square().mean()

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.1)

    torch.manual_seed(0)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, wanted), batch_size=32)
    trainer = lightning.Trainer(
        max_epochs=30,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    model = Picks()
    trainer.fit(model, data)
    assert float((model.eval()(x) * wanted).sum(-1).mean() / 2) > 0.9


SUBSETS, GRADIENT = nestruct.KSubset(4, 2), nestruct.IMLE()


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda: SolverLayer(SUBSETS), r"gradient must be .* like nestruct.IMLE\(\).*, got None"),
        (lambda: SolverLayer(SUBSETS, nestruct.NES(sigma=0.1, population_size=2)), "got NES"),  # type: ignore[arg-type]
        (lambda: SolverLayer(pack, GRADIENT), "a solver of your own goes into BlackBox"),  # type: ignore[arg-type]
        (lambda: SolverLayer(SUBSETS, GRADIENT)([[0.0, 1.0]]), "a tensor of floats, got list"),
        (lambda: SolverLayer(SUBSETS, GRADIENT)(torch.ones(2, 4).long()), "got torch.int64"),
        (lambda: SolverLayer(SUBSETS, GRADIENT)(torch.ones(2, 5)), r"end in the shape \(4,\)"),
        (lambda: SolverLayer(SUBSETS, GRADIENT)(torch.tensor(1.0)), r"1 axes of parts.* got \(\)"),
        (
            lambda: SolverLayer(SUBSETS, GRADIENT)(torch.ones(2, 4), room=torch.ones(2)),
            "the context 'room' is not known",
        ),
        (lambda: SolverLayer(KNAPSACK, GRADIENT)(torch.ones(2, 6)), "'weights' is missing"),
        (
            lambda: SolverLayer(SUBSETS, GRADIENT)(torch.full((2, 4), torch.nan)),
            "row 0 holds NaN or",
        ),
    ],
)
def test_mistakes_are_refused(mistake, message):
    with pytest.raises(InputError, match=message):
        mistake()


def test_training_calls_may_be_served_by_stored_solutions_and_are_not_kept():
    """As an estimator's step: `pool_share` holds there and back, and in training mode only."""
    calls = []

    def solve(scores):
        calls.append(1)
        return scores > 0

    pooled, exact = (
        nestruct.BlackBox(solve, 4, batched=False, pool_share=share) for share in (1.0, 0.0)
    )
    scores = torch.zeros(3, 4, requires_grad=True)
    layer = SolverLayer(pooled, nestruct.IMLE())
    layer(scores).sum().backward()
    assert len(calls) == 3
    assert pooled.counts["pooled"] == 3  # on the way back the context, none, has solutions
    layer.eval()(scores)
    assert len(calls) == 3 + 3
    SolverLayer(exact, nestruct.IMLE())(scores).sum().backward()
    assert len(exact._calls.cache) == 0
