"""Table 1's kernels on one GPU: right, how long each stage of a step takes, and which blocks win.

    python benchmarks/relational_kernels.py [--stages] [--tune] [--steps] [--json FILE]

First each kernel against its plain twin, at several shapes. Then what is asked for: the stages of a
step of NES with its floors, arithmetic at the rate of one large product, memory at the rate of one
large copy, both measured in the same run; ``--tune`` times other cuts of the kernels, ``--steps``
whole steps as training takes them (captured), with StructureNES for comparison.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import relational_step as whole
import torch
import triton

import nestruct
from nestruct.members import Population
from nestruct.models import RelationalVAE
from nestruct.models.relational import pair_blocks, tree_moves
from nestruct.models.relational import pair_blocks_cuda as pair_kernels
from nestruct.models.relational import tree_moves_cuda as move_kernels
from nestruct.models.relational.pair_scores import pair_scores, pair_scores_op
from nestruct.models.relational.roll_out import roll_out, roll_out_op
from nestruct.population import Layout
from nestruct.population.directions import fill_directions
from nestruct.training.run.environment import describe_environment

NODES, TIMES, HIDDEN, PAIRS = whole.NODES, whole.TIMES, whole.HIDDEN, whole.PAIRS
SIZE = HIDDEN**2
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # there the interpreter, to try it
# Members, examples of each, steps of a roll-out.
CASES = {
    "the paper's step": (600, 128, 3),
    "600 members, 32 examples each, one step": (600, 32, 1),
    "600 members, 8 examples each, one step": (600, 8, 1),
    "2,400 members, 2 examples each, one step": (2400, 2, 1),
}
Blocks = move_kernels.Blocks
CUTS = {
    "messages": [
        Blocks(64, 128, 64, 4, 1),
        Blocks(64, 128, 64, 4, 1, 168),
        Blocks(64, 128, 32, 4, 1, 168),
        Blocks(64, 128, 64, 4, 2),
        Blocks(128, 128, 64, 8, 1),
        Blocks(64, 64, 64, 4, 1),
        Blocks(64, 64, 64, 4, 1, 128),
    ],
    "moves": [
        Blocks(64, 256, 32, 4, 2),
        Blocks(64, 256, 64, 4, 1),
        Blocks(64, 256, 64, 4, 2),
        Blocks(128, 256, 32, 8, 2),
        Blocks(128, 256, 64, 8, 1),
        Blocks(128, 256, 64, 8, 2),
        Blocks(128, 256, 32, 8, 3),
        Blocks(128, 256, 128, 8, 1),
    ],
    "first block": [
        Blocks(64, 128, 64, 4, 1),
        Blocks(64, 128, 32, 4, 1),
        Blocks(64, 128, 64, 4, 2),
        Blocks(128, 128, 64, 8, 1),
        Blocks(64, 64, 64, 4, 1),
        Blocks(64, 256, 64, 8, 1),
    ],
    "second block": [
        Blocks(64, 256, 32, 4, 1),
        Blocks(64, 256, 32, 4, 2),
        Blocks(64, 256, 64, 4, 1),
        Blocks(128, 256, 32, 8, 1),
        Blocks(128, 256, 32, 8, 2),
        Blocks(128, 256, 64, 8, 1),
        Blocks(128, 256, 64, 8, 2),
    ],
}
PLACES = {
    "messages": (move_kernels, "MESSAGES"),
    "moves": (move_kernels, "MOVES"),
    "first block": (pair_kernels, "FIRST"),
    "second block": (pair_kernels, "SECOND"),
}


def spent(call: Callable[[], Any], repeats: int = 5) -> float:
    """Milliseconds of one call, the median."""
    call()
    if DEVICE == "cpu":
        return 1.0
    found = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end))
    return statistics.median(found)


def rates() -> tuple[float, float]:
    """Operations in bfloat16, and bytes of memory, per millisecond."""
    a = torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16)
    products = 2 * 8192**3 / spent(lambda: a @ a)
    b = torch.empty(1 << 30, device=DEVICE, dtype=torch.uint8)
    c = torch.empty_like(b)
    return products, 2 * len(b) / spent(lambda: c.copy_(b))


def members_of(members: int, hidden: int = HIDDEN, n: int = NODES) -> tuple[Any, Any, Any]:
    """A model, and random members of its population."""
    torch.manual_seed(0)
    model = RelationalVAE(n, TIMES, hidden_size=hidden, fused=True).to(DEVICE)
    layout = Layout(model)
    flat = torch.empty(members // 2, layout.size, device=DEVICE)
    fill_directions(flat, 0, seed=0, step=0, sigma=0.01, kind="gaussian")
    return model, layout, flat


def layers_of(state: dict[str, torch.Tensor], part: str) -> list[torch.Tensor]:
    return [tensor for name, tensor in state.items() if name.startswith(part + ".")]


def trees(members: int, cells: int, n: int = NODES) -> torch.Tensor:
    scores = torch.rand(members, 1, cells, n * (n - 1) // 2, device=DEVICE)
    return nestruct.SpanningTree(n).argmax(scores).movedim(-1, 1).contiguous()


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.float() - expected.float()).norm() / expected.float().norm())


def check(members: int, n: int, examples: int, hidden: int) -> None:
    """Prints the errors of all kernels."""
    _, layout, flat = members_of(members, hidden, n)
    with torch.no_grad():
        state = Population(layout.centre(), layout.split(flat), True).parameters()
    encoder, decoder = layers_of(state, "encoder"), layers_of(state, "decoder")
    x = torch.rand(members, examples, n, 2 * TIMES, device=DEVICE) * 2 - 1
    positions = torch.rand(members, 2, n, examples, device=DEVICE) * 2 - 1
    z = trees(members, examples, n)
    weights = tree_moves.weights_of(decoder)
    bits, order = tree_moves._sorted_receivers(z.flatten(2), n)
    bits, here = bits.int(), positions.permute(0, 3, 2, 1).reshape(members, -1, 2).contiguous()
    totals = tree_moves.sum_messages_plain(here, bits, n, weights)
    moved = tree_moves.move_plain(here, totals, weights)
    errors = {
        "messages": relative(move_kernels.sum_messages_cuda(here, bits, order, n, weights), totals),
        "moves": relative(move_kernels.move_cuda(here, totals, weights) - here, moved - here),
    }
    ends = torch.randn(2, members, examples * n, hidden, device=DEVICE).half()
    weight, skip = (encoder[place].half().contiguous() for place in (8, 14))
    bias = encoder[9].contiguous()
    fast = pair_kernels.first_block_cuda(ends[0], ends[1], n, weight, bias)
    plain = pair_blocks.first_block_plain(ends[0], ends[1], n, weight, bias)
    errors["first block"] = relative(fast[0], plain[0])
    errors["its totals"] = relative(fast[1], plain[1])
    errors["its sums"] = relative(fast[2].sum(1), plain[2].sum(1))
    edges = fast[0].clone()
    pair_kernels.second_block_cuda(fast[0], ends[0], ends[1], skip, n, weight, bias)
    pair_blocks.second_block_plain(edges, ends[0], ends[1], skip, n, weight, bias)
    errors["second block"] = relative(fast[0], edges)
    # All of it against float32.
    rows = zip(positions, z, *decoder, strict=True)
    found = torch.stack([roll_out(r[0], r[1], r[2:], 3, hard=True, fused=False) for r in rows])
    start = positions[:, :, :, None, :, None]
    moved = tree_moves.roll_out_trees(positions, z, decoder, 3)
    errors["3 steps, float32"] = relative(moved - start, found - start)
    scores = pair_scores(x, *encoder)[0]
    with torch.compiler.set_stance("force_eager"):  # these shapes are not worth a compilation
        difference = pair_blocks.score_pairs(x, encoder)[0] - scores
    errors["scores, float32"] = float(difference.std() / scores.std())
    shape = f"{members} members, {n} nodes, {examples} examples, {hidden} units"
    print(shape, {name: f"{error:.1e}" for name, error in errors.items()}, flush=True)


def floors(members: int, examples: int, products: float, bytes_: float) -> dict[str, str]:
    """Least milliseconds of each stage: of arithmetic and of memory."""
    seen, size = members * examples, 930_000 * members
    encoder = 2 * SIZE * (3 * PAIRS + 7 * NODES)
    decoder = 2 * SIZE * (TIMES - 1) * (PAIRS + 2 * NODES)
    # Bytes: of the pairs written twice and read twice; of sums written and read; directions are
    # half of the members' numbers.
    traffic = {
        "draws": 2 * size,
        "parameters": 6 * size,
        "encoder": 4 * size + seen * PAIRS * HIDDEN * 8,
        "decoder": 4 * size * 0.29 + seen * (TIMES - 1) * NODES * HIDDEN * 4,
        "update": 2 * size,
    }
    work = {"encoder": seen * encoder, "decoder": seen * decoder}
    return {
        name: f"{work.get(name, 0) / products:.2f} / {number / bytes_:.2f}"
        for name, number in traffic.items()
    }


def stages(name: str, products: float, bytes_: float) -> dict[str, Any]:
    """Prints what each stage of a case takes."""
    members, examples, steps = CASES[name]
    _, layout, flat = members_of(members)
    population = Population(layout.centre(), layout.split(flat), True)
    with torch.no_grad():
        state = population.parameters()
    encoder, decoder = layers_of(state, "encoder"), layers_of(state, "decoder")
    x = torch.rand(members, examples, NODES, 2 * TIMES, device=DEVICE) * 2 - 1
    cells = examples * -(-(TIMES - 1) // steps)
    positions, z = (
        torch.rand(members, 2, NODES, cells, device=DEVICE) * 2 - 1,
        trees(members, cells),
    )
    weights = torch.rand(members // 2, device=DEVICE)
    scores = torch.rand(members, examples, PAIRS // 2, device=DEVICE)
    structure = nestruct.SpanningTree(NODES)

    def draw() -> None:
        fill_directions(flat, 0, seed=0, step=0, sigma=0.01, kind="gaussian")

    with torch.no_grad():
        took = {
            "draws": spent(draw),
            "parameters": spent(population.parameters),
            "encoder": spent(lambda: pair_scores_op(x, encoder)),
            "solver": spent(lambda: structure.argmax(scores)),
            "decoder": spent(lambda: roll_out_op(positions, z, decoder, steps, True)),
            "update": spent(lambda: weights @ flat),
        }
        took |= {f"of it: {part}": ms for part, ms in parts(x, encoder, positions, z, decoder)}
    least = floors(members, examples, products, bytes_)
    print(f"\n{name}: {members} x {examples}, {steps}-step roll-outs; ms (floors: work / memory)")
    for stage, ms in took.items():
        print(f"  {stage:28s} {ms:8.2f}   {least.get(stage, '')}", flush=True)
    main = sum(ms for stage, ms in took.items() if not stage.startswith("of it"))
    rate = members * examples / main / 1e3
    print(f"  {'all':28s} {main:8.2f}   {rate:.2f} million decodings a second", flush=True)
    return {"case": name, "ms": took, "floors": least}


def parts(x, encoder, positions, z, decoder) -> list[tuple[str, float]]:
    """Milliseconds of the single kernels, with inputs as they have them."""
    n = NODES
    weights = tree_moves.weights_of(decoder)
    bits, order = tree_moves._sorted_receivers(z.flatten(2), n)
    bits = bits.int()
    here = positions.permute(0, 3, 2, 1).reshape(len(z), -1, 2).contiguous()
    totals = move_kernels.sum_messages_cuda(here, bits, order, n, weights)
    received, sent = torch.randn(2, len(x), x.shape[1] * n, HIDDEN, device=DEVICE).half()
    weight, skip = (encoder[place].half().contiguous() for place in (8, 14))
    bias = encoder[9].contiguous()
    edges, *_ = pair_kernels.first_block_cuda(received, sent, n, weight, bias)
    return [
        ("one step's messages", spent(lambda: run_messages(here, bits, order, weights))),
        ("one step's moves", spent(lambda: move_kernels.move_cuda(here, totals, weights))),
        ("sorting receivers", spent(lambda: tree_moves._sorted_receivers(z.flatten(2), n))),
        ("the decoder's weights", spent(lambda: tree_moves.weights_of(decoder))),
        ("first block", spent(lambda: run_first(received, sent, weight, bias))),
        ("second block", spent(lambda: run_second(edges, received, sent, skip, weight, bias))),
    ]


def run_messages(here, bits, order, weights):
    return move_kernels.sum_messages_cuda(here, bits, order, NODES, weights)


def run_first(received, sent, weight, bias):
    return pair_kernels.first_block_cuda(received, sent, NODES, weight, bias)


def run_second(edges, received, sent, skip, weight, bias):
    return pair_kernels.second_block_cuda(edges, received, sent, skip, NODES, weight, bias)


def tune(members: int, examples: int, products: float) -> list[dict[str, Any]]:
    """Prints what each kernel takes in several cuts, with the share of the floor of arithmetic."""
    _, layout, flat = members_of(members)
    with torch.no_grad():
        state = Population(layout.centre(), layout.split(flat), True).parameters()
    encoder, decoder = layers_of(state, "encoder"), layers_of(state, "decoder")
    positions, z = torch.rand(members, 2, NODES, examples, device=DEVICE), trees(members, examples)
    weights = tree_moves.weights_of(decoder)
    bits, order = tree_moves._sorted_receivers(z.flatten(2), NODES)
    bits = bits.int()
    here = positions.permute(0, 3, 2, 1).reshape(members, -1, 2).contiguous()
    totals = torch.randn(members, examples * NODES, HIDDEN, device=DEVICE).bfloat16()
    received, sent = torch.randn(2, members, examples * NODES, HIDDEN, device=DEVICE).half()
    weight, skip = (encoder[place].half().contiguous() for place in (8, 14))
    bias = encoder[9].contiguous()
    edges = torch.randn(members, examples * PAIRS, HIDDEN, device=DEVICE).half()
    calls = {
        "messages": (lambda: run_messages(here, bits, order, weights), PAIRS),
        "moves": (lambda: move_kernels.move_cuda(here, totals, weights), 2 * NODES),
        "first block": (lambda: run_first(received, sent, weight, bias), PAIRS),
        "second block": (lambda: run_second(edges, received, sent, skip, weight, bias), 2 * PAIRS),
    }
    rows = []
    print(f"\ncuts, {members} members x {examples} examples, one step")
    for name, (call, count) in calls.items():
        floor = 2 * SIZE * count * members * examples / products
        module, attribute = PLACES[name]
        usual = getattr(module, attribute)
        for blocks in CUTS[name]:
            setattr(module, attribute, blocks)
            try:
                ms = spent(call)
            except (RuntimeError, triton.TritonError) as error:  # too much shared memory, say
                print(f"  {name:14s} {tuple(blocks)}: {str(error)[:90]}", flush=True)
                continue
            mark = " (as it is)" if blocks == usual else ""
            print(f"  {name:14s} {ms:7.3f} ms, floor {floor:.3f} {tuple(blocks)}{mark}", flush=True)
            rows.append({"kernel": name, "blocks": list(blocks), "ms": ms, "floor": floor})
        setattr(module, attribute, usual)
    return rows


def steps() -> list[dict[str, Any]]:
    """Prints whole steps as training takes them."""

    def nes(members: int, examples: int) -> nestruct.NES:
        options: dict[str, Any] = {"population_size": members, "chunk_size": members}
        if examples < 128:
            options |= {"minibatch": "per_pair", "pair_batch_size": examples}
        return nestruct.NES(sigma=0.01, mode="vmap", **options)

    cases: dict[str, tuple[Any, int]] = {
        name: (nes(*case[:2]), case[2]) for name, case in CASES.items()
    }
    cases["StructureNES, 16 samples, one step"] = (nestruct.StructureNES(num_samples=16), 1)
    rows = []
    for name, (estimator, length) in cases.items():
        torch.manual_seed(0)
        model = RelationalVAE(NODES, TIMES, num_rollout_steps=length, kl_weight=2.0, fused=True)
        model = model.to(DEVICE)
        batch = {"x": torch.rand(128, NODES, TIMES, 2, device=DEVICE) * 2 - 1}
        if hasattr(estimator, "prepare"):
            estimator.prepare(model, batch)
        adam = torch.optim.Adam(model.parameters(), lr=1e-5, fused=True)
        number = iter(range(10**6))

        def step(estimator=estimator, model=model, batch=batch, adam=adam, number=number) -> None:
            estimator.backward(model, batch, seed=0, step=next(number))
            adam.step()

        ms = spent(step, 10)
        graphs = estimator._graphed.captured.values() if estimator._graphed else ()
        captured = any(entry is not None for entry, _ in graphs)
        line = f"{name:42s} {ms:8.2f} ms{'' if captured else ', not captured'}"
        if name in CASES:
            line += f", {CASES[name][0] * CASES[name][1] / ms / 1e3:.2f} million decodings a second"
        print(line, flush=True)
        row = {"case": name, "ms": ms, "captured": captured}
        if name in CASES:
            row["decodings"] = CASES[name][0] * CASES[name][1]
        rows.append(row)
        estimator._graphed = None
        torch.cuda.empty_cache()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stages", action="store_true")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_float32_matmul_precision("highest")
    for shape in ((2, 2, 3, 16), (4, 5, 21, 64), (4, 10, 37, 256), (2, 10, 128, 256)):
        check(*shape)
    torch.set_float32_matmul_precision("high")
    products, bytes_ = rates()
    print(f"{products / 1e9:.0f} TFLOP/s in bfloat16, {bytes_ / 1e9:.2f} TB/s copied")
    commit = describe_environment(torch.device(DEVICE))["commit"]
    found: dict[str, Any] = {"commit": commit, "products": products, "bytes": bytes_}
    if options.tune:
        found["cuts"] = tune(60, 384, products)
    if options.stages:
        found["stages"] = [stages(name, products, bytes_) for name in CASES]
    if options.steps:
        print()
        found["steps"] = steps()
    if options.json:
        found["device"], found["torch"] = torch.cuda.get_device_name(), torch.__version__
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
