"""Generated shortest paths: the law, written out, and the numbers of PyEPO's own generator."""

import itertools

import numpy as np
import pytest
import torch

from nestruct import InputError
from nestruct.data import ShortestPaths
from nestruct.data.shortest_path import edge_costs


def test_costs_are_those_of_the_law():
    draws = np.random.RandomState(1)
    matrix, x = draws.binomial(1, 0.5, (7, 3)), draws.normal(0, 1, (4, 3))
    for degree in (1, 2, 4, 6):
        found = edge_costs(matrix, x, degree)
        for row, edge in itertools.product(range(4), range(7)):
            linear = sum(matrix[edge, k] * x[row, k] for k in range(3)) / 3**0.5
            expected = ((linear + 3) ** degree + 1) / 3.5**degree
            assert found[row, edge] == pytest.approx(expected, rel=1e-12)


def test_the_draws_are_those_of_pyepo():
    """genData(6, 3, (2, 3), 4, 0.5, seed=7) of PyEPO 2.2.7, run beside this: the same bits."""
    data = ShortestPaths(
        height=2,
        width=3,
        num_features=3,
        degree=4,
        noise_width=0.5,
        num_train=2,
        num_validation=1,
        num_test=3,
        seed=7,
    )
    splits = data.splits()
    assert splits["train"]["x"][0].tolist() == pytest.approx(
        [0.87389380, 0.10357395, 0.07066062], rel=1e-6
    )
    assert splits["train"]["costs"][0].tolist() == [
        *(0.5039224624633789, 1.3105744123458862, 0.8806784749031067, 0.5970931649208069),
        *(0.6662862300872803, 0.923825204372406, 1.4900985956192017),
    ]
    assert splits["test"]["costs"][2].tolist() == [
        *(0.2612797021865845, 0.007499403785914183, 0.08815331757068634, 0.06019064411520958),
        *(0.3636558949947357, 0.09782759100198746, 0.011925804428756237),
    ]


def test_the_bits_are_those_of_pyepos_generator():
    """Where PyEPO is installed, which the set-up does not do."""
    peer = pytest.importorskip("pyepo.data.shortestpath")
    for degree, width in itertools.product((1, 2, 4, 6), (0.0, 0.5)):
        sizes = {"num_train": 20, "num_validation": 5, "num_test": 5}
        data = ShortestPaths(degree=degree, noise_width=width, seed=degree, **sizes).splits()
        x, costs = peer.genData(30, 5, (5, 5), degree, width, seed=degree)
        for name, theirs in (("x", x), ("costs", costs)):
            ours = torch.cat([split[name] for split in data.values()])
            assert torch.equal(ours, torch.from_numpy(theirs).float())


def test_the_noise_has_its_width_and_the_path_is_the_cheapest():
    plain, noisy = (
        ShortestPaths(degree=2, noise_width=w, num_train=500).splits()["train"] for w in (0, 0.25)
    )
    assert torch.equal(plain["x"], noisy["x"])
    ratio = noisy["costs"] / plain["costs"]
    assert 0.75 <= ratio.min() < 0.76
    assert 1.24 < ratio.max() <= 1.25
    members = ShortestPaths().structure.enumerate()
    best = (noisy["costs"] @ members.T).amin(-1)
    torch.testing.assert_close((noisy["costs"] * noisy["z"]).sum(-1), best)


def test_the_baseline_is_one_path_for_all():
    data = ShortestPaths()
    batch = data.splits()["test"]
    (path,) = data.baselines(batch).values()
    assert path.shape == batch["z"].shape
    assert (path == path[0]).all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"height": 1, "width": 1}, "no edges"),
        ({"noise_width": 1.0}, "noise_width"),
        ({"degree": 0}, "degree"),
        ({"degree": 1000}, "degree must be a whole number from 1 to 50"),
        ({"seed": -1}, "seed"),
    ],
)
def test_wrong_options_are_refused(options, said):
    with pytest.raises(InputError, match=said):
        ShortestPaths(**options)
