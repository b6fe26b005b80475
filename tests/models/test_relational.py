"""The relational VAE: counts, by hand, symmetries, populations, options."""

import contextlib

import pytest
import torch

import nestruct
from nestruct import InputError, Noise
from nestruct.data import GraphLayout
from nestruct.models import RelationalVAE, hard_structures
from nestruct.models.relational import nri, pair_blocks, pair_scores, roll_out, tree_moves
from nestruct.population import Layout, Population, evaluate_members

NOISE = Noise(seed=0, step=1)
DATA = GraphLayout(num_nodes=4, num_times=6, num_train=8, num_validation=2, num_test=2).splits()
BATCH = {"x": DATA["train"]["x"].double()}


def small(seed: int = 0, **options) -> RelationalVAE:
    torch.manual_seed(seed)
    given = {"hidden_size": 5, "num_rollout_steps": 5, "variance": 1e-2} | options
    return RelationalVAE(4, 6, **given).double()


def trees(*shape: int) -> torch.Tensor:
    scores = torch.rand(*shape, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return nestruct.SpanningTree(4).argmax(scores)


def test_the_sizes_are_the_papers():
    model = RelationalVAE(10, 10)
    counts = [sum(p.numel() for p in part.parameters()) for part in (model.encoder, model.decoder)]
    assert counts == [664_833, 266_754]
    assert all((m.bias == 0.1).all() for m in _linear(model.encoder))


def _linear(module):
    return [m for m in module.modules() if isinstance(m, torch.nn.Linear)]


def test_the_encoder_is_that_of_nri():
    """Written out with concatenated pairs, one directed edge after the other."""
    model = small(score_scale=3.0)
    encoder, x = model.encoder, BATCH["x"].flatten(2)
    pairs = [(i, j) for i in range(4) for j in range(4) if i != j]
    to = torch.tensor([i for i, _ in pairs])
    by = torch.tensor([j for _, j in pairs])
    nodes = encoder.node_in(x)
    skip = encoder.edge_in(torch.cat([nodes[:, to], nodes[:, by]], -1))
    sums = torch.stack([skip[:, to == i].sum(1) for i in range(4)], 1)
    nodes = encoder.node_out(sums / 4)
    edges = encoder.edge_out(torch.cat([nodes[:, to], nodes[:, by], skip], -1))
    directed = dict(zip(pairs, encoder.score(edges)[..., 0].T, strict=True))
    undirected = [(i, j) for i, j in pairs if i < j]
    expected = torch.stack([(directed[i, j] + directed[j, i]) / 2 for i, j in undirected], 1)
    torch.testing.assert_close(model.encode(BATCH), 3 * expected)


def test_a_relative_encoder_sees_differences():
    model = small(relative=True)
    encoder = model.encoder
    shifted = {"x": BATCH["x"] + torch.randn(8, 1, 6, 2, dtype=torch.float64)}
    torch.testing.assert_close(model.encode(shifted), model.encode(BATCH))
    x = BATCH["x"].flatten(2)
    pairs = [(i, j) for i in range(4) for j in range(4) if i != j]
    differences = torch.stack([x[:, i] - x[:, j] for i, j in pairs], 1)
    skip = encoder.edge_in(differences)
    nodes = encoder.node_out(skip.unflatten(1, (4, 3)).sum(2) / 4)
    ends = [torch.stack([nodes[:, pair[side]] for pair in pairs], 1) for side in (0, 1)]
    directed = encoder.score(encoder.edge_out(torch.cat([*ends, skip], -1)))[..., 0]
    grid = {pair: directed[:, place] for place, pair in enumerate(pairs)}
    expected = [(grid[i, j] + grid[j, i]) / 2 for i, j in pairs if i < j]
    torch.testing.assert_close(model.encode(BATCH), torch.stack(expected, 1))


@pytest.mark.parametrize("steps", [5, 3, 1])
def test_the_decoder_is_that_of_nri(steps):
    """Written out node by node, with a look at the true positions after every few steps."""
    model = small(num_rollout_steps=steps)
    decoder, x, z = model.decoder, BATCH["x"][:1], trees(1)
    adjacency = torch.zeros(4, 4, dtype=torch.float64)
    adjacency[tuple(torch.triu_indices(4, 4, 1))] = z[0]
    adjacency = adjacency + adjacency.T
    error = torch.zeros((), dtype=torch.float64)
    for time in range(5):
        if time % steps == 0:
            position = x[0, :, time]
        moved = []
        for i in range(4):
            total = torch.zeros(5, dtype=torch.float64)
            for j in set(range(4)) - {i}:
                kind = int(adjacency[i, j])
                rows = slice(5 * kind, 5 * kind + 5)
                message = torch.cat([position[i], position[j]])
                for layer in (decoder.message_in, decoder.message_out):
                    message = (layer.weight[rows] @ message + layer.bias[rows]).relu()
                total = total + message
            hidden = decoder.move_in(torch.cat([position[i], total])).relu()
            moved.append(position[i] + decoder.move_out(decoder.move_hidden(hidden).relu()))
        position = torch.stack(moved)
        error = error + (position - x[0, :, time + 1]).square().sum()
    value = model.decode({"x": x}, z)
    torch.testing.assert_close(value[0], -error / 2e-2)


def test_decode_takes_leading_axes_and_relaxed_structures():
    model = small(num_rollout_steps=2)
    z = torch.rand(2, 3, 8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    z.requires_grad_()
    values = model.decode(BATCH, z)
    assert values.shape == (2, 3, 8)
    torch.testing.assert_close(values[1, 2], model.decode(BATCH, z[1, 2]))
    gradient = torch.autograd.grad(values.sum(), z)[0]
    assert gradient.isfinite().all()
    assert (gradient.abs().sum((0, 1, 2)) > 0).all()


@pytest.mark.parametrize("structure", ["spanning-tree", "k-subset"])
def test_the_short_way_for_hard_structures_is_the_long_one(structure):
    """Values and gradients; with leading axes; a row without an answer is NaN, the others not."""
    model = small(structure=structure)
    scores = torch.rand(3, 8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    z = model.structure.argmax(scores)
    found = []
    for context in (contextlib.nullcontext(), hard_structures()):
        with context:
            values = model.decode(BATCH, z)
        found.append([values, *torch.autograd.grad(values.sum(), model.decoder.parameters())])
    for long, short in zip(*found, strict=True):
        torch.testing.assert_close(short, long)
    z[1, 2] = torch.nan
    with hard_structures():
        broken = model.decode(BATCH, z)
    assert broken.isnan().sum() == broken[1, 2].isnan() == 1


def test_relaxed_structures_take_the_long_way_in_sst():
    """A relaxed z is not what the short way would make of it."""
    model = small()
    z = torch.full((8, 6), 0.5, dtype=torch.float64)
    plain = model.decode(BATCH, z)
    with hard_structures():
        assert not torch.allclose(model.decode(BATCH, z), plain)
    first = nestruct.SST(temperature=5.0, graph="off").backward(model, BATCH, seed=0)
    relaxed = model.structure.relax(model.encode(BATCH) + NOISE.replace(step=0).gumbel(z), 5.0)
    expected = model.loss_at(BATCH, model.encode(BATCH), relaxed).mean()
    torch.testing.assert_close(first.loss, expected.detach())


def test_any_structure_over_the_pairs_may_take_the_place_of_ours():
    tree = nestruct.SpanningTree(4)
    own = nestruct.BlackBox(lambda scores: tree.argmax(scores), (6,))
    found = [small(structure=s).loss(BATCH, NOISE) for s in ("spanning-tree", tree, own)]
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])
    with pytest.raises(InputError, match="needs a part for each of 6 pairs of nodes, got KSubset"):
        small(structure=nestruct.KSubset(5, 3))
    with pytest.raises(InputError, match="structure must be one of 'spanning-tree', 'k-subset'"):
        small(structure="forest")


@pytest.mark.parametrize("batch_norm", [True, False])
def test_relabelled_nodes_relabel_the_scores(batch_norm):
    model = small(batch_norm=batch_norm)
    order = torch.tensor([2, 0, 3, 1])
    rows, columns = torch.triu_indices(4, 4, 1)

    def square(edges: torch.Tensor) -> torch.Tensor:
        grid = edges.new_zeros(*edges.shape[:-1], 4, 4)
        grid[..., rows, columns] = grid[..., columns, rows] = edges
        return grid

    def relabel(edges: torch.Tensor) -> torch.Tensor:
        return square(edges)[..., order, :][..., order][..., rows, columns]

    other = {"x": BATCH["x"][:, order]}
    torch.testing.assert_close(model.encode(other), relabel(model.encode(BATCH)))
    z = trees(8)
    torch.testing.assert_close(model.decode(other, relabel(z)), model.decode(BATCH, z))


def test_the_true_trees_are_never_read():
    model = small().eval()
    with_trees = BATCH | {"z": DATA["train"]["z"]}
    assert torch.equal(model.loss(with_trees, NOISE), model.loss(BATCH, NOISE))
    assert torch.equal(model.infer(BATCH["x"]), model.infer(with_trees))


@pytest.mark.parametrize(
    "options", [{}, {"batch_norm": False, "structure": "k-subset", "relative": True}]
)
@pytest.mark.parametrize("chosen", [None, ["decoder.message_out.bias", "encoder.score.bias"]])
def test_vmap_is_the_loop(options, chosen):
    model = small(**options)
    gradients = []
    for mode in ("vmap", "loop"):
        nes = nestruct.NES(
            sigma=0.1,
            population_size=6,
            mode=mode,
            minibatch="per_pair",
            pair_batch_size=3,
            perturb=chosen,
        )
        nes.backward(model, BATCH, seed=0)
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(*gradients)
    layout = Layout(model)
    flat = 0.1 * torch.randn(3, layout.size, dtype=torch.float64)
    population = Population(layout.centre(), layout.split(flat), mirrored=True)
    losses = [
        evaluate_members(model, population, BATCH, NOISE, mode=mode) for mode in ("vmap", "loop")
    ]
    torch.testing.assert_close(*losses)


@pytest.fixture
def fast_on_cpu(monkeypatch):
    """Takes the way of a GPU here, as it is written instead of compiled."""
    monkeypatch.setattr(nri, "is_fast", lambda module, x: module.fused and module.training)
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.mark.parametrize("samples", [1, 3])
def test_the_fast_way_is_the_plain_one(fast_on_cpu, samples):
    """Losses, gradients and running statistics."""
    found = []
    for fused in (True, False):
        model = small(fused=fused)
        z = trees(samples, 8)
        with hard_structures():
            losses = model.loss_at(BATCH, model.encode(BATCH), z)
        gradients = torch.autograd.grad(losses.sum(), model.parameters())
        found.append([losses, *gradients, *model.buffers()])
    torch.testing.assert_close(*found)


def test_the_fast_way_takes_all_members_at_once(fast_on_cpu):
    layout = Layout(small())
    flat = 0.1 * torch.randn(3, layout.size, dtype=torch.float64)
    found = []
    for fused in (True, False):
        model = small(fused=fused)
        nes = nestruct.NES(sigma=0.1, population_size=6, mode="vmap", minibatch="per_pair")
        nes.backward(model, BATCH, seed=0)
        population = Population(Layout(model).centre(), layout.split(flat), mirrored=True)
        losses = evaluate_members(model, population, BATCH, NOISE, mode="vmap")
        found.append([losses, *(p.grad for p in model.parameters()), *model.buffers()])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("options", [{}, {"num_rollout_steps": 2, "structure": "k-subset"}])
def test_a_population_by_the_twins_of_kernels_is_the_plain_one(fast_on_cpu, monkeypatch, options):
    """The whole way to the kernels and back, with members, samples and examples of their own."""
    asked: list[int] = []
    for module in (pair_scores, roll_out):
        monkeypatch.setattr(module, "takes_kernels", lambda _, hidden: not asked.append(hidden))
    for module in (pair_blocks, tree_moves):
        monkeypatch.setattr(module, "HALF", torch.float32)
    batch, found = {"x": BATCH["x"].float()}, []
    for fused in (True, False):
        model = small(fused=fused, hidden_size=16, **options).float()
        nes = nestruct.NES(
            sigma=0.1, population_size=6, mode="vmap", minibatch="per_pair", num_samples=2
        )
        nes.backward(model, batch, seed=0)
        found.append([*(p.grad for p in model.parameters()), *model.buffers()])
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)
    assert set(asked) == {16}


