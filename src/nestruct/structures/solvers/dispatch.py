"""One op in front of all solvers: flat rows in, 0/1 out, legal inside vmap.

``nestruct::solve`` takes scores with any leading axes. Its vmap rule moves the mapped axis to the
front and calls the op again, so nested and chunked vmaps end in one flat call; there a row without
an answer is NaN, never an error.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple, Optional

import numpy as np
import torch
from torch import Tensor

from nestruct.structures.rows import OK, may_raise, raise_bad_rows
from nestruct.structures.solvers.best_derivation import derivation_batched, derivation_kernel
from nestruct.structures.solvers.clock import count_solved, timed
from nestruct.structures.solvers.edmonds import edmonds_batched, edmonds_kernel
from nestruct.structures.solvers.eisner import eisner_batched, eisner_kernel
from nestruct.structures.solvers.jonker_volgenant import (
    jonker_volgenant_batched,
    jonker_volgenant_kernel,
)
from nestruct.structures.solvers.monotone_path import (
    monotone_path_batched,
    monotone_path_kernel,
)
from nestruct.structures.solvers.prim import prim_batched, prim_kernel
from nestruct.structures.solvers.run import run_rows
from nestruct.structures.solvers.shortest_path import (
    shortest_path_batched,
    shortest_path_kernel,
)
from nestruct.structures.solvers.top_k import top_k_batched


class Solver(NamedTuple):
    """One algorithm in its two forms; without a kernel the batched one serves the CPU too."""

    part_axes: int  # trailing axes of one instance
    kernel: Callable | None  # for the CPU
    batched: Callable[[Tensor, Tensor | None, int], tuple[Tensor, Tensor]]


SOLVERS = {
    "top_k": Solver(1, None, top_k_batched),
    "prim": Solver(1, prim_kernel, prim_batched),
    "eisner": Solver(2, eisner_kernel, eisner_batched),
    "edmonds": Solver(2, edmonds_kernel, edmonds_batched),
    "jonker_volgenant": Solver(2, jonker_volgenant_kernel, jonker_volgenant_batched),
    "monotone_path": Solver(1, monotone_path_kernel, monotone_path_batched),
    "shortest_path": Solver(1, shortest_path_kernel, shortest_path_batched),
    "derivation": Solver(1, derivation_kernel, derivation_batched),
}


def solve(scores: Tensor, lengths: Tensor | None, solver: str, option: int, owner: str) -> Tensor:
    """The best member for each row of ``scores``: 0/1, same shape and dtype, not differentiable.

    Args:
        scores: Any leading axes, then the parts of one instance.
        lengths: Words per instance, broadcastable to the leading axes; None means full. For paths
            ``start * cells + goal``; for a recurrence its goals.
        solver: A key of ``SOLVERS``.
        option: What that solver takes besides scores: k, the number of nodes, whether the root is
            single, the code of a grid, or the number of a recurrence.
        owner: Whose call this is, for error messages.
    """
    return _solve(scores.detach(), lengths, solver, option, owner, True)


# Optional rather than `| None`: the schema of a custom op is read from these annotations.
@torch.library.custom_op("nestruct::solve", mutates_args=())
def _solve(
    scores: Tensor,
    lengths: Optional[Tensor],  # noqa: UP045
    solver: str,
    option: int,
    owner: str,
    strict: bool,
) -> Tensor:
    entry = SOLVERS[solver]
    lead, parts = scores.shape[: -entry.part_axes], scores.shape[-entry.part_axes :]
    rows = scores.reshape(math.prod(lead), *parts)
    if lengths is not None:
        lengths = lengths.expand(lead).reshape(-1)
    if rows.shape[0] == 0:
        return torch.empty(scores.shape, dtype=scores.dtype, device=scores.device)
    count_solved(len(rows))
    on_cpu = rows.device.type == "cpu"
    with timed() if on_cpu else nullcontext():
        if on_cpu and entry.kernel:
            z, codes = _solve_on_cpu(entry.kernel, rows, lengths, option)
        else:
            z, codes = entry.batched(rows, lengths, option)
            z = torch.where((codes == OK).view(-1, *[1] * len(parts)), z, torch.nan)
    if strict and may_raise(rows):
        raise_bad_rows(codes.view(lead), owner)
    return z.view(scores.shape)


@_solve.register_fake
def _(scores, lengths, solver, option, owner, strict):
    return torch.empty(scores.shape, dtype=scores.dtype, device=scores.device)


@_solve.register_vmap
def _(info, in_dims, scores, lengths, solver, option, owner, strict):
    scores_dim, lengths_dim = in_dims[:2]
    if scores_dim is None:
        scores = scores.expand(info.batch_size, *scores.shape)
    else:
        scores = scores.movedim(scores_dim, 0)
    if lengths_dim is not None:
        lengths = lengths.movedim(lengths_dim, 0)
    return _solve(scores, lengths, solver, option, owner, False), 0


def _solve_on_cpu(
    kernel, rows: Tensor, lengths: Tensor | None, option: int
) -> tuple[Tensor, Tensor]:
    rows = rows.contiguous()
    count = rows.shape[0]
    if lengths is None:
        lengths = torch.full((count,), rows.shape[-1] - 1)
    z, codes = torch.empty_like(rows), np.empty(count, np.int64)
    run_rows(
        kernel, rows.numpy(), lengths.cpu().long().contiguous().numpy(), option, z.numpy(), codes
    )
    if codes.any():
        z[torch.from_numpy(codes != OK)] = torch.nan
    return z, torch.from_numpy(codes)
