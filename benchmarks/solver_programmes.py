"""The dynamic programmes of `solvers.py`, and what they are timed beside.

Both argmax, and marginals with the gradient of a loss of theirs. SuPar's chain has one table of
transitions for all positions and all instances, so scores of chains are made of such a table and of
scores of states; its marginals are then those of states, a smaller job than ours, of pairs.
"""

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module

import torch
from solver_peers import (
    CHECKED,
    Problem,
    Solver,
    Task,
    expected,
    our_marginals,
    ours,
    through_marginals,
)
from torch import Tensor

import nestruct


def dynamic_programmes() -> list[Problem]:
    """Argmax is to be 20 times as fast as the best peer, marginals five times; on a GPU both five.

    Exponentials are one per edge and pass over the recurrence: up, and for the gradient up again.
    """
    problems = []
    for states in (8, 32):
        chain = nestruct.LinearChain(states)
        peers = {"supar": supar_chain, "torch-struct": torch_struct_chain}
        problems += both(f"linear chain, K={states}", chain, peers, folded)
    for states in (8, 32):
        segments = nestruct.SemiMarkov(states, 8)
        peers = {"torch-struct": torch_struct_segments} if states == 8 else {}
        problems += both(f"semi-Markov, L=8, K={states}", segments, peers)
    problems += both("alignment", nestruct.Alignment(), {"plain": diagonals})
    return problems + both("constituency tree", nestruct.ConstituencyTree(), {"supar": supar_spans})


def both(
    name: str,
    structure: nestruct.structures.DynamicProgramme,
    peers: Mapping[str, Callable[..., Task]],
    scores_of: Callable[[Tensor], Tensor] = Tensor.clone,
) -> list[Problem]:
    def sizes(n: int) -> tuple[int, ...]:
        return (n,) * len(structure.context_names)

    def edges(n: int) -> float:
        return len(structure.recurrence(*sizes(n)).edges.first)

    def shape(n: int) -> tuple[int, ...]:
        return structure.shape(*sizes(n))

    argmax, sums = [ours(lambda n: structure)], [our_marginals(lambda n: structure)]
    for peer, task in peers.items():
        argmax += [Solver(peer, partial(task, True), any_batch=True, on_gpu=True)]
        sums += [Solver(peer, partial(task, False), any_batch=True, on_gpu=True)]
    more = f"{name}: marginals, forward and backward"
    return [
        Problem(name, shape, argmax, {}, 20, scores_of, steps=edges),
        # Scores in, marginals out; scores and slopes in, the gradient out.
        Problem(more, shape, sums, {}, 5, scores_of, exponentials=lambda n: 2 * edges(n), passes=5),
    ]


def transitions(like: Tensor) -> Tensor:
    states = like.shape[-1]
    generator = torch.Generator().manual_seed(states)
    return torch.randn(states, states, generator=generator).to(like.device)


def folded(scores: Tensor) -> Tensor:
    """Scores of pairs that are made of scores of states, taken from the ones given."""
    states = torch.cat([scores[:, :1, :, 0], scores[:, :, 0]], 1)
    return nestruct.LinearChain.pair_scores(states, transitions(scores))


def supar_chain(argmax: bool, scores: Tensor, n: int) -> Task:
    crf = import_module("supar.structs").LinearChainCRF
    pairs = transitions(scores)
    later = scores[:, :, 0] - pairs[0]  # the first of them with the score of state 0 before it
    first = scores[:, 0, :, 0] - pairs[:, 0] - later[:, 0, :1]
    given = torch.cat([first[:, None], later], 1)
    states = scores.shape[-1]
    table = scores.new_zeros(states + 1, states + 1)  # with a start and an end
    table[:-1, :-1] = pairs

    def of_path(path: Tensor) -> Tensor:
        rows = path[:CHECKED]
        own = given[:CHECKED].gather(-1, rows[..., None]).flatten(1).sum(1)
        return own + pairs[rows[:, :-1], rows[:, 1:]].sum(1)

    def of_marginals(found: Tensor) -> Tensor:
        moves = []
        for row in given[:CHECKED]:  # transitions are shared, so instance by instance
            inner = table.clone().requires_grad_()
            value = crf(row[None].clone(), inner).log_partition
            counts = torch.autograd.grad(value.sum(), inner)[0]
            moves.append((counts * table).sum())
        return expected(given)(found) + torch.stack(moves)

    if argmax:
        return lambda: crf(given.detach(), table).argmax, of_path
    return through_marginals(given, lambda s: crf(s, table).marginals), of_marginals


