"""Generated terrain: its law, how hard a tile is to read, and its best paths."""

import numpy as np
import pytest
import torch

from nestruct import InputError
from nestruct.data import Terrain
from nestruct.data.terrain import COSTS, TILE_SIZE
from nestruct.models import mlp

SMALL = {"num_train": 30, "num_validation": 5, "num_test": 10}
DATA = Terrain(num_train=100, num_validation=1, num_test=100)
SPLITS = DATA.splits()


def classes(batch) -> torch.Tensor:
    return torch.searchsorted(torch.tensor(COSTS) - 0.1, batch["costs"]) - 1


def tiles(batch) -> torch.Tensor:
    """The pixels of every tile, cut out one by one, in the order of the cells."""
    size = TILE_SIZE
    found = [
        batch["x"][:, 0, size * i : size * (i + 1), size * j : size * (j + 1)]
        for i in range(DATA.height)
        for j in range(DATA.width)
    ]
    return torch.stack(found, 1).flatten(2)


def test_every_class_has_a_fifth_of_the_tiles_and_neighbours_are_alike():
    found = classes(SPLITS["train"])
    assert torch.equal(torch.tensor(COSTS)[found], SPLITS["train"]["costs"])
    share = torch.bincount(found.flatten(), minlength=5) / found.numel()
    assert (share - 0.2).abs().max() < 0.02
    same = (found[:, :, 1:] == found[:, :, :-1]).float().mean()
    assert same > 0.4
    rough = Terrain(smoothness=0, **SMALL).splits()["train"]
    alike = (classes(rough)[:, 1:] == classes(rough)[:, :-1]).float().mean()
    assert alike == pytest.approx(0.2, abs=0.03)


def test_bayes_rule_is_the_one_of_the_law():
    """Against the densities of all textures, written out for a few tiles."""
    quiet = Terrain(noise=1e-6, num_train=200, num_validation=1, num_test=1).splits()["train"]
    seen: dict[int, list[np.ndarray]] = {}
    for tile, kind in zip(tiles(quiet).flatten(0, 1), classes(quiet).flatten(), strict=True):
        known = seen.setdefault(int(kind), [])
        if not any(np.allclose(tile, one, atol=1e-4) for one in known):
            known.append(tile.numpy())
    assert sorted(map(len, seen.values())) == [1, 1, 2, 4, 4]  # turned by quarters
    batch = {key: value[:2] for key, value in SPLITS["test"].items()}
    found = DATA.chances(batch["x"])
    for row, (i, j) in ((0, (0, 0)), (1, (3, 11))):
        tile = tiles(batch)[row, i * DATA.width + j].numpy()
        density = np.array(
            [
                np.mean(
                    [np.exp(-((tile - one) ** 2).sum() / 2 / DATA.noise**2) for one in seen[kind]]
                )
                for kind in range(5)
            ]
        )
        assert found[row, i, j].numpy() == pytest.approx(density / density.sum(), abs=1e-4)


def test_a_classifier_of_single_tiles_reads_85_to_92_percent():
    """The best there is, and a small network that has seen 14,400 tiles."""
    truth = classes(SPLITS["test"])
    best = (DATA.chances(SPLITS["test"]["x"]).argmax(-1) == truth).double().mean()
    assert 0.90 < best < 0.92
    x, y = tiles(SPLITS["train"]).flatten(0, 1), classes(SPLITS["train"]).flatten()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = mlp(TILE_SIZE**2, 64, 5)
        adam = torch.optim.Adam(network.parameters(), lr=0.01, weight_decay=1e-4)
        for rows in torch.randperm(len(x)).repeat(4).split(256):
            adam.zero_grad()
            torch.nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
            adam.step()
    with torch.no_grad():
        found = network(tiles(SPLITS["test"])).argmax(-1)
    assert 0.85 < (found == truth.flatten(1)).double().mean() < best


def test_the_path_is_the_cheapest():
    small = Terrain(height=3, width=4, **SMALL)
    batch = small.splits()["train"]
    members = small.structure.enumerate()
    best = torch.einsum("bhw,mhw->bm", batch["costs"], members).amin(-1)
    torch.testing.assert_close((batch["costs"] * batch["z"]).sum((1, 2)), best)


def test_an_example_is_the_same_in_a_larger_set():
    small = Terrain(**SMALL).splits()
    assert torch.equal(small["train"]["x"], SPLITS["train"]["x"][:30])
    assert torch.equal(small["test"]["costs"], SPLITS["test"]["costs"][:10])
    other = Terrain(**SMALL, seed=1).splits()
    assert not torch.equal(other["train"]["costs"], small["train"]["costs"])


def test_baselines_that_know_more_are_better():
    batch = SPLITS["test"]
    paid = {name: float((z * batch["costs"]).sum()) for name, z in DATA.baselines(batch).items()}
    best = float((batch["z"] * batch["costs"]).sum())
    alike, grey, law = paid.values()
    assert best < law < grey < alike
    straight = DATA.baselines(batch)["all tiles alike"]
    assert torch.equal(straight, torch.eye(12).expand(100, 12, 12))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"height": 1}, "height must be a whole number from 2"),
        ({"noise": 0}, "noise must be above 0"),
        ({"smoothness": -1}, "smoothness must be from 0"),
        ({"num_train": 0}, "num_train"),
        ({"seed": -1}, "seed"),
        ({"height": 1000, "width": 1000, "num_train": 10**6}, "more than this machine has"),
    ],
)
def test_wrong_options_are_refused(options, said):
    with pytest.raises(InputError, match=said):
        Terrain(**options).splits()
