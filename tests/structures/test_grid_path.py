"""Paths through grids: start and goal, both forms of the solvers, numbering, other libraries."""

import copy
import itertools
import pickle

import networkx
import numpy as np
import pytest
import scipy.sparse
import torch
from cases import chi_square, count_members, totals

import nestruct
from nestruct import InputError
from nestruct.structures.solvers import SOLVERS
from nestruct.structures.solvers.grid_sweeps import SIDE, sweep
from nestruct.structures.solvers.monotone_path import edge_ends, monotone_path_plain
from nestruct.structures.solvers.run import run_rows

KINDS = list(itertools.product(("monotone", "four", "eight"), ("cells", "edges")))
each_kind = pytest.mark.parametrize(("moves", "kind"), KINDS)


def drawn(structure, *lead: int, seed: int = 0, dtype=torch.float64) -> torch.Tensor:
    """Costs, a few of them 0 or equal, and a few cells or edges forbidden."""
    generator = torch.Generator().manual_seed(seed)
    shape = (*lead, *structure.part_shape)
    costs = torch.randint(0, 4, shape, generator=generator).to(dtype)
    costs = costs + 0.37 * torch.randint(0, 2, shape, generator=generator)
    blocked = torch.rand(shape, generator=generator) < 0.1
    return torch.where(blocked, -torch.inf, -costs)


def both_forms(structure, scores: torch.Tensor, ends: torch.Tensor):
    solver = SOLVERS[structure._solver]
    assert solver.kernel is not None
    rows = scores.reshape(len(scores), structure.grid.num_parts).contiguous()
    z, codes = np.empty(rows.shape, rows.numpy().dtype), np.empty(len(rows), np.int64)
    run_rows(solver.kernel, rows.numpy(), ends.numpy(), structure.grid.code, z, codes)
    return (torch.from_numpy(z), torch.from_numpy(codes)), solver.batched(
        rows, ends, structure.grid.code
    )


@each_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [(1, 1), (1, 5), (4, 1), (4, 6)], ids=str)
def test_kernel_and_batched_form_agree_to_the_last_tie(moves, kind, dtype, size):
    structure = nestruct.GridPath(*size, moves=moves, scores=kind)
    scores = drawn(structure, 300, dtype=dtype)
    cells = structure.grid.num_cells
    scores[:3].flatten(1)[:, :1] = torch.nan
    ends = torch.randint(cells**2, (300,), generator=torch.Generator().manual_seed(1))
    ends[100:] = cells - 1
    ends[50] = -1
    kernel, batched = both_forms(structure, scores, ends)
    assert torch.equal(kernel[1], batched[1])
    fine = kernel[1] == 0
    assert fine.any()
    assert torch.equal(kernel[0][fine], batched[0][fine])


@pytest.mark.parametrize("moves", ["four", "eight"])
@pytest.mark.parametrize("kind", ["cells", "edges"])
def test_many_grids_side_by_side_are_solved_as_each_alone(moves, kind):
    """Many are swept, a single one goes through a queue."""
    structure = nestruct.GridPath(9, 11, moves=moves, scores=kind)
    scores = torch.cat([drawn(structure, 30), -drawn(structure, 30, seed=1).exp()])
    start, goal = torch.randint(99, (2, 60), generator=torch.Generator().manual_seed(2))
    with nestruct.nan_rows():
        together = structure.argmax(scores, start=start, goal=goal)
        alone = [
            structure.argmax(row, start=a, goal=b)
            for row, a, b in zip(scores, start, goal, strict=True)
        ]
    torch.testing.assert_close(together, torch.stack(alone), rtol=0, atol=0, equal_nan=True)
    assert (~together.flatten(1).isnan().any(1)).sum() > 30


def test_mazes_are_not_swept_without_end():
    structure = nestruct.GridPath(3, 441, moves="four")
    scores = -torch.rand(8, 3, 441, generator=torch.Generator().manual_seed(0))
    scores[:, 1:, 1::4] = -torch.inf  # up and down, again and again
    scores[:, :2, 3::4] = -torch.inf
    assert not sweep_alone(structure, scores)
    z = structure.argmax(scores)
    assert torch.equal(z, torch.stack([structure.argmax(row) for row in scores]))
    # 219 columns of three cells each, 220 doors between them, and both ends.
    assert (z.flatten(1).sum(1) == 219 * 3 + 220 + 2).all()


def sweep_alone(structure, scores: torch.Tensor) -> bool:
    """Whether sweeps settle these grids, all of them from the first corner."""
    (height, width), ways = structure.part_shape, structure.grid.num_ways
    costs = np.full((height * width, ways, SIDE), np.inf)
    far = np.full((height + 2, width + 2, SIDE), np.inf)
    costs[..., : len(scores)] = -scores.flatten(1).T.numpy()[:, None]
    far[1, 1] = costs[0, 0]
    return sweep(costs.ravel(), far.ravel(), np.ones(height + 2, bool), height, width, ways)


