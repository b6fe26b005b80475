"""The ListOps model against its own equations, written one token at a time; recipes; learning."""

from typing import Any

import pytest
import torch
from torch.nn.functional import pad

import nestruct
from nestruct import Noise
from nestruct.data import Expressions, ListOps
from nestruct.estimators import Estimator
from nestruct.models import ListOpsModel
from nestruct.training import Recipe, read_recipe, train
from nestruct.training.recipes.plan import read_plan

DATA = ListOps(min_length=4, max_length=12, max_depth=2, num_train=8, num_validation=8, num_test=8)
BATCH = DATA.splits()["train"]
NOISE = Noise(seed=1, step=2)
MODES = ("latent", "given", "none")


def make(**options) -> ListOpsModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ListOpsModel(14, 10, **({"hidden_size": 6, "num_rounds": 3} | options)).double()


def padded(batch: Expressions, more: int) -> Expressions:
    """With more places at the end, and any token in them."""
    place = torch.arange(batch.tokens.shape[1] + more)
    tokens = torch.where(place < batch.lengths[:, None], pad(batch.tokens, (0, more)), 11)
    return Expressions(tokens, pad(batch.heads, (0, more)), batch.lengths, batch.values)


@pytest.mark.parametrize("tree", MODES)
@pytest.mark.parametrize("structure", ["projective", "non-projective"])
def test_padding_changes_nothing(tree, structure):
    model = make(tree=tree, structure=structure, divergence="gumbel")
    wide = padded(BATCH, 5)
    torch.testing.assert_close(model.loss(wide, NOISE), model.loss(BATCH, NOISE))
    one, other = model.metrics(BATCH, NOISE), model.metrics(wide, NOISE)
    torch.testing.assert_close(one, other)
    z, wider = model.infer(BATCH), model.infer(wide)
    assert torch.equal(pad(z, (0, 5, 0, 5)), wider)
    if tree == "latent":
        real = model.structure.counting(wide.z, lengths=wide.lengths - 1)[:, :12, :12]
        scores = model.encode(BATCH), model.encode(wide)[:, :12, :12]
        torch.testing.assert_close(*(torch.where(real, each, 0.0) for each in scores))


def test_the_evaluator_is_the_recursion_over_the_tree():
    """A token's state after k rounds, from its dependents' after k - 1, one token at a time."""
    model = make()
    net = model.evaluator
    drawn = model.sample(BATCH, 2, NOISE)

    def state(row, z, token, rounds):
        own = net.tokens(BATCH.tokens[row, token])
        below = z[token].nonzero()[:, 0].tolist() if rounds else []
        return net.update(
            own + sum((net.message(state(row, z, each, rounds - 1)) for each in below), 0 * own)
        )

    for z in (*drawn, BATCH.z):
        found = model.decode(BATCH, z)
        for row in range(len(BATCH)):
            logits = net.value(state(row, z[row], 0, 3))
            expected = logits.log_softmax(-1)[BATCH.values[row]]
            torch.testing.assert_close(found[row], expected)


def test_a_score_is_the_product_of_what_two_tokens_are():
    model = make()
    net, row, size = model.scorer, 2, int(BATCH.lengths[2])
    own = net.tokens(BATCH.tokens[row : row + 1, :size])
    length = torch.tensor([size])
    head = net.head(net.head_lstm(own, length))[0]
    dependent = net.dependent(net.dependent_lstm(own, length))[0]
    scores = model.encode(BATCH)[row]
    for h, d in ((0, 1), (3, 2), (size - 1, 0)):
        torch.testing.assert_close(scores[h, d], head[h] @ dependent[d] / 6**0.5)


def test_relaxed_trees_are_decoded_and_differentiated():
    model = make()
    scores = model.encode(BATCH).detach().requires_grad_()
    z = model.structure.relax(scores, 1.0, **model.context(BATCH))
    model.decode(BATCH, z).sum().backward()
    assert scores.grad is not None
    real = model.structure.counting(scores, **model.context(BATCH))
    assert (scores.grad[real] != 0).any()
    assert (scores.grad[~real] == 0).all()


def test_without_a_latent_tree_there_is_one_loss_and_no_arcs_of_its_own():
    given, none = make(tree="given"), make(tree="none")
    assert torch.equal(given.infer(BATCH), BATCH.z)
    assert torch.equal(given.loss(BATCH, NOISE), -given.decode(BATCH, BATCH.z))
    assert none.infer(BATCH).sum() == 0
    for model in (given, none):
        assert torch.equal(model.loss(BATCH, NOISE), model.loss(BATCH, Noise(seed=5)))
        assert list(model.metrics(BATCH, NOISE)) == ["loss", "accuracy"]
        for estimator in (nestruct.StructureNES(), nestruct.SST()):
            with pytest.raises(nestruct.InputError, match="estimator Supervised, or say tree='la"):
                estimator.backward(model, BATCH, seed=0)
        assert nestruct.Supervised().backward(model, BATCH, seed=0).grad_norm > 0


