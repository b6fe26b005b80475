"""Best non-projective dependency tree (maximum arborescence): Edmonds' algorithm in O(n^2).

J. Edmonds, "Optimum branchings", 1967; R. E. Tarjan, "Finding optimum branchings", 1977; growing
one path at a time: H. Gabow et al., 1986. From a word without a head yet, follow best incoming arcs
backwards. Reaching the root or a word that hangs below it ends the path; reaching the path itself
closes a cycle, which becomes one node whose incoming arcs are worth what they gain over the cycle's
own arcs. Afterwards the cycles are opened again, newest first.

A single root exactly, without large constants (which cost precision): the tree must first have few
root arcs and then a high score. In that order of merit every arc between words beats every arc from
the root, and contracting keeps it so, because a cycle holds arcs between words only. So a node
takes the root's arc only when no other arc is left. (M. Stanojevic and S. Cohen, "A root of a
problem", 2021, reach the same by reweighting.)
"""

import numpy as np
import torch
from torch import Tensor

from nestruct.kernels import jit
from nestruct.structures.rows import BAD_LENGTH, NO_MEMBER, NOT_FINITE, OK

OPEN, ON_PATH, DONE = 0, 1, 2


@jit
def edmonds_kernel(rows, lengths, single_root, z, codes):
    """CPU kernel: ``rows [count, n+1, n+1]`` to 0/1 ``z``, one code per row."""
    count, size = rows.shape[0], rows.shape[1]
    # [node, source]: what the best arc from a source word into a node is worth.
    weight = np.empty((size, size))
    target = np.empty((size, size), np.int32)  # and the word of the node that it enters
    node_of = np.empty(size, np.int64)  # word -> the row of `weight` it is contracted into
    state = np.empty(size, np.int64)
    label = np.empty(size, np.int64)  # row of `weight` -> its label in the tree of contractions
    parent = np.empty(2 * size, np.int64)  # that tree: label -> label of the cycle around it
    arc_source = np.empty(2 * size, np.int64)  # label -> its chosen incoming arc
    arc_target = np.empty(2 * size, np.int64)
    gain = np.empty(size)
    path = np.empty(size, np.int64)
    in_cycle = np.zeros(size, np.bool_)
    for row in range(count):
        length = lengths[row]
        codes[row] = _load(rows[row], length, weight, target, z[row])
        if codes[row] != OK:
            continue
        for word in range(length + 1):
            node_of[word] = word
            label[word] = word
            state[word] = OPEN
            parent[word] = -1
        state[0] = DONE
        num_labels = length + 1
        for start in range(1, length + 1):
            if codes[row] != OK or state[node_of[start]] == DONE:
                continue
            depth = 1
            path[0] = node_of[start]
            state[path[0]] = ON_PATH
            while True:
                node = path[depth - 1]
                source, best = -1, -np.inf
                values = weight[node]
                for word in range(1 if single_root else 0, length + 1):
                    if values[word] > best:
                        source, best = word, values[word]
                if source < 0 and values[0] > -np.inf:  # only reached with a single root
                    source, best = 0, values[0]
                if source < 0:
                    codes[row] = NO_MEMBER
                    break
                arc_source[label[node]] = source
                arc_target[label[node]] = target[node, source]
                gain[node] = best
                head = node_of[source]
                if state[head] == DONE:
                    for place in range(depth):
                        state[path[place]] = DONE
                    break
                if state[head] == OPEN:
                    state[head] = ON_PATH
                    path[depth] = head
                    depth += 1
                    continue
                # A cycle: the path from head to its end. It becomes one node, kept in head's row.
                for word in range(length + 1):
                    weight[head, word] -= gain[head]
                in_cycle[head] = True
                parent[label[head]] = num_labels
                depth -= 1
                while path[depth] != head:
                    member = path[depth]
                    in_cycle[member] = True
                    parent[label[member]] = num_labels
                    loss = gain[member]
                    for word in range(length + 1):
                        value = weight[member, word] - loss
                        if value > weight[head, word]:
                            weight[head, word] = value
                            target[head, word] = target[member, word]
                    depth -= 1
                depth += 1
                for word in range(1, length + 1):
                    if in_cycle[node_of[word]]:
                        weight[head, word] = -np.inf
                        node_of[word] = head
                in_cycle[: length + 1] = False
                label[head] = num_labels
                parent[num_labels] = -1
                num_labels += 1
        if codes[row] == OK:
            codes[row] = _open_cycles(
                length, num_labels, parent, arc_source, arc_target, single_root, z[row]
            )


