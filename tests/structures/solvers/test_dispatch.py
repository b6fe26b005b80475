"""The op in front of the solvers: threads, forks, schema, one flat call."""

import subprocess
import sys
import textwrap
import threading
import time

import jaxtyping
import numpy as np
import pytest
import torch

import nestruct
from nestruct.kernels import LANES
from nestruct.structures.solvers import dispatch
from nestruct.structures.solvers.run import run_rows


@pytest.fixture
def torch_threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_follow_torch_and_cover_every_row_once(threads, torch_threads):
    torch_threads(threads)
    seen: list[tuple[int, int]] = []
    together = threading.Barrier(threads)

    def kernel(rows, lengths, option, z, codes):
        if threading.get_ident() not in {ident for ident, _ in seen}:
            together.wait(10)  # as many threads as torch has must be here at the same time
        seen.append((threading.get_ident(), len(rows)))
        z[:] = rows + option
        codes[:] = lengths

    rows = np.random.default_rng(0).normal(size=(1003, 20))
    z, codes = np.zeros_like(rows), np.zeros(1003, np.int64)
    run_rows(kernel, rows, np.arange(1003), 5, z, codes)
    np.testing.assert_array_equal(z, rows + 5)
    np.testing.assert_array_equal(codes, np.arange(1003))
    assert len({ident for ident, _ in seen}) == threads
    assert sum(count for _, count in seen) == 1003
    assert threads == 1 or sum(count % LANES != 0 for _, count in seen) <= 1


def test_an_error_in_a_thread_is_not_lost(torch_threads):
    torch_threads(2)
    caller = threading.get_ident()

    def kernel(rows, *_):
        if threading.get_ident() != caller:
            raise RuntimeError("from a helper")
        time.sleep(0.2)  # leaves the helper something to do

    rows = np.zeros((5000, 20))
    with pytest.raises(RuntimeError, match="from a helper"):
        run_rows(kernel, rows, np.zeros(5000), 0, rows, np.zeros(5000))


def test_results_do_not_depend_on_threads(torch_threads):
    scores = torch.randn(2000, 12, 12, generator=torch.Generator().manual_seed(0))
    results = []
    for threads in (1, 2):
        torch_threads(threads)
        results.append(nestruct.ProjectiveTree().argmax(scores))
    assert torch.equal(*results)


def test_many_python_threads_may_solve_at_once():
    scores = torch.randn(8, 3000, 45, generator=torch.Generator().manual_seed(0))
    tree = nestruct.SpanningTree(10)
    results: dict[int, torch.Tensor] = {}

    def solve(index: int) -> None:
        results[index] = tree.argmax(scores[index])

    workers = [threading.Thread(target=solve, args=(i,)) for i in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert torch.equal(torch.stack([results[i] for i in range(8)]), tree.argmax(scores))


def test_solvers_survive_a_fork():
    """What a DataLoader worker does: fork after the parent used its threads."""
    script = """
        import os, torch, nestruct
        torch.set_num_threads(2)
        scores = torch.randn(3000, 45)
        before = nestruct.SpanningTree(10).argmax(scores)
        child = os.fork()
        if child == 0:
            torch.set_num_threads(2)
            same = torch.equal(nestruct.SpanningTree(10).argmax(scores), before)
            os._exit(0 if same else 1)
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], timeout=120, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("solver", "option", "shape", "lengths"),
    [
        ("top_k", 2, (3, 5), None),
        ("prim", 4, (3, 6), None),
        ("eisner", 1, (2, 3, 5, 5), torch.tensor([[4, 3, 1], [0, 2, 4]])),
        ("edmonds", 0, (3, 5, 5), torch.tensor([4, 3, 1])),
        ("jonker_volgenant", 0, (3, 4, 4), None),
    ],
)
def test_the_op_keeps_the_rules_of_torch(solver, option, shape, lengths):
    scores = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    torch.library.opcheck(dispatch._solve, (scores, lengths, solver, option, "test", True))


def test_argmax_compiles_without_breaking_the_graph(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # the check does not compile
    tree = nestruct.SpanningTree(5)

    def perturbed(scores: torch.Tensor) -> torch.Tensor:
        return tree.argmax(2 * scores) + 1

    scores = torch.randn(4, 10, generator=torch.Generator().manual_seed(0))
    compiled = torch.compile(perturbed, backend="eager", fullgraph=True)
    assert torch.equal(compiled(scores), perturbed(scores))


def test_a_vmapped_model_calls_the_solver_once(monkeypatch):
    calls = []
    original = dispatch._solve_on_cpu
    monkeypatch.setattr(
        dispatch, "_solve_on_cpu", lambda *args: calls.append(args[1].shape) or original(*args)
    )
    encoder = torch.nn.Linear(3, 45)
    members = {name: torch.randn(6, *p.shape) for name, p in encoder.named_parameters()}
    inputs = torch.randn(7, 3)

    def sample(parameters):
        scores = torch.func.functional_call(encoder, parameters, (inputs,))
        return nestruct.SpanningTree(10).argmax(scores)

    z = torch.func.vmap(sample)(members)
    assert z.shape == (6, 7, 45)
    assert not z.requires_grad
    assert calls == [(42, 45)]
    calls.clear()
    assert torch.equal(torch.func.vmap(sample, chunk_size=2)(members), z)
    assert calls == [(14, 45)] * 3