def test_an_lstm_reads_each_expression_to_its_end():
    model = make(tree="none")
    for row, length in enumerate(BATCH.lengths.tolist()):
        alone = nestruct.select_rows(BATCH, torch.tensor([row]))
        alone = Expressions(
            alone.tokens[:, :length], alone.heads[:, :length], alone.lengths, alone.values
        )
        states = model.reader.lstm(model.reader.tokens(alone.tokens), alone.lengths)[0]
        logits = model.reader.value(torch.cat([states[-1, :6], states[0, 6:]]))
        expected = -logits.log_softmax(-1)[alone.values[0]]
        torch.testing.assert_close(model.loss(BATCH, NOISE)[row], expected)


def test_metrics_count_arcs_and_right_values():
    model = make()
    metrics = model.metrics(BATCH, NOISE)
    z = model.infer(BATCH)
    for row in range(len(BATCH)):
        found = set(map(tuple, z[row].nonzero().tolist()))
        true = {(int(BATCH.heads[row, d]), d) for d in range(1, int(BATCH.lengths[row]))}
        for name, among in (("edge_precision", found), ("edge_recall", true)):
            both, total = metrics[name]
            assert (both[row], total[row]) == (len(found & true), len(among))
    chances = []
    for value in range(10):  # the value that is most likely is the one with the highest chance
        same = torch.full_like(BATCH.values, value)
        batch = Expressions(BATCH.tokens, BATCH.heads, BATCH.lengths, same)
        chances.append(model.decode(batch, z))
    right = torch.stack(chances).argmax(0) == BATCH.values
    assert torch.equal(metrics["accuracy"], right.to(z.dtype))
    torch.testing.assert_close(metrics["loss"], model.loss(BATCH, NOISE))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_size": 0}, "hidden_size must be a whole number of at least 1, got 0"),
        ({"num_rounds": 0}, "num_rounds must be a whole number of at least 1, got 0"),
        ({"tree": "true"}, "tree must be one of 'latent', 'given', 'none'; got 'true'"),
        ({"structure": "forest"}, "structure must be one of 'non-projective', 'projective'"),
        ({"divergence": "kl"}, "divergence must be one of"),
    ],
)
def test_mistakes_get_one_sentence(options, message):
    with pytest.raises(nestruct.InputError, match=message):
        make(**options)


SHORT = {"min_length": 4, "max_length": 8, "max_depth": 2, "num_train": 5000, "num_test": 300}


def accuracy(tree: Any, estimator: Estimator, lr: float, steps: int) -> float:
    data = ListOps(**SHORT).splits()
    values = data["test"].values
    assert values.bincount().max() / len(values) < 0.2  # what a guess gets
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = ListOpsModel(14, 10, tree=tree, hidden_size=24, num_rounds=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    options: dict[str, Any] = {"max_steps": steps, "batch_size": 128, "progress": False}
    nestruct.fit(model, estimator, optimizer, data["train"], **options)
    return nestruct.evaluate(model, data["test"])["accuracy"]


def test_with_the_true_tree_it_learns_at_once():
    assert accuracy("given", nestruct.Supervised(), 0.01, 600) > 0.8


@pytest.mark.parametrize("estimator", [nestruct.StructureNES(num_samples=8), nestruct.SST()])
def test_with_a_latent_tree_it_learns_from_values_alone(estimator):
    assert accuracy("latent", estimator, 0.02, 100) > 0.4


@pytest.mark.parametrize("entry", read_plan("listops", tiny=True).entries, ids=lambda e: e.name)
def test_every_recipe_of_the_plan_trains(entry, tmp_path):
    overrides = read_plan("listops", tiny=True).overrides(entry, tiny=True)
    overrides = [*overrides, "training.max_steps=4", "training.eval_interval=2", "device=cpu"]
    recipe = Recipe.from_tables(read_recipe(entry.recipe, overrides))
    result = train(recipe, tmp_path / "run", progress=False)
    assert (result.step, result.reason) == (4, "finished")
    assert result.test is not None
    latent = recipe.model.options["tree"] == "latent"
    names = ["edge_precision", "edge_recall"] if latent else []
    assert [name for name in result.test if name.startswith("edge")] == names
    assert 0 < result.test["accuracy"] < 1