@jit
def _load(source, length, weight, target, z):
    """Turns heads x dependents into incoming arcs per word; forbidden arcs are -inf."""
    size = source.shape[0]
    for h in range(size):
        for m in range(size):
            z[h, m] = 0
    if length < 0 or length >= size:
        return BAD_LENGTH
    for h in range(length + 1):
        for m in range(1, length + 1):
            value = source[h, m]
            if h == m:
                value = -np.inf
            elif not value < np.inf:
                return NOT_FINITE
            weight[m, h] = value
            target[m, h] = m
    return OK


@jit
def _open_cycles(length, num_labels, parent, arc_source, arc_target, single_root, z):
    """Hands each cycle's arc to the member it enters, newest cycle first; marks the arcs."""
    for cycle in range(num_labels - 1, length, -1):
        member = arc_target[cycle]
        while parent[member] != cycle:
            member = parent[member]
        arc_source[member] = arc_source[cycle]
        arc_target[member] = arc_target[cycle]
    roots = 0
    for word in range(1, length + 1):
        z[arc_source[word], word] = 1
        roots += arc_source[word] == 0
    return NO_MEMBER if single_root and roots > 1 else OK


def edmonds_batched(
    rows: Tensor, lengths: Tensor | None, single_root: int
) -> tuple[Tensor, Tensor]:
    """Every device; on CUDA by a kernel, else by `contract_all`."""
    count, size = rows.shape[0], rows.shape[1]
    node = torch.arange(size, device=rows.device)
    if lengths is None:
        lengths = torch.full((count,), size - 1, device=rows.device)
    bad_length = (lengths < 0) | (lengths >= size)
    lengths = lengths.clamp(0, size - 1)
    real = node <= lengths[:, None]
    words = real & (node > 0)
    counts = words[:, :, None] & real[:, None, :] & (node[:, None] != node)
    # As in the kernel: incoming arcs per node, from words; and the word that each enters.
    weight = torch.where(counts, rows.mT.double(), -torch.inf)
    not_finite = ~(weight < torch.inf).flatten(1).all(1)
    weight = torch.where(not_finite[:, None, None] & counts, 0.0, weight)
    if rows.is_cuda:
        from nestruct.structures.solvers.edmonds_cuda import edmonds_cuda

        heads, codes = edmonds_cuda(weight.contiguous(), lengths, single_root)
    else:
        heads, codes = contract_all(weight, words, single_root)
    z = torch.zeros_like(rows).scatter_(1, heads[:, None, :], 1.0) * words[:, None, :]
    codes = torch.where(not_finite, NOT_FINITE, codes)
    return z, torch.where(bad_length, BAD_LENGTH, codes)


