"""Edmonds' algorithm on CUDA: a sentence is one warp, which grows one path at a time.

The same steps as `nestruct.structures.solvers.edmonds.edmonds_kernel`. What that keeps in small
arrays are vectors in registers here, a number of which is read by a sum over the lanes.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from nestruct.structures.rows import NO_MEMBER, OK
from nestruct.structures.solvers.lanes_cuda import pick

OPEN = tl.constexpr(0)
ON_PATH = tl.constexpr(1)
DONE = tl.constexpr(2)


@triton.jit
def _edmonds_kernel(
    weight,  # [row, node, source], see the CPU's kernel; contracted nodes are overwritten
    target,
    lengths,
    heads,
    solved,
    size,
    SINGLE_ROOT: tl.constexpr,  # noqa: N803
    LANES: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64)
    weight += row * size * size
    target += row * size * size
    length = tl.load(lengths + row).to(tl.int32)
    lane = tl.arange(0, LANES)
    wide = tl.arange(0, 2 * LANES)  # labels: words, then cycles in the order of their closing
    inside = lane <= length
    node_of = lane
    label = lane
    state = tl.where(lane == 0, DONE, OPEN)
    path = tl.zeros((LANES,), tl.int32)
    gain = tl.zeros((LANES,), tl.float64)
    parent = tl.full((2 * LANES,), -1, tl.int32)
    arc_source = tl.zeros((2 * LANES,), tl.int32)
    arc_target = tl.zeros((2 * LANES,), tl.int32)
    num_labels = length + 1
    stuck = 0
    start = length * 0 + 1
    depth = length * 0
    while start <= length:
        if depth == 0:
            node = pick(node_of, lane, start)
            if pick(state, lane, node) == DONE:
                start += 1
            else:
                path = tl.where(lane == 0, node, path)
                state = tl.where(lane == node, ON_PATH, state)
                depth = depth + 1
        else:
            node = pick(path, lane, depth - 1)
            values = tl.load(weight + node * size + lane, mask=inside, other=float("-inf"))
            targets = tl.load(target + node * size + lane, mask=inside, other=0)
            words = tl.where(lane >= SINGLE_ROOT, values, float("-inf"))
            best = tl.max(words, 0)
            source = tl.min(tl.where(words == best, lane, LANES), 0)
            if SINGLE_ROOT:
                last_resort = best == float("-inf")
                source = tl.where(last_resort, 0, source)
                best = tl.where(last_resort, pick(values, lane, 0), best)
            if best == float("-inf"):
                stuck = 1
                start = length + 1
            else:
                mine = pick(label, lane, node)
                arc_source = tl.where(wide == mine, source, arc_source)
                arc_target = tl.where(wide == mine, pick(targets, lane, source), arc_target)
                gain = tl.where(lane == node, best, gain)
                head = pick(node_of, lane, source)
                found = pick(state, lane, head)
                if found == DONE:
                    state = tl.where(state == ON_PATH, DONE, state)
                    depth = depth * 0
                    start += 1
                elif found == OPEN:
                    state = tl.where(lane == head, ON_PATH, state)
                    path = tl.where(lane == depth, head, path)
                    depth += 1
                else:
                    # A cycle: the path from head to its end. It becomes one node, in head's row.
                    merged = tl.load(weight + head * size + lane, mask=inside, other=float("-inf"))
                    merged -= pick(gain, lane, head)
                    enters = tl.load(target + head * size + lane, mask=inside, other=0)
                    absorbed = node_of == head
                    parent = tl.where(wide == pick(label, lane, head), num_labels, parent)
                    depth -= 1
                    member = pick(path, lane, depth)
                    while member != head:
                        absorbed = absorbed | (node_of == member)
                        parent = tl.where(wide == pick(label, lane, member), num_labels, parent)
                        own = tl.load(
                            weight + member * size + lane, mask=inside, other=float("-inf")
                        )
                        own -= pick(gain, lane, member)
                        theirs = tl.load(target + member * size + lane, mask=inside, other=0)
                        enters = tl.where(own > merged, theirs, enters)
                        merged = tl.maximum(own, merged)
                        depth -= 1
                        member = pick(path, lane, depth)
                    depth += 1
                    merged = tl.where(absorbed, float("-inf"), merged)
                    node_of = tl.where(absorbed, head, node_of)
                    tl.store(weight + head * size + lane, merged, mask=inside)
                    tl.store(target + head * size + lane, enters, mask=inside)
                    tl.debug_barrier()
                    label = tl.where(lane == head, num_labels, label)
                    num_labels += 1

    # Opens the cycles, newest first: the member that a cycle's arc enters takes it.
    cycle = num_labels - 1
    while cycle > length:
        if stuck == 0:
            member = pick(arc_target, wide, cycle)
            around = pick(parent, wide, member)
            while around != cycle:
                member = around
                around = pick(parent, wide, member)
            source = pick(arc_source, wide, cycle)
            enters = pick(arc_target, wide, cycle)
            arc_source = tl.where(wide == member, source, arc_source)
            arc_target = tl.where(wide == member, enters, arc_target)
        cycle -= 1
    is_word = (wide > 0) & (wide <= length)
    tl.store(heads + row * size + wide, arc_source.to(tl.int64), mask=is_word)
    roots = tl.sum((is_word & (arc_source == 0)).to(tl.int32), 0)
    if SINGLE_ROOT:
        stuck = tl.where(roots > 1, 1, stuck)
    tl.store(solved + row, 1 - stuck)


def edmonds_cuda(weight: Tensor, lengths: Tensor, single_root: int) -> tuple[Tensor, Tensor]:
    """The head of each word (0 for the root and padding), and a code for each row.

    Args:
        weight: Incoming arcs ``[row, word, source]``, double; overwritten.
        lengths: Words of each row.
        single_root: Whether exactly one word hangs from the root.
    """
    count, size = weight.shape[:2]
    node = torch.arange(size, device=weight.device, dtype=torch.int32)
    target = node[:, None].expand(count, size, size).contiguous()
    heads = torch.zeros(count, size, dtype=torch.long, device=weight.device)
    solved = torch.empty(count, dtype=torch.int32, device=weight.device)
    with torch.cuda.device_of(weight):
        _edmonds_kernel[(count,)](
            weight,
            target,
            lengths,
            heads,
            solved,
            size,
            SINGLE_ROOT=single_root,
            LANES=triton.next_power_of_2(size),
            num_warps=1,
        )
    return heads, torch.where(solved == 1, OK, NO_MEMBER)
