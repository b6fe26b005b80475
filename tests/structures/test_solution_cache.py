"""Solutions that are looked up: bounded, exact, and counted."""

import copy

import numpy as np
import pytest
import torch

import nestruct
from nestruct import BlackBox
from nestruct.structures.solution_cache import SolutionCache, SolutionPool, digest, estimating


def test_a_digest_tells_names_types_shapes_and_bits_apart():
    row = np.array([0.0, 1.0])
    others = [
        {"b": row},
        {"a": row, "b": row},
        {"a": row.astype(np.float32)},
        {"a": row[None]},
        {"a": np.array([-0.0, 1.0])},
        {"a": np.array([0.0, 1.0 + 2e-16])},
        {"a": row.astype(np.int64)},
        {"a": np.array(0.0), "": np.array(1.0)},
    ]
    assert len({digest(other) for other in [{"a": row}, *others]}) == 9
    assert digest({"a": row, "b": others[1]["b"]}) == digest({"b": row.copy(), "a": row})
    assert digest({"a": np.ones((2, 3)).T}) == digest({"a": np.ones((3, 2))})


def test_the_longest_unused_solution_goes_first():
    cache = SolutionCache(3 * (8 + 250))
    for number in range(3):
        cache.put(bytes([number]), np.array([float(number)]))
    found = cache.get(b"\x00")
    assert found is not None
    found[0] = 9.0  # a copy
    cache.put(b"\x03", np.array([3.0]))
    cache.put(b"\x03", np.array([3.0]))
    assert [cache.get(bytes([number])) for number in range(4)] == [0.0, None, 2.0, 3.0]
    assert (len(cache), cache.bytes) == (3, 3 * 258)
    cache.put(b"large", np.zeros(1000))
    assert (len(cache), cache.bytes) == (0, 0)


def test_the_best_solution_of_a_context():
    pool = SolutionPool(10_000)
    members = torch.cartesian_prod(*[torch.arange(2)] * 4).numpy()
    for member in members[1:]:
        pool.put(b"one", member)
    pool.put(b"other", members[0])
    generator = np.random.default_rng(0)
    for scores in generator.normal(size=(20, 4)):
        best = members[1:][(members[1:] @ scores).argmax()]
        assert (pool.best(b"one", scores) == best).all()
    assert pool.best(b"none", scores) is None
    scores[2] = -np.inf  # forbidden
    found = pool.best(b"one", scores)
    assert found is not None
    assert found[2] == 0
    pool.put(b"forbidden", np.array([0, 0, 1, 0]))
    assert pool.best(b"forbidden", scores) is None


def test_a_pool_is_bounded_and_forgets_the_oldest():
    pool = SolutionPool(10**6)
    rows = np.eye(70)
    for row in rows:
        pool.put(b"one", row)
    assert len(pool._contexts[b"one"]) == 64
    assert pool.best(b"one", rows[0]) is not None
    assert (pool.best(b"one", rows[-1]) == rows[-1]).all()
    assert pool.best(b"one", rows[0] + rows[6] / 2)[6] == 1  # the first six are gone
    small = SolutionPool(2 * (16 + 250))
    for name in (b"a", b"b", b"c"):
        small.put(name, np.ones(1))
    assert [small.best(name, np.ones(1)) is None for name in (b"a", b"b", b"c")] == [True, 0, 0]
    assert small.bytes == 2 * 266


class Counting:
    """A solver that counts its calls: items above a limit."""

    def __init__(self):
        self.calls = 0

    def __call__(self, scores, limit=0.0):
        self.calls += 1
        return scores > limit


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_repeats_are_looked_up(backend):
    solve = Counting()
    box = BlackBox(solve, 3, batched=False, backend=backend)
    scores = torch.randn(5, 3)
    first = box.argmax(scores)
    assert torch.equal(box.argmax(scores), first)
    assert torch.equal(box.argmax(scores.flip(0)), first.flip(0))
    assert solve.calls == 5
    limit = torch.full((5,), 0.1)
    assert torch.equal(box.argmax(scores, limit=limit), (scores > 0.1).float())
    box.argmax(scores.double())
    assert solve.calls == 15  # other context, other type
    assert box.counts["solved"] == 15
    assert box.counts["looked_up"] == 10