def contract_all(weight: Tensor, words: Tensor, single_root: int) -> tuple[Tensor, Tensor]:
    """In each round all nodes choose their best arc and all cycles are contracted.

    A sentence needs as many rounds as its cycles are nested; only sentences that have a cycle left
    go into the next round, which is read on the host.

    Args:
        weight: Incoming arcs ``[row, word, source]``.
        words: Which nodes are words ``[row, node]``.
        single_root: Whether exactly one word hangs from the root.

    Returns:
        The head of each word (that of others is arbitrary), and a code for each row.
    """
    count, size = words.shape
    node = torch.arange(size, device=weight.device)
    target = node[:, None].expand(count, size, size)
    node_of = node.expand(count, size)
    no_member = torch.zeros(count, dtype=torch.bool, device=weight.device)
    left = torch.arange(count, device=weight.device)  # rows in this round
    some, rounds = words, []  # their words; and of each round where its rows are in the one before
    again = left
    for _ in range(size - 1):
        best, source = weight[:, :, single_root:].max(-1)
        source = source + single_root
        if single_root:
            last_resort = best == -torch.inf
            source = torch.where(last_resort, 0, source)
            best = torch.where(last_resort, weight[:, :, 0], best)
        choosing = some & (node_of == node)
        stuck = choosing & (best == -torch.inf)
        no_member[left] |= stuck.any(1)
        enters = target.gather(2, source[:, :, None])[:, :, 0]
        rounds.append((again, node_of, source, enters))
        head = torch.where(choosing & ~stuck, node_of.gather(1, source), 0)
        # After size steps from anywhere one is at the root or on a cycle, and every node of a cycle
        # is reached from somewhere. Its name becomes the cycle's smallest node.
        ahead, smallest = head, node.expand(len(left), size)
        for _ in range(size.bit_length()):
            smallest = torch.minimum(smallest, smallest.gather(1, ahead))
            ahead = ahead.gather(1, ahead)
        in_cycle = torch.zeros_like(some).scatter_(1, ahead, True) & some
        again = in_cycle.any(1).nonzero()[:, 0]
        if len(again) == 0:
            break
        left, some, weight, target = left[again], some[again], weight[again], target[again]
        node_of, best = node_of[again], best[again]
        smallest, in_cycle = smallest[again], in_cycle[again]
        name = torch.where(in_cycle, smallest, node)[:, :, None].expand(weight.shape)
        weight = torch.where(in_cycle[:, :, None], weight - best[:, :, None], weight)
        merged = torch.full_like(weight, -torch.inf).scatter_reduce_(1, name, weight, "amax")
        winner = torch.where(weight == merged.gather(1, name), node[:, None], 0)
        winner = torch.zeros_like(winner).scatter_reduce_(1, name, winner, "amax")
        target = target.gather(1, winner)
        node_of = name[:, :, 0].gather(1, node_of)
        weight = torch.where(node_of[:, None, :] == node[:, None], -torch.inf, merged)

    # Opens the cycles, newest first: the member that an arc enters takes it, others keep theirs.
    again, later, source, enters = rounds.pop() if rounds else (left, node_of, node_of, node_of)
    while rounds:
        before, earlier, own_source, own_enters = rounds.pop()
        source, enters = source.gather(1, later), enters.gather(1, later)
        entered = earlier[again].gather(1, enters) == node
        source = torch.where(entered, source, own_source[again])
        enters = torch.where(entered, enters, own_enters[again])
        source = own_source.index_copy(0, again, source)
        enters = own_enters.index_copy(0, again, enters)
        again, later = before, earlier
    if single_root:
        no_member = no_member | ((source == 0) & words).sum(1).gt(1)
    return source, torch.where(no_member, NO_MEMBER, OK)


def edmonds_plain(scores: np.ndarray, length: int, single_root: bool) -> np.ndarray:
    """The twin: contract a cycle of best heads, solve the smaller problem, open it.

    With a single root, every word is tried as its child. Raises `ValueError` when there is no tree.
    """
    size = length + 1
    arcs = {(h, m): float(scores[h, m]) for h in range(size) for m in range(1, size) if h != m}
    arcs = {arc: score for arc, score in arcs.items() if score > -np.inf}
    trees = []
    for root in range(1, size) if single_root and length else [None]:
        allowed = {(h, m): s for (h, m), s in arcs.items() if root is None or h > 0 or m == root}
        try:
            trees.append(_best_heads(set(range(1, size)), allowed))
        except ValueError:
            continue
    best = max(trees, key=lambda heads: sum(arcs[h, m] for m, h in heads.items()))
    z = np.zeros_like(scores)
    for m, h in best.items():
        z[h, m] = 1
    return z


def _best_heads(words: set, arcs: dict) -> dict:
    """``{word: head}`` of the best arborescence below node 0."""
    incoming = {m: {h: score for (h, d), score in arcs.items() if d == m} for m in words}
    heads = {m: max(options, key=options.__getitem__) for m, options in incoming.items()}
    cycle = _find_cycle(heads)
    if not cycle:
        return heads
    merged = ("cycle", *cycle)
    entering: dict = {}  # arc of the smaller problem -> the arc it stands for
    smaller: dict = {}
    for (h, m), score in arcs.items():
        if h in cycle and m in cycle:
            continue
        arc = (merged if h in cycle else h, merged if m in cycle else m)
        value = score - arcs[heads[m], m] if m in cycle else score
        if arc not in smaller or value > smaller[arc]:
            smaller[arc], entering[arc] = value, (h, m)
    solved = _best_heads((words - set(cycle)) | {merged}, smaller)
    opened = {m: heads[m] for m in cycle}
    for m, h in solved.items():
        source, dependent = entering[h, m]
        opened[dependent] = source
    return opened


def _find_cycle(heads: dict) -> list:
    for word in heads:
        walk: list = []
        while word in heads and word not in walk:
            walk.append(word)
            word = heads[word]
        if word in walk:
            return walk[walk.index(word) :]
    return []
