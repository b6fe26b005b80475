"""The template that all estimators share: what it asks for, what it counts, what it refuses."""

import pytest
import torch
import toys

import nestruct
from nestruct import InputError
from nestruct.estimators import Estimator, Terms, summarise
from nestruct.estimators.backpropagation import Backpropagation

X = toys.bits(5, 6)


def make(name: str, **options):
    return getattr(nestruct, name)(**options)


# name, options, losses per example, decodings, instances solved, for 5 examples of KSubset(4, 2)
COSTS = [
    ("NES", {"sigma": 0.1, "population_size": 8}, 8, 40, 40),
    ("NES", {"sigma": 0.1, "population_size": 8, "num_samples": 3}, 24, 120, 120),
    (
        "NES",
        {"sigma": 0.1, "population_size": 8, "minibatch": "per_pair", "pair_batch_size": 2},
        8,
        16,
        16,
    ),
    ("SNES", {"sigma": 0.1, "population_size": 8}, 8, 40, 40),
    ("StructureNES", {"num_samples": 4, "num_covariance": 6}, 4, 20, 50),
    ("StructureNES", {"num_samples": 4, "covariance": "gibbs"}, 4, 20, 20),
    ("ScoreNES", {"num_pairs": 3}, 6, 30, 30),
    ("Reinforce", {"num_samples": 3}, 3, 15, 15),
    ("NVIL", {"num_samples": 2}, 2, 10, 10),
    ("SST", {"num_samples": 2}, 2, 10, 0),
    ("Enumeration", {}, 1, 30, 0),
]


@pytest.mark.parametrize(("name", "options", "losses", "decoded", "solved"), COSTS, ids=str)
def test_what_a_step_costs(name, options, losses, decoded, solved):
    model = toys.vae(nestruct.KSubset(4, 2), divergence="gibbs")
    report = make(name, **options).backward(model, X, seed=0)
    assert int(report.num_evaluations) == losses
    assert int(report.num_decoded) == decoded
    assert int(report.num_solved) == solved
    assert report.solver_seconds >= 0


def test_sparse_map_counts_its_calls():
    model = toys.vae(nestruct.KSubset(4, 2))
    report = nestruct.SparseMAP(max_iterations=3).backward(model, X, seed=0)
    assert 5 < int(report.num_solved) <= 4 * 5


def test_savings_spare_no_count():
    """A Categorical VAE of layers decodes its categories once; what it stands for is counted."""
    report = nestruct.NES(sigma=0.1, population_size=8).backward(toys.vae(), X, seed=0)
    assert int(report.num_decoded) == 40
    assert int(report.num_solved) == 40


def test_what_a_module_of_another_kind_solves_is_not_known():
    bowl = toys.Formula(lambda theta: (theta**2).sum())
    assert nestruct.NES(sigma=0.1, population_size=8).backward(bowl, X, seed=0).num_solved is None


@pytest.mark.parametrize("kind", [nestruct.NES, nestruct.SNES])
def test_the_old_name_of_an_option_is_refused_with_the_new_one(kind):
    with pytest.raises(InputError, match="the option parameters is called perturb now"):
        kind(sigma=0.1, population_size=4, parameters=None)


def test_an_example_without_a_finite_loss_leaves_the_others_alone():
    class Half(Backpropagation):
        kind = "exact"

        def terms(self, model, batch, noise):
            losses = model.encode(batch).square().sum(-1)
            return Terms(torch.where(torch.arange(len(losses)) == 1, torch.nan, losses))

    model, rows = toys.vae(), torch.tensor([0, 2, 3, 4])
    report = Half().backward(model, X, seed=0)
    assert int(report.num_failed) == 1
    found = model.encoder[0].weight.grad.clone()
    model.encode(X[rows]).square().sum(-1).mean().backward()
    model.zero_grad()
    model.encode(X[rows]).square().sum(-1).mean().backward()
    torch.testing.assert_close(found, model.encoder[0].weight.grad)