@pytest.mark.parametrize("moves", ["four", "eight"])
def test_inside_a_capture_there_are_enough_rounds(moves, monkeypatch):
    """A winding path through walls, with nothing looked at on the way."""
    walls = ["......", "#####.", "......", ".#####", "......"]
    structure = nestruct.GridPath(5, 6, moves=moves)
    row = torch.tensor([[-torch.inf if c == "#" else -1.0 for c in line] for line in walls])
    ends = torch.tensor([structure.grid.num_cells - 1])
    (kernel, _), _ = both_forms(structure, row[None], ends)
    monkeypatch.setattr(
        "nestruct.structures.solvers.shortest_path.is_capturing", lambda tensor: True
    )
    _, (batched, codes) = both_forms(structure, row[None], ends)
    assert codes.tolist() == [0]
    assert torch.equal(kernel, batched)
    assert kernel.sum() == {"four": 20, "eight": 16}[moves]


@pytest.mark.parametrize("kind", ["cells", "edges"])
def test_monotone_equals_its_twin(kind):
    structure = nestruct.GridPath(3, 5, scores=kind)
    for seed in range(20):
        row = torch.randn(structure.part_shape, dtype=torch.float64)
        expected = monotone_path_plain(row.flatten().numpy(), 0, 14, structure.grid)
        assert (structure.argmax(row).flatten().numpy() == expected).all(), seed


@each_kind
def test_start_and_goal_against_enumeration(moves, kind):
    structure = nestruct.GridPath(3, 3, moves=moves, scores=kind)
    pairs = torch.tensor(list(itertools.product(range(9), repeat=2)))
    start, goal = pairs.unbind(1)
    scores = drawn(structure, 81)
    with nestruct.nan_rows():
        z = structure.argmax(scores, start=start, goal=goal)
    other = structure.enumerate().new_zeros(0, *structure.part_shape)
    for row, pair in enumerate(pairs):
        members = structure.enumerate(pair).double()
        total = totals(members, scores[row])
        ends = {"start": pair[0], "goal": pair[1]}
        if not len(members) or total.max() == -torch.inf:
            assert z[row].isnan().all()
            continue
        assert structure.contains(
            members, **{n: e.expand(len(members)) for n, e in ends.items()}
        ).all()
        assert structure.contains(z[row], **ends)
        found = torch.where(z[row] == 1, scores[row], 0).sum()
        torch.testing.assert_close(found, total.max())
        other = torch.cat([other, members[:3]])
        if moves == "monotone":
            assert structure.log_count(pair).exp().item() == pytest.approx(len(members))
            log_z = structure.log_partition(scores[row], **ends)
            torch.testing.assert_close(log_z, total.logsumexp(0))
            chance = (total - log_z).exp()
            marginals = torch.einsum("m,m...->...", chance, members)
            torch.testing.assert_close(structure.marginals(scores[row], **ends), marginals)
            values = structure.kbest(scores[row], 4, **ends)[1]
            wanted = total.sort(descending=True).values[:4]
            torch.testing.assert_close(values[: len(wanted)], wanted)
    # Paths between other cells are none from corner to corner.
    listed = {tuple(member) for member in structure.enumerate().flatten(1).tolist()}
    expected = [tuple(member) in listed for member in other.flatten(1).tolist()]
    assert structure.contains(other).tolist() == expected


def test_samples_between_start_and_goal():
    structure = nestruct.GridPath(4, 4)
    scores = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    start, goal = torch.full((4000,), 1), torch.full((4000,), 14)
    members = structure.enumerate((1, 14)).double()
    total = totals(members, scores)
    draws = torch.Generator().manual_seed(0)
    z = structure.sample(scores.expand(4000, 4, 4), draws, start=start, goal=goal)
    assert chi_square(count_members(members, z), total.softmax(0)) > 1e-3


def test_edges_are_numbered_as_pyepo_does():
    """PyEPO's list of arcs of a grid: each row's, then those to the next row."""
    height, width = 3, 4
    arcs = []
    for i in range(height):
        arcs += [(i * width + j, i * width + j + 1) for j in range(width - 1)]
        if i < height - 1:
            arcs += [(i * width + j, (i + 1) * width + j) for j in range(width)]
    for moves in ("monotone", "four"):
        grid = nestruct.GridPath(height, width, moves=moves, scores="edges").grid
        assert torch.stack(edge_ends(grid), 1).tolist() == [list(arc) for arc in arcs]
    grid = nestruct.GridPath(2, 3, moves="eight", scores="edges").grid
    assert torch.stack(edge_ends(grid), 1).tolist() == [
        *([0, 1], [1, 2]),  # east
        *([0, 3], [1, 4], [2, 5]),  # south
        *([0, 4], [1, 5]),  # south-east
        *([1, 3], [2, 4]),  # south-west
        *([3, 4], [4, 5]),
    ]


