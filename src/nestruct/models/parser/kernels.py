"""Two kernels of a population of parsers: a step of an LSTM, and the scores of all arcs.

In float32 they are compiled loops on a CPU and Triton on CUDA; else plain torch, which is their
twin in tests. tanh(x) is ``2 h / (1 + h^2)`` on a CPU, with h = tanh(x / 2), and that the seventh
convergent of Lambert's continued fraction: within 1e-8 of the truth, before rounding.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from nestruct.kernels import jit, thread_pool
from nestruct.models.lstm import cell

MAX_GRID = 1 << 28  # numbers of the grid of pairs that are computed at once


def lstm_step(
    gates: Float[Tensor, "members items directions gates"],
    index: Int[Tensor, "directions batch"],
    added: Float[Tensor, "members directions batch gates"],
    state: Float[Tensor, "members directions batch hidden"],
    hidden: Float[Tensor, "members directions batch width"],
    places: Int[Tensor, "directions batch"],
    features: Float[Tensor, "members places directions width"],
) -> None:
    """One place of every sentence: changes ``state``, ``hidden`` and ``features`` in place.

    Args:
        gates: What each item adds to the gates.
        index: The item of each sentence.
        added: What the output of the place before adds.
        state: The cells.
        hidden: The output; a row may be wider than it.
        places: Where in ``features`` each sentence's output goes too.
        features: The outputs of all places.
    """
    tensors = (gates, index, added, state, hidden, places, features)
    if _is_plain(gates):
        arrays = [tensor.numpy() for tensor in tensors]
        _spread(_lstm_kernel, state.shape[0] * state.shape[1], *arrays)
    elif has_triton(gates):
        from nestruct.models.parser.kernels_cuda import lstm_step_cuda

        lstm_step_cuda(*tensors)
    else:
        lstm_step_plain(*tensors)


def lstm_step_plain(
    gates: Tensor,
    index: Tensor,
    added: Tensor,
    state: Tensor,
    hidden: Tensor,
    places: Tensor,
    features: Tensor,
) -> None:
    """The twin of the kernel."""
    direction = torch.arange(2, device=index.device)[:, None]
    output, inner = cell(gates[:, index, direction] + added, state)
    size = output.shape[-1]
    hidden[..., :size] = output
    state.copy_(inner)
    features[..., :size][:, places, direction] = output


def score_arcs(
    head: Float[Tensor, "members tokens batch hidden"],
    dependent: Float[Tensor, "members tokens batch hidden"],
    weight: Float[Tensor, "members hidden"],
    lengths: Int[Tensor, " batch"],
) -> Float[Tensor, "members batch tokens tokens"]:
    """``w . tanh(head + dependent)`` for every arc, heads x dependents; 0 where there is none.

    Args:
        head: What each place is as a head.
        dependent: What each place is as a dependent.
        weight: w of each member.
        lengths: Words of each sentence.
    """
    if has_triton(head):
        from nestruct.models.parser.kernels_cuda import score_arcs_cuda

        return score_arcs_cuda(head, dependent, weight, lengths)
    if not _is_plain(head):
        return score_arcs_plain(head, dependent, weight, lengths)
    members, tokens, examples, _ = head.shape
    scores = head.new_empty(members, examples, tokens, tokens)
    tensors = (head, dependent, weight, lengths, scores)
    arrays = [tensor.contiguous().numpy() for tensor in tensors]
    _spread(_arc_kernel, members * examples, *arrays)
    return scores


def score_arcs_plain(head: Tensor, dependent: Tensor, weight: Tensor, lengths: Tensor) -> Tensor:
    """The twin of the kernel; scores that do not count are arbitrary."""
    head, dependent = head.transpose(1, 2), dependent.transpose(1, 2)
    size = max(1, MAX_GRID // (head[0].numel() * head.shape[2]))
    blocks = zip(head.split(size), dependent.split(size), weight.split(size), strict=True)
    scores = []
    for h, d, w in blocks:
        grid = (h[:, :, :, None] + d[:, :, None]).tanh_()
        # One product per member: with broadcasting there would be one per head.
        scores.append((grid.flatten(1, 3) @ w[:, :, None]).view(grid.shape[:-1]))
    return torch.cat(scores)


def _is_plain(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype == torch.float32


def has_triton(tensor: Tensor) -> bool:
    """Whether the kernels are those of `nestruct.models.parser.kernels_cuda`."""
    return tensor.is_cuda and tensor.dtype == torch.float32


def _spread(kernel: Callable, rows: int, *arrays: np.ndarray) -> None:
    """Runs a kernel over rows on as many threads as torch uses."""
    threads = min(torch.get_num_threads(), rows)
    cuts = [rows * part // threads for part in range(threads + 1)]
    others = [
        thread_pool(threads - 1).submit(kernel, cuts[part], cuts[part + 1], *arrays)
        for part in range(1, threads)
    ]
    kernel(cuts[0], cuts[1], *arrays)
    for other in others:
        other.result()


_LIMIT, _HALF, _TWO = np.float32(10), np.float32(0.5), np.float32(2)
_A0, _A1, _A2 = np.float32(135135), np.float32(17325), np.float32(378)
_B1, _B2, _B3 = np.float32(62370), np.float32(3150), np.float32(28)


@partial(jit, fastmath=True)
def _tanh(x):
    y = _HALF * min(max(x, -_LIMIT), _LIMIT)
    s = y * y
    a = y * (_A0 + s * (_A1 + s * (_A2 + s)))
    b = _A0 + s * (_B1 + s * (_B2 + s * _B3))
    return _TWO * a * b / (a * a + b * b)


@partial(jit, fastmath=True)
def _lstm_kernel(first, last, gates, index, added, state, hidden, places, features):
    """Rows are (member, direction). Loops with few arrays each, so that they become vectors."""
    examples, size = state.shape[2], state.shape[3]
    now = np.empty(4 * size, np.float32)
    # sigmoid(x) = (1 + tanh(x / 2)) / 2
    scale = np.full(4 * size, _HALF)
    scale[2 * size : 3 * size] = _TWO * _HALF
    shift = np.full(4 * size, _HALF)
    shift[2 * size : 3 * size] = 0
    for row in range(first, last):
        member, direction = row // 2, row % 2
        for example in range(examples):
            item = gates[member, index[direction, example], direction]
            more = added[member, direction, example]
            for k in range(4 * size):
                now[k] = item[k] + more[k]
            for k in range(4 * size):  # as if all were sigmoids
                now[k] *= scale[k]
                now[k] = shift[k] + scale[k] * _tanh(now[k])
            inner = state[member, direction, example]
            for k in range(size):
                inner[k] = now[size + k] * inner[k] + now[k] * now[2 * size + k]
            out = hidden[member, direction, example]
            for k in range(size):
                out[k] = now[3 * size + k] * _tanh(inner[k])
            copy = features[member, places[direction, example], direction]
            for k in range(size):
                copy[k] = out[k]


@partial(jit, fastmath=True)
def _arc_kernel(first, last, head, dependent, weight, lengths, scores):
    """Rows are (member, sentence)."""
    tokens, examples, size = head.shape[1], head.shape[2], head.shape[3]
    for row in range(first, last):
        member, example = row // examples, row % examples
        w = weight[member]
        here = scores[member, example]
        length = lengths[example]
        for h in range(tokens):
            for d in range(tokens):
                here[h, d] = 0
        for d in range(1, length + 1):
            below = dependent[member, d, example]
            for h in range(length + 1):
                if h == d:
                    continue
                above = head[member, h, example]
                total = np.float32(0)
                for k in range(size):
                    total += w[k] * _tanh(above[k] + below[k])
                here[h, d] = total
