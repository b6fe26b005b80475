"""What a solver sees besides scores: through leading axes, vmap, samples and populations."""

import pytest
import torch
from torch import nn

import nestruct
from nestruct import InputError, Noise


def choose(scores: torch.Tensor, limit: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Takes what scores more than its weight, and nothing where the limit is 0."""
    return (scores > weights) & (limit > 0)[:, None]


BOX = nestruct.BlackBox(choose, shape=(3,))
SCORES = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0))
LIMIT = torch.tensor([1.0, 0.0, 2.0, 0.0, 1.0])
WEIGHTS = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
EXPECTED = ((SCORES > WEIGHTS) & (LIMIT > 0)[:, None]).float()


def test_earlier_leading_axes_repeat_it():
    assert torch.equal(BOX.argmax(SCORES, limit=LIMIT, weights=WEIGHTS), EXPECTED)
    one = BOX.argmax(SCORES[0], limit=LIMIT, weights=WEIGHTS)
    assert torch.equal(one, EXPECTED[0])
    more = SCORES.expand(2, *SCORES.shape)
    assert torch.equal(BOX.argmax(more, limit=LIMIT, weights=WEIGHTS)[1], EXPECTED)


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_one_instance_at_a_time_gets_its_own(backend):
    box = nestruct.BlackBox(
        lambda scores, limit, weights: (scores > weights) & bool(limit > 0),
        shape=(3,),
        batched=False,
        backend=backend,
    )
    assert torch.equal(box.argmax(SCORES, limit=LIMIT, weights=WEIGHTS), EXPECTED)


def test_vmap_over_scores_context_or_both():
    def call(scores, limit, weights):
        return BOX.argmax(scores, limit=limit, weights=weights)

    vmap = torch.func.vmap
    assert torch.equal(vmap(call, in_dims=(0, None, None))(SCORES, LIMIT, WEIGHTS), EXPECTED)
    every = vmap(call, in_dims=(1, 0, 0), out_dims=1)(
        SCORES[:, :, None], LIMIT[:, None], WEIGHTS[:, None]
    )
    assert torch.equal(every[:, :, 0], EXPECTED)
    limits = torch.stack([LIMIT, 1 - LIMIT])
    found = vmap(call, in_dims=(None, 0, None))(SCORES[0], limits, WEIGHTS)
    assert torch.equal(found[0], EXPECTED[0])
    assert torch.equal(found[1], call(SCORES[0], limits[1], WEIGHTS))


@pytest.mark.parametrize(
    ("context", "message"),
    [
        ({"limit": LIMIT}, "'weights' is missing"),
        ({"limit": LIMIT, "weights": WEIGHTS, "more": LIMIT}, "'more' is not known here"),
        ({"limit": LIMIT[:4], "weights": WEIGHTS}, "must be the 5 examples"),
        ({"limit": 3.0, "weights": WEIGHTS}, "must be a tensor, got float"),
        ({"limit": torch.tensor(1.0), "weights": WEIGHTS}, "must be the 5 examples"),
    ],
)
def test_what_does_not_fit_is_refused(context, message):
    with pytest.raises(InputError, match=message):
        BOX.argmax(SCORES, **context)


def test_reserved_names():
    with pytest.raises(InputError, match="'noise' cannot be context"):
        nestruct.BlackBox(lambda scores, noise: scores > noise, shape=(3,))
    box = nestruct.BlackBox(lambda scores, k=2: scores > k, shape=(3,))  # the function's own
    assert box.argmax(torch.tensor([1.0, 2.0, 3.0])).tolist() == [0, 0, 1]


class Knapsacks(nestruct.StructuredModel):
    """Scores come from a linear layer; the limit and weights of each example from the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.structure = BOX
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layer = nn.Linear(3, 3)

    def context(self, batch):
        return {"limit": batch["limit"], "weights": batch["weights"]}

    def encode(self, batch):
        return self.layer(batch["x"])

    def decode(self, batch, z):
        return -((z - batch["x"]) ** 2).sum(-1)


BATCH = {"x": WEIGHTS.flip(0), "limit": LIMIT, "weights": WEIGHTS}


@pytest.mark.parametrize("minibatch", ["shared", "per_pair"])
def test_members_see_the_context_of_their_examples(minibatch):
    """Vmapped, looped and in chunks alike; a pair's own examples bring their own context."""
    gradients = []
    for mode, chunk in (("vmap", None), ("loop", None), ("vmap", 4)):
        model = Knapsacks()
        own = {"pair_batch_size": 2} if minibatch == "per_pair" else {}
        nes = nestruct.NES(
            sigma=0.3, population_size=12, minibatch=minibatch, mode=mode, chunk_size=chunk, **own
        )
        report = nes.backward(model, BATCH, seed=0)
        gradients.append(model.layer.weight.grad)
        assert int(report.num_solved) == 12 * (5 if minibatch == "shared" else 2)
    torch.testing.assert_close(gradients[0], gradients[1])
    torch.testing.assert_close(gradients[0], gradients[2])


@pytest.mark.parametrize(
    "estimator",
    [
        nestruct.StructureNES(num_samples=4, num_covariance=3),
        nestruct.ScoreNES(num_pairs=2),
        nestruct.Reinforce(num_samples=3),
        nestruct.SparseMAP(max_iterations=3),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_estimators_hand_it_on(estimator):
    model = Knapsacks()
    report = estimator.backward(model, BATCH, seed=0)
    assert report.grad_norm > 0
    z = model.sample(BATCH, 6, Noise(seed=0))
    assert (z[:, LIMIT == 0] == 0).all()
    assert z[:, LIMIT > 0].any()


def test_the_old_name_is_refused_with_the_new_one():
    class Old(Knapsacks):
        def lengths(self, batch):
            return batch["limit"]

    with pytest.raises(InputError, match=r"lengths\(batch\), which is context\(batch\) now"):
        Old()


def test_padded_scores_of_a_structure_of_ones_own():
    """[batch, n] scores with a length each: noise, KL and estimators leave padding alone."""

    class Prefix(nestruct.Structure):
        """The best of the first so many items."""

        context_names = ("lengths",)

        def argmax(self, scores, lengths=None):
            counting = self.counting(scores, lengths=lengths)
            best = torch.where(counting, scores, -torch.inf).argmax(-1)
            return nn.functional.one_hot(best, scores.shape[-1]).to(scores.dtype)

        def counting(self, scores, lengths=None):
            return (torch.arange(scores.shape[-1]) < lengths[..., None]).expand(scores.shape)

    class Model(Knapsacks):
        def __init__(self):
            super().__init__()
            self.structure = Prefix()

        def context(self, batch):
            return {"lengths": batch["lengths"]}

        def divergence(self, scores, batch):
            context = self.context(batch)
            return nestruct.objective.gumbel_divergence(self.structure, scores, **context)

    lengths = torch.tensor([1, 2, 3, 2, 1])
    batch = {"x": BATCH["x"], "lengths": lengths}
    for estimator in (
        nestruct.StructureNES(num_samples=4),
        nestruct.ScoreNES(num_pairs=2),
        nestruct.NES(sigma=0.1, population_size=4),
    ):
        model = Model()
        assert estimator.backward(model, batch, seed=0).grad_norm.isfinite()
    z = model.sample(batch, 4, Noise(seed=0))
    assert (z.argmax(-1) < lengths).all()
    scores = model.encode(batch)
    padded = torch.cat([scores, 9 + 0 * scores], -1)
    kl = nestruct.objective.gumbel_divergence
    torch.testing.assert_close(
        kl(Prefix(), padded, lengths=lengths), kl(Prefix(), scores, lengths=lengths)
    )