def test_the_fast_encoder_can_be_traced():
    """What torch.compile does first on a GPU, with the shapes checked by these tests in the way."""
    encoder = small().encoder
    x = torch.randn(3, 4, encoder.node_in.first.in_features, dtype=torch.float64)
    parameters = list(encoder.parameters())
    traced = torch.compile(pair_scores.pair_scores, backend="eager", fullgraph=True)
    found = traced(x, *parameters)
    torch.testing.assert_close(found, pair_scores.pair_scores(x, *parameters))


def test_roll_outs_follow_their_curriculum():
    """The gradient of each training step is that of a model with the step's own length."""
    changing = small(num_rollout_steps=5, rollout_curriculum=[[2, 3], [4, 1]])
    estimator = nestruct.StructureNES(num_samples=3)
    for step, length in enumerate([5, 5, 3, 3, 1, 1]):
        fixed = small(num_rollout_steps=length)
        fixed.load_state_dict(changing.state_dict())
        for model in (changing, fixed):
            estimator.backward(model, BATCH, seed=0, step=step)
        torch.testing.assert_close(
            [p.grad for p in changing.parameters()], [p.grad for p in fixed.parameters()]
        )
    nestruct.NES(sigma=0.1, population_size=4).backward(changing, BATCH, seed=0, step=2)
    assert changing.num_rollout_steps == 3


