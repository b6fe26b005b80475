"""One NES step of the parsing VAE beside its floor: N = 400, 128 sentences of 22 words.

The floor counts what is left after the exact savings, at the machine's own speed for a large
product, for tanh and for normal draws, each measured here:

- Per member and place, multiply-adds: 2 x 500 x 125 in the recurrence of each of two layers, 1000 x
  250 into the second layer, 2 x 100 x 250 into the arc scorer: 550,000. Per member and distinct
  word 1000 x 100, and per pair and distinct word 1000 x 300 into the first layer.
- Per distinct case of the decoder (a word, its earlier head and dependents): 100 x vocabulary.
- tanh and the like: 5 x 125 x 2 per place and layer, 100 per arc, and one exp per logit.
- 200 directions of all parameters that are perturbed, drawn and added up once.
- Not counted: the solver, which is timed and printed, and all memory traffic.

    python benchmarks/parser_step.py [--device cuda] [--structure non-projective] [--json FILE]
"""

import argparse
import json
import time
from collections.abc import Callable

import torch

import nestruct
from nestruct import NES
from nestruct.data import Sentences, Vocabulary
from nestruct.models import ParserVAE
from nestruct.models.parser import population as parser_population
from nestruct.structures.solvers import solver_seconds


def random_batch(num_sentences: int, num_words: int, vocabulary: int, seed: int) -> Sentences:
    generator = torch.Generator().manual_seed(seed)
    shape = (num_sentences, num_words + 1)
    words = torch.randint(2, vocabulary, shape, generator=generator)
    words[:, 0] = 1
    heads = torch.arange(num_words + 1).sub(1).clamp(min=0).expand(shape).clone()
    lengths = torch.full((num_sentences,), num_words)
    return Sentences(words, heads, heads * 0, heads >= 0, lengths)


def random_model(vocabulary: int, structure: str, seed: int) -> ParserVAE:
    torch.manual_seed(seed)
    words = tuple(f"w{k}" for k in range(vocabulary))
    labels = tuple(f"l{k}" for k in range(40))
    known = Vocabulary(words, (1,) * vocabulary, vocabulary, labels)
    return ParserVAE(known, torch.randn(vocabulary, 300), structure=structure, objective="vae")


def seconds(call: Callable[[], object], device: str, repeats: int = 3) -> list[float]:
    spent = []
    for _ in range(repeats + 1):  # the first pays for warming up
        if device != "cpu":
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        if device != "cpu":
            torch.cuda.synchronize()
        spent.append(time.perf_counter() - start)
    return sorted(spent[1:])


def rates(device: str) -> dict[str, float]:
    """Multiply-adds, tanh and normals per second, at their best."""
    size = 8192 if device != "cpu" else 2048
    a, b = torch.randn(2, size, size, device=device)
    x = torch.randn(1 << (28 if device != "cpu" else 16), device=device)
    turns = 1 if device != "cpu" else 100

    def tanh() -> None:
        for _ in range(turns):
            x.tanh()

    normals = torch.empty(8, 4_000_000, device=device)
    fill = nestruct.population.directions.fill_directions

    def draw() -> None:
        fill(normals, 0, seed=0, step=0, sigma=1.0, kind="gaussian")

    return {
        "multiply_adds": size**3 / seconds(lambda: a @ b, device)[0],
        "tanh": turns * x.numel() / seconds(tanh, device)[0],
        "normals": normals.numel() / seconds(draw, device)[0],
    }


def count(model: ParserVAE, batch: Sentences, members: int, cases: int) -> dict[str, float]:
    """What one step must do."""
    examples, tokens = batch.words.shape
    places, kinds = examples * tokens, len(batch.words.unique())
    arcs = int((batch.lengths * batch.lengths).sum())
    size = sum(p.numel() for p in model.parameters() if p.requires_grad)
    outputs = model.vocabulary.num_outputs
    encoder = members * places * 550_000
    encoder += members * kinds * 100_000 + members // 2 * kinds * 300_000
    return {
        "multiply_adds": encoder + cases * outputs * 100 + members // 2 * size,
        "tanh": members * (places * 2500 + arcs * 100) + cases * outputs,
        "normals": members // 2 * size,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--structure", default="projective")
    parser.add_argument("--members", type=int, default=400)
    parser.add_argument("--sentences", type=int, default=128)
    parser.add_argument("--words", type=int, default=22)
    parser.add_argument("--vocabulary", type=int, default=10_000)
    parser.add_argument("--sigma", type=float, default=0.1)
    parser.add_argument("--graph", default="auto")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--precision", default="high", help="of float32 products on a GPU")
    parser.add_argument("--json")
    options = parser.parse_args()
    device = options.device
    torch.set_float32_matmul_precision(options.precision)
    model = random_model(options.vocabulary, options.structure, 0).to(device)
    batch = random_batch(options.sentences, options.words, options.vocabulary, 1)
    batch = nestruct.data.to_device(batch, torch.device(device))
    nes = NES(
        sigma=options.sigma,
        population_size=options.members,
        mode="vmap",
        graph=options.graph,
    )
    adam = torch.optim.Adam(model.parameters(), lr=1e-4)
    cases = watch_cases()
    step = iter(range(1_000_000))

    def one_step() -> None:
        nes.backward(model, batch, seed=0, step=next(step))
        adam.step()

    before = solver_seconds()
    spent = seconds(one_step, device, options.repeats)
    solver = (solver_seconds() - before) / (options.repeats + 1)
    distinct = sum(cases) // (options.repeats + 1)
    plan = nes.state_dict()
    words = options.members * int(batch.lengths.sum())
    needed = count(model, batch, options.members, distinct or words)
    speed = rates(device)
    floor = {name: needed[name] / speed[name] for name in needed}
    result = {
        "options": vars(options),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if device != "cpu" else "cpu",
        "seconds": {"median": spent[len(spent) // 2], "best": spent[0]},
        "solver_seconds": solver,
        "cases": {"distinct": distinct, "all": words},
        "needed": needed,
        "rates": speed,
        "floor_seconds": floor | {"all": sum(floor.values())},
    }
    if device != "cpu":
        result["memory_bytes"] = torch.cuda.max_memory_allocated()
    print(f"{options.structure}, N = {options.members}, {options.sentences} sentences of")
    print(f"{options.words} words, {options.vocabulary:,} words known, {result['device']}:")
    print(f"  one step   {spent[len(spent) // 2]:.3f} s median, {spent[0]:.3f} s best")
    print(f"  its floor  {sum(floor.values()):.3f} s, of which", end=" ")
    print(", ".join(f"{name} {value:.3f}" for name, value in floor.items()))
    print(
        f"  {plan['chunk']} pairs at a time, directions {'kept' if plan['keep'] else 'drawn twice'}"
    )
    print(f"  CPU solver {solver:.3f} s;  distinct cases {distinct:,} of {words:,}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(result, file, indent=1)


def watch_cases() -> list[int]:
    """How many distinct cases each call of the decoder computes; empty where it counts none."""
    found: list[int] = []
    plain = parser_population.TreeLanguageModel.log_probability

    def watched(self, hidden, target, among=0):
        found.append(len(hidden))
        return plain(self, hidden, target, among)

    parser_population.TreeLanguageModel.log_probability = watched  # type: ignore[method-assign]
    return found


if __name__ == "__main__":
    main()
