"""The same answers on a GPU, also inside a captured graph. Skipped where there is none."""

import pytest
import torch
from cases import CASES, GIBBS_CASES, SAMPLE_CASES

import nestruct
from nestruct import InputError
from nestruct.structures import sparse_map

pytestmark = pytest.mark.cuda

CAPTURABLE = {
    "categorical": (nestruct.Categorical(10), (64, 10)),
    "k-subset": (nestruct.KSubset(45, 9), (64, 45)),
    "permutation": (nestruct.Permutation(9), (64, 9, 9)),
    "spanning tree": (nestruct.SpanningTree(10), (64, 45)),
    "projective tree": (nestruct.ProjectiveTree(), (64, 13, 13)),
    "projective tree, many roots": (nestruct.ProjectiveTree(False), (64, 13, 13)),
    "linear chain": (nestruct.LinearChain(3), (64, 7, 3, 3)),
    "semi-Markov": (nestruct.SemiMarkov(3, 4), (64, 12, 4, 3)),
    "alignment": (nestruct.Alignment(), (64, 8, 9)),
    "constituency tree": (nestruct.ConstituencyTree(2), (64, 9, 9, 2)),
    "non-projective tree": (nestruct.NonProjectiveTree(), (64, 13, 13)),
    "non-projective tree, many roots": (nestruct.NonProjectiveTree(False), (64, 13, 13)),
    "monotone path": (nestruct.GridPath(6, 7), (64, 6, 7)),
    "path of eight moves": (nestruct.GridPath(4, 5, moves="eight", scores="edges"), (64, 55)),
    "black box": (nestruct.BlackBox(lambda s: s > 0, (7,)), (64, 7)),
}


def gaussian(shape, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_argmax_equals_the_cpu(case, dtype):
    scores = gaussian((5, 7, *case.shape), dtype)
    lengths = None
    if case.is_sized:
        lengths = case.least + torch.arange(35).view(5, 7) % (case.size + 1 - case.least)
    on_gpu = None if lengths is None else lengths.cuda()
    z = case.structure.argmax(scores.cuda(), lengths=on_gpu)
    assert z.is_cuda
    assert torch.equal(z.cpu(), case.structure.argmax(scores, lengths=lengths))
    assert case.structure.contains(z, lengths=on_gpu).all()
    assert torch.equal(
        case.structure.argmax(scores[0, 0].cuda()).cpu(), case.structure.argmax(scores[0, 0])
    )
    vmapped = torch.func.vmap(case.structure.argmax)(scores.cuda())
    assert torch.equal(vmapped.cpu(), case.structure.argmax(scores))


@pytest.mark.parametrize("n", [25, 60, 250])
def test_long_sentences_equal_the_cpu(n):
    scores = gaussian((4, n + 1, n + 1), torch.float64)
    lengths = torch.tensor([n, n - 1, n // 2, 1])
    for kind in (nestruct.ProjectiveTree, nestruct.NonProjectiveTree):
        for rule in (True, False):
            z = kind(rule).argmax(scores.cuda(), lengths=lengths)
            assert torch.equal(z.cpu(), kind(rule).argmax(scores, lengths=lengths))


@pytest.mark.parametrize("case", GIBBS_CASES, ids=repr)
def test_gibbs_quantities_equal_the_cpu(case):
    scores = gaussian((6, *case.shape), torch.float64)
    for method in ("log_partition", "marginals", "entropy"):
        on_gpu = getattr(case.structure, method)(scores.cuda())
        torch.testing.assert_close(on_gpu.cpu(), getattr(case.structure, method)(scores))


def test_relaxations_equal_the_cpu():
    scores, lengths = gaussian((5, 30, 30), torch.float64), torch.tensor([29, 7, 1, 0, 28])
    for rule in (True, False):
        tree = nestruct.ProjectiveTree(rule)
        soft = tree.soft_argmax(scores.cuda(), 0.7, lengths=lengths)
        torch.testing.assert_close(soft.cpu(), tree.soft_argmax(scores, 0.7, lengths=lengths))
        for kind in (nestruct.ProjectiveTree, nestruct.NonProjectiveTree):
            mixture = sparse_map(kind(rule), scores.cuda(), lengths=lengths.cuda())
            torch.testing.assert_close(
                mixture.cpu(), sparse_map(kind(rule), scores, lengths=lengths)
            )


@pytest.mark.parametrize("case", SAMPLE_CASES, ids=repr)
def test_samples_are_legal(case):
    scores = gaussian((50, *case.shape)).cuda()
    z = case.structure.sample(scores, torch.Generator("cuda").manual_seed(0))
    assert case.structure.contains(z).all()


@pytest.mark.parametrize("name", CAPTURABLE)
def test_argmax_inside_a_captured_graph(name):
    structure, shape = CAPTURABLE[name]
    static = gaussian(shape).cuda()
    for warm in (structure.argmax, torch.func.vmap(structure.argmax)):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            warm(static)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            z = warm(static)
        fresh = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        expected = structure.argmax(fresh)
        static.copy_(fresh)
        graph.replay()
        assert torch.equal(z.cpu(), expected)
        fresh[3] = torch.nan
        static.copy_(fresh)
        graph.replay()
        assert z[3].isnan().all()
        keep = torch.arange(len(fresh)) != 3
        assert torch.equal(z.cpu()[keep], expected[keep])


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_no_host_synchronisation_inside_vmap():
    for structure, shape in CAPTURABLE.values():
        # The rounds of the non-projective solver end early where the host may look.
        if not isinstance(structure, nestruct.BlackBox | nestruct.NonProjectiveTree):
            scores = gaussian((3, *shape)).cuda()
            torch.func.vmap(structure.argmax)(scores)
            try:
                torch.cuda.set_sync_debug_mode("error")
                torch.func.vmap(structure.argmax)(scores)
            finally:
                torch.cuda.set_sync_debug_mode("default")


def test_bad_rows_are_named():
    scores = gaussian((2, 3, 45)).cuda()
    scores[1, 2, 7] = torch.nan
    with pytest.raises(InputError, match=r"row \(1, 2\) holds NaN"):
        nestruct.SpanningTree(10).argmax(scores)
