"""The graph-layout data: the step against networkx, trees, splits, options."""

import json

import networkx as nx
import pytest
import torch

import nestruct
from nestruct import InputError
from nestruct.data import GraphLayout
from nestruct.data.graph_layout import layout

SMALL = {"num_nodes": 5, "num_train": 40, "num_validation": 12, "num_test": 9}


def random_trees(count: int, n: int, seed: int) -> torch.Tensor:
    weights = torch.rand(count, n * (n - 1) // 2, dtype=torch.float64, generator=_generator(seed))
    return nestruct.SpanningTree(n).argmax(weights)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("n", [2, 3, 5, 10, 17])
def test_a_step_is_that_of_networkx(n):
    trees = random_trees(6, n, seed=n)
    rows, columns = (index.tolist() for index in torch.triu_indices(n, n, 1))
    positions = torch.randn(6, n, 2, dtype=torch.float64, generator=_generator(n + 100))
    positions[0, 0] = positions[0, 1]  # coinciding nodes: the clamped distance
    for _ in range(3):
        after = layout(positions, trees, 1)[:, :, 0]
        for tree, before, ours in zip(trees, positions, after, strict=True):
            graph = nx.empty_graph(n)
            graph.add_edges_from((rows[e], columns[e]) for e in tree.nonzero()[:, 0])
            given = dict(enumerate(before.numpy()))
            theirs = nx.spring_layout(graph, pos=given, iterations=1, threshold=1e-10)
            expected = torch.stack([torch.from_numpy(theirs[node]) for node in range(n)])
            torch.testing.assert_close(ours, expected, rtol=0, atol=1e-10)
        positions = after


def test_twenty_records_are_twenty_steps():
    trees, starts = random_trees(4, 10, seed=1), torch.randn(4, 10, 2, dtype=torch.float64)
    here, steps = starts, []
    for _ in range(20):
        here = layout(here, trees, 1)[:, :, 0]
        steps.append(here)
    torch.testing.assert_close(layout(starts, trees, 20), torch.stack(steps, 2), rtol=0, atol=1e-12)
    assert GraphLayout(num_times=20, **SMALL).splits()["train"]["x"].shape == (40, 5, 20, 2)


def test_a_layout_of_other_shapes_is_refused():
    starts, z = torch.randn(3, 5, 2, dtype=torch.float64), torch.zeros(3, 10)
    for mistake in ((starts, z[:1]), (starts, z[:, :9]), (starts[..., :1], z), (starts[0], z)):
        with pytest.raises(InputError, match=r"must be \[examples"):
            layout(*mistake, 3)
    with pytest.raises(InputError, match="num_times"):
        layout(starts, z, 0)


def test_what_needs_no_learning():
    data = GraphLayout(num_nodes=10, num_train=2000, num_validation=1, num_test=1)
    batch = data.splits()["train"]
    found = data.baselines(batch)
    shortest, nearest = (found[f"{n} without learning"] for n in ("shortest tree", "nearest pairs"))
    assert nestruct.SpanningTree(10).contains(shortest).all()
    assert (nearest.sum(1) == 9).all()
    for z, expected in ((shortest, 0.814), (nearest, 0.777)):  # of 10,000 graphs, made elsewhere
        right = (z * batch["z"]).sum(1).mean() / 9
        assert right == pytest.approx(expected, abs=0.02)


def test_shapes_ranges_and_trees():
    splits = GraphLayout(**SMALL, num_times=7).splits()
    assert list(splits) == ["train", "validation", "test"]
    for name, size in (("train", 40), ("validation", 12), ("test", 9)):
        x, z = splits[name]["x"], splits[name]["z"]
        assert (x.shape, z.shape) == ((size, 5, 7, 2), (size, 10))
        assert x.dtype == z.dtype == torch.float32
        assert nestruct.SpanningTree(5).contains(z).all()
    x = splits["train"]["x"]
    assert (x.min(), x.max()) == (-1, 1)


def test_a_record_is_a_step_from_the_last():
    """The scaling is affine, and so is undone by the step's own."""
    batch = GraphLayout(**SMALL).splits()["train"]
    x = batch["x"].double()
    x = x - x.mean(1, keepdim=True)
    x = x / x.abs().amax((1, 3), keepdim=True)
    for time in range(9):
        after = layout(x[:, :, time].contiguous(), batch["z"].double(), 1)[:, :, 0]
        torch.testing.assert_close(after, x[:, :, time + 1], rtol=0, atol=1e-5)


def test_the_seed_is_the_identity():
    one, same, other = (GraphLayout(**SMALL, seed=seed).splits() for seed in (3, 3, 4))
    for split in one:
        assert torch.equal(one[split]["x"], same[split]["x"])
        assert torch.equal(one[split]["z"], same[split]["z"])
    assert not torch.equal(one["train"]["x"], other["train"]["x"])
    assert not torch.equal(one["validation"]["x"][:9], one["test"]["x"])
    assert not torch.equal(one["train"]["z"][:12], one["validation"]["z"])


def test_chunks_do_not_show(monkeypatch):
    whole = GraphLayout(**SMALL).splits()["train"]
    monkeypatch.setattr("nestruct.data.graph_layout._CHUNK", 7)
    parts = GraphLayout(**SMALL).splits()["train"]
    assert torch.equal(parts["x"], whole["x"])
    assert torch.equal(parts["z"], whole["z"])


def test_a_large_set_is_kept_and_read_back(tmp_path, monkeypatch):
    monkeypatch.setenv("NESTRUCT_CACHE", str(tmp_path))
    options = {"num_nodes": 3, "num_times": 2, "num_train": 10_000, "num_validation": 2}
    fresh = GraphLayout(**options, num_test=2).splits()
    monkeypatch.setattr(GraphLayout, "_generate", lambda self: pytest.fail("generated again"))
    again = GraphLayout(**options, num_test=2).splits()
    for split in fresh:
        assert torch.equal(fresh[split]["x"], again[split]["x"])
        assert torch.equal(fresh[split]["z"], again[split]["z"])
        assert fresh[split]["z"].dtype == again[split]["z"].dtype == torch.float32
    assert len(list(tmp_path.iterdir())) == 1


def test_a_small_set_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("NESTRUCT_CACHE", str(tmp_path))
    GraphLayout(**SMALL).splits()
    assert not list(tmp_path.iterdir())


def test_a_drawing_is_plain_json():
    data = GraphLayout(**SMALL)
    batch = data.splits()["test"]
    paths = json.loads(json.dumps(data.drawing(batch)))["paths"]
    assert torch.tensor(paths).shape == batch["x"].shape
    torch.testing.assert_close(torch.tensor(paths), batch["x"], rtol=0, atol=6e-4)
    assert all(value == round(value, 3) for value in paths[0][0][0])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_nodes", 1),
        ("num_times", 1),
        ("num_train", 0),
        ("num_validation", 2.5),
        ("num_test", True),
        ("seed", -1),
    ],
)
def test_bad_options_are_named(name, value):
    with pytest.raises(InputError, match=f"{name} must be a whole number"):
        GraphLayout(**{name: value})