@pytest.mark.parametrize("moves", ["four", "eight"])
def test_other_libraries_find_paths_as_short(moves):
    structure = nestruct.GridPath(15, 20, moves=moves, scores="edges")
    scores = -torch.rand(5, structure.grid.num_parts, dtype=torch.float64)
    first, last = (end.numpy() for end in edge_ends(structure.grid))
    z = structure.argmax(scores)
    assert structure.contains(z).all()
    for row, path in zip(scores, z, strict=True):
        matrix = scipy.sparse.coo_array((-row.numpy(), (first, last)), shape=(300, 300))
        length = scipy.sparse.csgraph.dijkstra(matrix.tocsr(), directed=False, indices=0)[-1]
        assert -(path * row).sum().item() == pytest.approx(length)
    cells = nestruct.GridPath(15, 20, moves=moves)
    scores = -torch.rand(15, 20, dtype=torch.float64)
    graph = networkx.DiGraph()
    for a, b in zip(first.tolist(), last.tolist(), strict=True):
        for source, target in ((a, b), (b, a)):
            graph.add_edge(source, target, weight=-scores.flatten()[target].item())
    length = networkx.dijkstra_path_length(graph, 0, 299) - scores[0, 0].item()
    z = cells.argmax(scores)
    assert cells.contains(z)
    assert -(z * scores).sum().item() == pytest.approx(length)


@pytest.mark.parametrize("kind", ["cells", "edges"])
def test_monotone_float32_at_a_deviation_of_fifty(kind):
    structure = nestruct.GridPath(30, 20, scores=kind)
    scores = 50 * torch.randn(4, *structure.part_shape, generator=torch.Generator().manual_seed(1))
    wide = scores.double()
    torch.testing.assert_close(
        structure.log_partition(scores).double(),
        structure.log_partition(wide),
        rtol=1e-6,
        atol=1e-4,
    )
    marginals = structure.marginals(scores)
    torch.testing.assert_close(marginals.double(), structure.marginals(wide), rtol=0, atol=3e-4)
    torch.testing.assert_close(
        structure.entropy(scores).double(), structure.entropy(wide), rtol=0, atol=1e-5
    )


def test_mistakes_are_refused_in_a_sentence():
    structure = nestruct.GridPath(2, 3)
    scores = torch.zeros(2, 2, 3)
    for end in ("start", "goal"):
        for wrong in (-1, 6):
            for method in (structure.argmax, structure.contains, structure.log_partition):
                with pytest.raises(InputError, match="row 1 has a start or goal that is no cell"):
                    method(scores, **{end: torch.tensor([2, wrong])})
        with pytest.raises(InputError, match=f"'{end}' must be the number of a cell for each"):
            structure.argmax(scores, **{end: torch.zeros(2)})
        with pytest.raises(InputError, match=f"'{end}' must be the number of a cell for each"):
            structure.argmax(scores, **{end: torch.zeros(2, 2, dtype=torch.long)})
    with pytest.raises(InputError, match="row 0 leaves no legal member"):
        structure.argmax(scores, start=torch.tensor([3, 0]), goal=torch.tensor([2, 5]))
    with pytest.raises(InputError, match="moves must be one of"):
        nestruct.GridPath(2, 3, moves="knight")
    with pytest.raises(InputError, match="scores must be one of"):
        nestruct.GridPath(2, 3, scores="nodes")
    with pytest.raises(InputError, match="too many to list"):
        nestruct.GridPath(6, 6, moves="four").enumerate()
    with pytest.raises(InputError, match="GridPath has no log_partition"):
        nestruct.GridPath(2, 3, moves="four").log_partition  # noqa: B018
    for moves in ("monotone", "four"):
        one = nestruct.GridPath(2, 3, moves=moves)
        for other in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
            assert type(other) is type(one)
            assert repr(other) == repr(one)
        assert isinstance(one, nestruct.GridPath)


def test_what_lies_outside_of_start_and_goal_may_hold_anything():
    structure = nestruct.GridPath(4, 4)
    scores = torch.randn(4, 4, generator=torch.Generator().manual_seed(3))
    inner = nestruct.GridPath(2, 3)
    junk = torch.full_like(scores, torch.nan)
    junk[1:3, 1:4] = scores[1:3, 1:4]
    ends = {"start": torch.tensor(5), "goal": torch.tensor(11)}
    assert torch.equal(structure.argmax(junk, **ends)[1:3, 1:4], inner.argmax(scores[1:3, 1:4]))
    torch.testing.assert_close(
        structure.marginals(junk, **ends)[1:3, 1:4], inner.marginals(scores[1:3, 1:4])
    )
    assert structure.marginals(junk, **ends).sum() == pytest.approx(4)
    assert structure.counting(junk, **ends).sum() == 6