def torch_struct_chain(argmax: bool, scores: Tensor, n: int) -> Task:
    chain = import_module("torch_struct").LinearChainCRF
    given = scores.mT.contiguous()  # next state x state
    return torch_struct(chain, given, torch.full((len(scores),), n), argmax)


def torch_struct_segments(argmax: bool, scores: Tensor, n: int) -> Task:
    """Its part is (first, length, next state, state); the state after the last segment is free."""
    crf = import_module("torch_struct").SemiMarkovCRF
    longest, states = scores.shape[-2:]
    given = scores.new_full((len(scores), n, longest + 1, states, states), -1e9)
    for length in range(1, longest + 1):
        own = scores[:, length - 1 :, length - 1]
        given[:, : n - length + 1, length] = own[:, :, None]
    return torch_struct(crf, given, torch.full((len(scores),), n + 1), argmax)


def torch_struct(crf: Callable, given: Tensor, lengths: Tensor, argmax: bool) -> Task:
    warnings.filterwarnings("ignore", module="torch_struct")  # it states no constraints
    lengths = lengths.to(given.device)
    if argmax:
        return lambda: crf(given.detach(), lengths=lengths).argmax, expected(given)
    return through_marginals(given, lambda s: crf(s, lengths=lengths).marginals), expected(given)


def diagonals(argmax: bool, scores: Tensor, n: int) -> Task:
    """Dynamic time warping in plain torch: all cells of a diagonal, of all instances, at once."""
    row = torch.arange(n, device=scores.device)

    def total(inner: Tensor) -> Tensor:
        nothing = inner.new_full((len(inner), 1), -1e9)
        last, before = inner.new_full((2, len(inner), n), -1e9).unbind()
        for diagonal in range(2 * n - 1):
            column = diagonal - row
            there = (column >= 0) & (column < n)
            own = torch.where(there, inner[:, row, column.clamp(0, n - 1)], -1e9)
            shifted = [torch.cat([nothing, each[:, :-1]], 1) for each in (before, last)]
            ways = torch.stack([*shifted, last])
            ways = ways.amax(0) if argmax else ways.logsumexp(0)
            ways = torch.where(row == 0, 0.0, ways) if diagonal == 0 else ways
            before, last = last, own + ways
        return last[:, -1]

    def slope(inner: Tensor) -> Tensor:
        return torch.autograd.grad(total(inner).sum(), inner, create_graph=not argmax)[0]

    if argmax:
        return lambda: slope(scores.detach().requires_grad_()), expected(scores)
    return through_marginals(scores, slope), expected(scores)


def supar_spans(argmax: bool, scores: Tensor, n: int) -> Task:
    tree = import_module("supar.structs").ConstituencyCRF
    # Its spans are between words: the n words of ours are n + 1 places of its.
    given = torch.nn.functional.pad(scores, (1, 0, 0, 1))
    lengths = torch.full((len(scores),), n, device=scores.device)
    if argmax:
        return lambda: tree(given.detach(), lengths).argmax, lambda found: brackets(found, given)
    return through_marginals(given, lambda s: tree(s, lengths).marginals), expected(given)


def brackets(spans: list, given: Tensor) -> Tensor:
    rows = zip(spans[:CHECKED], given, strict=False)
    return torch.stack([sum(row[i, j] for i, j, *_ in found) for found, row in rows])