def test_what_a_step_solves_is_not_kept_but_what_must_be_exact_is():
    solve = Counting()
    box = BlackBox(solve, 3, batched=False, pool_share=1.0)
    scores = torch.randn(5, 3)
    with estimating():
        box.argmax(scores)
    box.argmax(scores)
    assert solve.calls == 10
    with estimating():
        box.argmax(scores)
        assert solve.calls == 10
        with estimating(False):
            box.argmax(scores + 1)
    assert solve.calls == 15
    box.argmax(scores + 1)
    assert [box.counts[name] for name in ("solved", "looked_up", "pooled")] == [15, 10, 0]


def test_no_answer_is_an_answer_but_an_error_is_none():
    calls = []

    def solve(scores):
        calls.append(scores)
        if scores[0] > 1:
            raise ValueError("too large")
        return np.full(2, np.nan)

    box = BlackBox(solve, 2, batched=False, backend="numpy")
    for _ in range(2):
        with pytest.raises(nestruct.InputError, match="row 0 has no answer"):
            box.argmax(torch.zeros(1, 2))
        with pytest.raises(nestruct.InputError, match="too large"):
            box.argmax(torch.full((1, 2), 2.0))
    assert len(calls) == 3


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_batched_solver_is_always_called(backend):
    calls = []
    box = BlackBox(lambda scores: calls.append(len(scores)) or scores > 0, 3, backend=backend)
    for _ in range(2):
        box.argmax(torch.zeros(4, 3))
    assert calls == [4, 4]
    assert box.counts["solved"] == 8


def test_lookups_can_be_turned_off():
    solve = Counting()
    box = BlackBox(solve, 3, batched=False)
    box.cache_bytes = 0
    for other in (box, box, copy.deepcopy(box)):
        other.argmax(torch.zeros(2, 3))
    assert solve.calls == 4


@pytest.mark.parametrize("batched", [False, True])
def test_stored_solutions_stand_in_for_a_share_of_the_calls_in_training(batched):
    def solve(scores, room):
        return (scores > 0) & (room > 0)[..., None] if batched else (scores > 0) & (room > 0)

    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(250, 4, 2, generator=generator)
    room = torch.tensor([0.0, 1.0, -1.0, 1.0])

    def run(share):
        box = BlackBox(solve, 2, batched=batched, pool_share=share)
        with estimating():
            return box, torch.stack([box.argmax(scores, room=room) for scores in draws])

    exact = ((draws > 0) & (room > 0)[:, None]).float()
    box, z = run(0.5)
    pooled = box.counts["pooled"]
    assert 400 < pooled < 600
    assert box.counts["solved"] == 1000 - pooled
    # Two items have four sets: all of them are soon known, so few answers are other ones.
    wrong = (z != exact).any(-1)
    assert 0 < wrong.sum() < 50
    assert not wrong[0].any()  # nothing was known
    assert z[:, ::2].sum() == 0  # other rooms have other solutions
    assert torch.equal(run(0.5)[1], z)
    assert torch.equal(run(0.0)[1], exact)
    box.argmax(draws + 0.01, room=room)
    assert box.counts["pooled"] == pooled  # it was no training
    box, z = run(1.0)
    assert box.counts["solved"] == 4


def test_an_estimator_uses_stored_solutions_and_an_evaluation_does_not():
    solve = Counting()
    vae = nestruct.StructuredVAE(
        nestruct.models.mlp(3, 4),
        nestruct.models.mlp(4, 3),
        BlackBox(solve, 4, batched=False, backend="numpy", pool_share=1.0),
        divergence="none",
    )
    x = torch.rand(6, 3, generator=torch.Generator().manual_seed(0))
    estimator = nestruct.StructureNES(num_samples=4)
    reports = [estimator.backward(vae, x, seed=0, step=step) for step in range(2)]
    assert [int(report.num_solved) for report in reports] == [24, 0]
    assert [int(report.num_looked_up) for report in reports] == [0, 24]
    assert vae.structure.counts["pooled"] == 24
    vae.infer(x)
    vae.infer(x)
    assert solve.calls == 30


def test_a_plan_knows_no_solutions_and_leaves_none():
    box = BlackBox(Counting(), 4, batched=False)
    mlp = nestruct.models.mlp
    vae = nestruct.StructuredVAE(mlp(3, 4), mlp(4, 3), box, divergence="none")
    nes = nestruct.NES(sigma=0.1, population_size=4)
    report = nes.backward(vae, torch.rand(5, 3), seed=0)  # times vmap and a loop first
    assert (int(report.num_solved), int(report.num_looked_up)) == (20, 0)
    assert box.counts["solved"] > 20