def test_evaluation_has_the_last_length_of_a_curriculum_at_every_step():
    model = small(num_rollout_steps=5, rollout_curriculum=[[2, 3], [4, 1]])
    expected = nestruct.evaluate(small(num_rollout_steps=1), BATCH)
    for step in (0, 2, 4):
        model.at_step(step)
        assert nestruct.evaluate(model, BATCH) == expected
    model.num_rollout_steps = 5
    assert torch.equal(model.loss(BATCH, NOISE), small(num_rollout_steps=5).loss(BATCH, NOISE))


@pytest.mark.parametrize("mistake", [[3], [[0, 1]], [[2, 1], [2, 3]], [[2, 9]], [[2]], [["2", 1]]])
def test_a_curriculum_must_be_one(mistake):
    with pytest.raises(InputError, match="rollout_curriculum"):
        small(rollout_curriculum=mistake)


def test_what_is_decoded_must_fit_the_batch():
    model, z = small(), trees(8)
    for mistake in (torch.cat([z, z], 1), z[:, :4], z[:3], z[0]):
        with pytest.raises(InputError, match="z must be"):
            model.decode(BATCH, mistake)
    with pytest.raises(InputError, match="no examples"):
        model.loss({"x": BATCH["x"][:0]}, NOISE)


def test_subsets_of_another_size_take_the_long_way():
    model = small(structure="k-subset")
    model.structure = nestruct.KSubset(6, 4)
    z = model.infer(BATCH)
    with hard_structures():
        found = model.decode(BATCH, z)
    torch.testing.assert_close(found, model.decode(BATCH, z))