def test_an_estimator_of_ones_own_needs_estimate_alone():
    class Zero(Estimator):
        kind = "gradient-free"

        def estimate(self, model, layout, batch, noise):
            gradients = [torch.zeros_like(p) for p in layout.parameters.values()]
            return gradients, summarise(model.loss(batch, noise), gradients)

    model = toys.vae()
    report = Zero().backward(model, X, seed=0)
    assert float(report.grad_norm) == 0
    assert report.loss.isfinite()
    assert all((p.grad == 0).all() for p in model.parameters())
    with pytest.raises(TypeError, match="abstract"):
        Estimator()


def test_what_a_solver_of_another_kind_is_given_is_not_known():
    class Best(nestruct.Structure):
        def argmax(self, scores, **context):
            return torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1]).to(scores.dtype)

    model = toys.vae()
    model.structure = Best()
    report = nestruct.StructureNES(num_samples=4).backward(model, X, seed=0)
    assert report.num_solved is None
    assert int(report.num_decoded) == 20


def test_terms_of_examples_and_of_samples_together():
    """An example of which one sample failed counts in neither; the means are taken apart."""
    losses = torch.tensor([[1.0, 2.0, torch.nan], [3.0, 4.0, 5.0]])
    value = Terms(losses, each=torch.tensor([10.0, 20.0, 40.0])).mean()
    assert float(value) == pytest.approx((1 + 2 + 3 + 4 + 5) / 5 + 15)


def test_enumeration_keeps_the_lists_of_all_sizes():
    """A captured step reads the list that it was captured with."""

    class Trees(nestruct.StructuredModel):
        structure = nestruct.NonProjectiveTree()

        def __init__(self):
            super().__init__()
            self.arcs = torch.nn.Parameter(torch.zeros(5, 5))

        def encode(self, batch):
            size = batch.shape[-1]
            return self.arcs[:size, :size].expand(len(batch), size, size)

        def decode(self, batch, z):
            return (z * batch).sum((-1, -2))

    model, estimator = Trees(), nestruct.Enumeration()
    counts = [int(estimator.backward(model, torch.rand(2, n, n), seed=0).num_decoded)
              for n in (3, 4, 3)]  # fmt: skip
    assert counts == [2 * 2, 2 * 9, 2 * 2]
    assert len(estimator._kept()) == 2


@pytest.mark.parametrize("chosen", [3, 0.5])
def test_what_cannot_choose_parameters_is_refused(chosen):
    with pytest.raises(InputError, match="perturb must be names of parameters"):
        nestruct.NES(sigma=0.1, population_size=4, perturb=chosen)


def test_fit_asks_for_an_estimator_and_its_kind():
    class Nameless(Backpropagation):
        def terms(self, model, batch, noise):
            return Terms(model.loss(batch, noise))

    model = toys.vae()
    adam = torch.optim.Adam(model.parameters())
    with pytest.raises(InputError, match="does not say of which kind it is"):
        nestruct.fit(model, Nameless(), adam, X, max_steps=1, progress=False)
    with pytest.raises(InputError, match=r"derive from nestruct\.estimators\.Estimator"):
        nestruct.fit(model, object(), adam, X, max_steps=1, progress=False)


@pytest.mark.parametrize("method", ["encode", "decode", "context"])
@pytest.mark.parametrize(
    ("name", "options"), [("NES", {"sigma": 0.1, "population_size": 4}), ("StructureNES", {})]
)
def test_a_method_without_a_return_is_named(method, name, options):
    model = toys.vae(nestruct.KSubset(4, 2))
    setattr(model, method, lambda *_: None)
    with pytest.raises(InputError, match=rf"StructuredVAE\.{method}\(.*\) returned None"):
        make(name, **options).backward(model, X, seed=0)


def test_other_mistakes_of_a_model_stay_what_they_are():
    model = toys.vae(nestruct.KSubset(4, 2))
    model.decode = lambda batch, z: z.no_such_method()
    with pytest.raises(AttributeError, match="no_such_method"):
        make("StructureNES").backward(model, X, seed=0)
