"""Seconds per NES step: ours beside a plain loop, plain vmap, evotorch and evosax, in one run.

    python benchmarks/nes_step.py [--device cpu] [--hidden H] [--repeats 5] [--json FILE]

The paper's categorical VAE (784-H-10-H-784, batch 128, sigma 0.1, mirrored, Adam): a step draws the
population, evaluates it, shapes losses, estimates the gradient and updates. Inputs are random bits.
Engines take turns; the median and the best of the repeats after a warm-up are shown. All minimise
the same objective (one Gumbel draw shared by the population); evotorch shapes by centred ranks, the
others by standard scores. A peer that does not import is shown as 'not installed':

    pip install --no-deps evotorch && pip install packaging pandas ray gymnasium
    pip install jax evosax
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import nestruct
from nestruct.models import mlp

SIGMA, BATCH, PIXELS, CLASSES = 0.1, 128, 784, 10
SIZES = {"cpu": [(300, 300), (512, 100)], "cuda": [(300, 300), (512, 100), (16, 60)]}
TARGETS_MS = {(300, 300): 2.0, (512, 100): 1.0, (16, 60): 0.3}

Step = Callable[[int], Any]


def build(hidden: int, device: str) -> tuple[nestruct.StructuredVAE, Tensor]:
    torch.manual_seed(0)
    encoder, decoder = mlp(PIXELS, hidden, CLASSES), mlp(CLASSES, hidden, PIXELS)
    structure = nestruct.Categorical(CLASSES)
    model = nestruct.StructuredVAE(encoder, decoder, structure, divergence="gibbs")
    return model.to(device), (torch.rand(BATCH, PIXELS) < 0.5).float().to(device)


def ours(hidden: int, population: int, device: str, **options: Any) -> Step:
    model, x = build(hidden, device)
    estimator = nestruct.NES(sigma=SIGMA, population_size=population, **options)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def step(number: int) -> None:
        estimator.backward(model, x, seed=0, step=number)
        optimizer.step()

    return step


def rank_one(hidden: int, population: int, device: str, **options: Any) -> Step:
    """Ours with directions of rank one, one product per layer for all members."""
    return ours(hidden, population, device, directions="rank1", **options)


def plain_objective(hidden: int, device: str) -> tuple[nn.Module, nn.Module, Tensor]:
    """Encoder, decoder and data for engines that write the objective themselves."""
    model, x = build(hidden, device)
    return model.encoder, model.decoder, x


def negative_elbo(logits: Tensor, decode: Callable[[Tensor], Tensor], x: Tensor, gumbel: Tensor):
    z = nn.functional.one_hot((logits + gumbel).argmax(-1), CLASSES).float()
    bce = nn.functional.binary_cross_entropy_with_logits(decode(z), x, reduction="none").sum(-1)
    log_q = logits.log_softmax(-1)
    return (bce + (log_q.exp() * (log_q + torch.log(torch.tensor(10.0)))).sum(-1)).mean()


def draw_gumbel() -> Tensor:
    return -torch.empty(BATCH, CLASSES).exponential_().log()


def plain_loop(hidden: int, population: int, device: str) -> Step:
    """Members one after the other, parameters moved in place: no copies of the model."""
    encoder, decoder, x = plain_objective(hidden, device)
    parameters: list[Tensor] = [*encoder.parameters(), *decoder.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-3)

    @torch.no_grad()
    def step(number: int) -> None:
        gumbel, losses, noises = draw_gumbel(), [], []
        for _ in range(population // 2):
            noise = [torch.randn_like(p) for p in parameters]
            for scale in (SIGMA, -2 * SIGMA):
                torch._foreach_add_(parameters, noise, alpha=scale)
                losses.append(negative_elbo(encoder(x), decoder, x, gumbel))
            torch._foreach_add_(parameters, noise, alpha=SIGMA)
            noises.append(noise)
        values = torch.stack(losses)
        scores = ((values - values.mean()) / values.std(correction=0)).view(-1, 2)
        weights = ((scores[:, 0] - scores[:, 1]) / (population * SIGMA)).tolist()
        gradients = [torch.zeros_like(p) for p in parameters]
        for weight, noise in zip(weights, noises, strict=True):
            torch._foreach_add_(gradients, noise, alpha=weight)
        for p, gradient in zip(parameters, gradients, strict=True):
            p.grad = gradient
        optimizer.step()

    return step


def vmapped(hidden: int, device: str) -> tuple[Callable[[Tensor, Tensor], Tensor], Tensor]:
    """Losses of flat parameter vectors ``[members, size]``, and the starting point."""
    encoder, decoder, x = plain_objective(hidden, device)
    both = nn.ModuleList([encoder, decoder])
    named = dict(both.named_parameters())
    sizes = [p.numel() for p in named.values()]

    def loss(flat: Tensor, gumbel: Tensor) -> Tensor:
        pieces = flat.split(sizes)
        values = {n: v.view(p.shape) for (n, p), v in zip(named.items(), pieces, strict=True)}

        def part(name: str, module: nn.Module, argument: Tensor) -> Tensor:
            own = {n.removeprefix(name): v for n, v in values.items() if n.startswith(name)}
            return torch.func.functional_call(module, own, (argument,))

        return negative_elbo(part("0.", encoder, x), lambda z: part("1.", decoder, z), x, gumbel)

    start = torch.cat([p.detach().flatten() for p in named.values()])
    return torch.func.vmap(loss, in_dims=(0, None)), start


def plain_vmap(hidden: int, population: int, device: str) -> Step:
    losses_of, centre = vmapped(hidden, device)
    parameter = nn.Parameter(centre)
    optimizer = torch.optim.Adam([parameter], lr=1e-3)

    @torch.no_grad()
    def step(number: int) -> None:
        noise = torch.randn(population // 2, len(centre))
        members = torch.cat([parameter + SIGMA * noise, parameter - SIGMA * noise])
        values = losses_of(members, draw_gumbel())
        scores = (values - values.mean()) / values.std(correction=0)
        half = population // 2
        parameter.grad = (scores[:half] - scores[half:]) @ noise / (population * SIGMA)
        optimizer.step()

    return step


def evotorch(hidden: int, population: int, device: str) -> Step:
    from evotorch.algorithms.functional import pgpe, pgpe_ask, pgpe_tell

    losses_of, centre = vmapped(hidden, device)
    state = pgpe(
        center_init=centre,
        center_learning_rate=1e-3,
        stdev_learning_rate=0.0,
        stdev_init=SIGMA,
        objective_sense="min",
        ranking_method="centered",
        optimizer="adam",
    )

    @torch.no_grad()
    def step(number: int) -> None:
        nonlocal state
        members = pgpe_ask(state, popsize=population)
        state = pgpe_tell(state, members, losses_of(members, draw_gumbel()))

    return step


def evosax(hidden: int, population: int, device: str) -> Step:
    import jax
    import jax.numpy as jnp
    import optax
    from evosax.algorithms import Open_ES
    from evosax.core.fitness_shaping import standardize_fitness_shaping_fn

    encoder, decoder, data = plain_objective(hidden, device)
    both = nn.Sequential(encoder, decoder)
    layers = [m for m in both.modules() if isinstance(m, nn.Linear)]
    start = [(jnp.array(m.weight.detach().T), jnp.array(m.bias.detach())) for m in layers]
    x = jnp.array(data)
    engine = Open_ES(
        population,
        start,
        optimizer=optax.adam(1e-3),
        std_schedule=optax.constant_schedule(SIGMA),
        fitness_shaping_fn=standardize_fitness_shaping_fn,
    )
    options = engine.default_params
    state = engine.init(jax.random.key(0), start, options)

    def loss(weights: Any, gumbel: Any) -> Any:
        (w1, b1), (w2, b2), (w3, b3), (w4, b4) = weights
        logits = jax.nn.relu(x @ w1 + b1) @ w2 + b2
        z = jax.nn.one_hot((logits + gumbel).argmax(-1), CLASSES)
        out = jax.nn.relu(z @ w3 + b3) @ w4 + b4
        log_q = jax.nn.log_softmax(logits)
        kl = (jnp.exp(log_q) * (log_q + jnp.log(10.0))).sum(-1)
        return ((jax.nn.softplus(out) - x * out).sum(-1) + kl).mean()

    @jax.jit
    def generation(key: Any, state: Any) -> Any:
        ask, draw, tell = jax.random.split(key, 3)
        members, state = engine.ask(ask, state, options)
        gumbel = jax.random.gumbel(draw, (BATCH, CLASSES))
        losses = jax.vmap(loss, in_axes=(0, None))(members, gumbel)
        return engine.tell(tell, members, losses, state, options)[0]

    def step(number: int) -> None:
        nonlocal state
        state = jax.block_until_ready(generation(jax.random.key(number), state))

    return step


ENGINES: dict[str, dict[str, Callable[..., Step]]] = {
    "cpu": {
        "ours": ours,
        "ours, rank 1": rank_one,
        "plain loop": plain_loop,
        "plain vmap": plain_vmap,
        "evotorch": evotorch,
        "evosax": evosax,
    },
    "cuda": {"ours": ours, "ours, rank 1": rank_one, "graph alone": lambda *size: captured(*size)},
}


def captured(hidden: int, population: int, device: str) -> Step:
    """The captured step without what the host does around it: key, copy, report, Adam."""
    model, x = build(hidden, device)
    estimator = nestruct.NES(sigma=SIGMA, population_size=population)
    estimator.backward(model, x, seed=0, step=0)
    assert estimator._graphed is not None
    (((graph, *_), _),) = estimator._graphed.captured.values()

    def step(number: int) -> Any:
        graph.replay()
        return estimator, x  # what the graph reads must stay alive

    return step


def seconds_of(step: Step, number: int, device: str, calls: int) -> float:
    start = time.perf_counter()
    for call in range(calls):
        step(number + call)
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / calls


def floors(hidden: int, population: int) -> dict[str, float]:
    """Seconds for the arithmetic at the measured speed of one product, and for the draws."""
    x, w = torch.randn(BATCH, PIXELS), torch.randn(PIXELS, hidden)
    x @ w
    rate = 2 * BATCH * PIXELS * hidden / min(_time(lambda: x @ w) for _ in range(20))
    pairs, size = population // 2, 2 * PIXELS * hidden + 2 * CLASSES * hidden
    everything = population * 2 * BATCH * size
    # Savings: the first layer once a pair, the decoder on 10 inputs (twice: x W and x E).
    saved = pairs * 2 * BATCH * PIXELS * hidden
    saved += population * 2 * (BATCH * CLASSES * hidden * 2 + 2 * CLASSES * PIXELS * hidden)
    saved += population * 2 * CLASSES * PIXELS * BATCH
    # Rank 1: both layers' x W once, x . b of each pair; the decoder on 10 inputs; two gradients.
    thin = 2 * BATCH * PIXELS * (hidden + pairs) + pairs * 2 * 2 * PIXELS * hidden
    thin += population * 2 * CLASSES * (BATCH * hidden + CLASSES * hidden + PIXELS * hidden)
    thin += population * 2 * CLASSES * PIXELS * BATCH
    one, other = torch.empty(2, 1 << 26)
    speed = 2 * one.nbytes / min(_time(lambda: other.copy_(one)) for _ in range(3))
    hidden_bytes = 4 * population * BATCH * hidden  # written; read and written by ReLU; read
    row = torch.empty(1 << 22)
    draws = pairs * size / (len(row) / min(_time(row.normal_) for _ in range(3)))
    return {
        "gflop_plain": everything / 1e9,
        "gflop_saved": saved / 1e9,
        "arithmetic_plain": everything / rate,
        "arithmetic_saved": saved / rate,
        "gflop_rank_one": thin / 1e9,
        "arithmetic_rank_one": thin / rate,
        "memory_rank_one": 4 * hidden_bytes / speed,
        "draws_one_thread": draws,
        "draws_all_threads": draws / torch.get_num_threads(),
    }


def _time(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description="Time one NES step beside its peers.")
    parser.add_argument("--device", choices=ENGINES, default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--hidden", type=int, help="only the model of this width")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    device = options.device
    if device == "cpu":
        torch.set_num_threads(options.threads)
    facts: dict[str, Any] = {"date": datetime.now(UTC).isoformat(timespec="seconds")}
    facts |= {"device": device, "threads": torch.get_num_threads(), "load": os.getloadavg()[0]}
    facts |= {"python": platform.python_version(), "torch": torch.__version__}
    if device == "cuda":
        facts["gpu"] = torch.cuda.get_device_name()
    print("\n".join(f"{name}: {value}" for name, value in facts.items()), flush=True)
    rows: list[dict[str, Any]] = []
    for hidden, population in SIZES[device]:
        if options.hidden not in (None, hidden):
            continue
        steps: dict[str, Step] = {}
        for name, make in ENGINES[device].items():
            try:
                steps[name] = make(hidden, population, device)
            except ImportError as error:
                print(f"{name}: not installed ({error.name})")
        calls = 200 if device == "cuda" else 1
        for step in steps.values():
            seconds_of(step, 0, device, 1 if device == "cpu" else 20)
        times: dict[str, list[float]] = {name: [] for name in steps}
        for repeat in range(options.repeats):
            for name, step in steps.items():
                times[name].append(seconds_of(step, 1000 * (repeat + 1), device, calls))
        print(f"\n784-{hidden}-10-{hidden}-784, N = {population}, batch {BATCH}; ms per step")
        fastest = statistics.median(times["ours"])
        for name, values in times.items():
            median = statistics.median(values)
            best = 1e3 * min(values)
            print(f"  {name:12} {1e3 * median:9.2f} [{best:.2f}]  x{median / fastest:.2f}")
            row = {"hidden": hidden, "population": population, "engine": name}
            rows.append(row | {"median_s": median, "min_s": min(values)})
        if device == "cuda":
            target = TARGETS_MS[hidden, population]
            print(f"  target {target} ms: {'met' if 1e3 * fastest <= target else 'MISSED'}")
        else:
            limits = floors(hidden, population)
            rows[-len(times)]["floors"] = limits
            gain = fastest / statistics.median(times["ours, rank 1"])
            verdict = "met" if gain >= 3 else "MISSED"
            print(f"  target of rank 1, 3 times full directions: {gain:.2f}, {verdict}")
            print(
                "  floors, ms: "
                + ", ".join(
                    f"{name} {1e3 * value:.0f}"
                    for name, value in limits.items()
                    if "gflop" not in name
                )
            )
            peers = {n: statistics.median(v) for n, v in times.items() if n.startswith("evo")}
            loop = statistics.median(times["plain loop"]) / fastest
            verdict = "met" if loop >= 2.5 else "MISSED"
            print(f"  target 2.5 times the plain loop: {loop:.2f}, {verdict}")
            if peers:
                best = min(peers.values()) / fastest
                print(
                    f"  target 3 times the fastest library: {best:.2f}, "
                    f"{'met' if best >= 3 else 'MISSED'}"
                )
    if options.json:
        options.json.write_text(json.dumps({"environment": facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