def test_loss_by_hand():
    model = small(divergence="gumbel").eval()
    scores = model.encode(BATCH)
    z = model.structure.argmax(scores + NOISE.gumbel(scores))
    kl = (scores + torch.exp(-scores) - 1).sum(-1)
    torch.testing.assert_close(model.loss(BATCH, NOISE), kl - model.decode(BATCH, z))
    heavy = small(divergence="gumbel", kl_weight=2.0).eval()
    torch.testing.assert_close(heavy.loss(BATCH, NOISE), 2 * kl - model.decode(BATCH, z))


def test_the_published_loss_by_hand():
    """One step at a time from the true positions, at a sample, per node, every edge's KL twice."""
    model = small(num_rollout_steps=5).eval()
    found = model.metrics(BATCH, NOISE)
    assert set(found) == {"loss", "loss_published"}  # without true trees, no F1
    scores = model.encode(BATCH)
    z = model.structure.argmax(scores + NOISE.gumbel(scores))
    one_step = small(num_rollout_steps=1).eval()
    one_step.load_state_dict(model.state_dict())
    kl = (scores + torch.exp(-scores) - 1).sum(1)
    torch.testing.assert_close(
        found["loss_published"], (2 * kl - one_step.decode(BATCH, z)) / 4, check_dtype=False
    )
    torch.testing.assert_close(found["loss"], model.loss(BATCH, NOISE))


def test_the_open_loop_loss_predicts_all_from_the_first_positions():
    model = small(num_rollout_steps=1, open_loop=True).eval()
    found = model.metrics(BATCH, NOISE)
    scores = model.encode(BATCH)
    z = model.structure.argmax(scores + NOISE.gumbel(scores))
    all_steps = small(num_rollout_steps=model.num_times - 1).eval()
    all_steps.load_state_dict(model.state_dict())
    kl = (scores + torch.exp(-scores) - 1).sum(1)
    torch.testing.assert_close(
        found["loss_open_loop"], (2 * kl - all_steps.decode(BATCH, z)) / 4, check_dtype=False
    )
    assert not torch.equal(found["loss_open_loop"], found["loss_published"])


def test_structures():
    assert repr(small().structure) == "SpanningTree(4)"
    subset = small(structure="k-subset")
    assert (subset.infer(BATCH).sum(-1) == 3).all()


def test_a_decoder_that_starts_with_a_pull():
    model, z = small(pull=0.1, num_rollout_steps=1), trees(8)
    adjacency = torch.zeros(8, 4, 4, dtype=torch.float64)
    rows, columns = torch.triu_indices(4, 4, 1)
    adjacency[:, rows, columns] = adjacency[:, columns, rows] = z
    x = BATCH["x"]
    here = x[:, :, :-1]
    towards = torch.einsum("bij,bijtd->bitd", adjacency, here[:, None] - here[:, :, None])
    error = (here + 0.1 * towards - x[:, :, 1:]).square().flatten(1).sum(-1)
    torch.testing.assert_close(model.decode(BATCH, z), -error / 2e-2)


def test_nes_finds_trees_without_seeing_them():
    data = GraphLayout(num_nodes=4, num_train=400, num_validation=200, num_test=2).splits()
    torch.manual_seed(0)
    start = {"relative": True, "score_scale": 30.0, "pull": 0.1}
    model = RelationalVAE(4, 10, hidden_size=6, variance=1e-3, batch_norm=False, **start)
    nes = nestruct.NES(
        sigma=0.03, population_size=60, minibatch="per_pair", pair_batch_size=4, mode="vmap"
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def f1() -> float:
        held_out = data["validation"]
        return float((model.infer(held_out) * held_out["z"]).sum(-1).mean() / 3)

    before = f1()
    for step in range(80):
        nes.backward(model, {"x": data["train"]["x"]}, seed=0, step=step)
        optimizer.step()
    assert 1 - f1() < 0.6 * (1 - before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"structure": "ring"}, "structure must be one of"),
        ({"divergence": "kl"}, "divergence must be one of"),
        ({"variance": 0.0}, "variance must be positive"),
        ({"score_scale": -1.0}, "score_scale must be positive"),
        ({"hidden_size": 0}, "hidden_size must be a whole number"),
        ({"num_rollout_steps": 6}, "num_rollout_steps must be a whole number from 1 to 5"),
        ({"pull": -0.1}, "pull must be from 0"),
        ({"pull": 0.1, "hidden_size": 3}, "pull needs a hidden_size of at least 4"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(InputError, match=message):
        RelationalVAE(4, 6, **{"num_rollout_steps": 5} | options)


def test_bad_sizes_are_named():
    with pytest.raises(InputError, match="num_nodes must be a whole number"):
        RelationalVAE(1, 6)
    with pytest.raises(InputError, match="num_times must be a whole number"):
        RelationalVAE(4, 1)
    with pytest.raises(InputError, match=r"x must be \[batch, nodes, times, 2\]"):
        small().encode(torch.zeros(2, 5, 6, 2, dtype=torch.float64))
