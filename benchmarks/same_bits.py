"""Records the losses and parameters of short trainings, and compares two records bit by bit.

    python benchmarks/same_bits.py record FILE.json [--device cuda] [--steps 50]
    python benchmarks/same_bits.py compare OLD.json NEW.json

For changes that must not change what is computed: record before, record after, compare. A case is
a recipe with overrides, run by the command line, so the script outlives changes of the modules.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors.numpy import load_file

TINY = ["data.num_train=300", "data.num_validation=50", "data.num_test=50"]
NES = ["estimator.population_size=20", "estimator.mode=vmap"]
# name: recipe, overrides, the case that it starts from
CPU = {
    "nes-per-pair": ("graph-layout-tiny", [*TINY, "estimator.population_size=20"], None),
    "nes-shared": (
        "graph-layout-tiny",
        [
            *TINY,
            "estimator.minibatch=shared",
            "estimator.pair_batch_size=none",
            "estimator.population_size=20",
            "estimator.gumbel=per_member",
            "estimator.num_samples=2",
        ],
        None,
    ),
    "nes-loop": (
        "graph-layout-tiny",
        [
            *TINY,
            "estimator.minibatch=shared",
            "estimator.mode=loop",
            "estimator.pair_batch_size=none",
            "estimator.population_size=6",
        ],
        None,
    ),
    "snes": ("graph-layout-tiny", [*TINY, "estimator.name=SNES", *NES], None),
    "nes-categorical": ("categorical-tiny", ["estimator.population_size=20"], None),
    "structure-nes": ("graph-layout-5", TINY, None),
    "structure-nes-gibbs": ("graph-layout-5", [*TINY, "estimator.covariance=gibbs"], None),
    "structure-nes-k-subset": ("graph-layout-5", [*TINY, "model.structure=k-subset"], None),
    "score-nes": ("graph-layout-5", [*TINY, "estimator.name=ScoreNES"], None),
    "nvil": ("graph-layout-5", [*TINY, "estimator.name=NVIL"], None),
    "sst": ("graph-layout-5", [*TINY, "estimator.name=SST", "estimator.num_samples=2"], None),
    "sparse-map": ("graph-layout-5", [*TINY, "estimator.name=SparseMAP"], None),
    "reinforce-4": ("graph-layout-5", [*TINY, "estimator.name=Reinforce"], None),
    "reinforce-batch": (
        "graph-layout-5",
        [*TINY, "estimator.name=Reinforce", "estimator.baseline=batch", "estimator.num_samples=1"],
        None,
    ),
    "reinforce-ema": (
        "graph-layout-5",
        [*TINY, "estimator.name=Reinforce", "estimator.baseline=ema", "estimator.num_samples=2"],
        None,
    ),
    "enumeration": ("categorical-tiny", ["estimator.name=Enumeration"], None),
    "parser": ("parser-tiny", [], None),
    "parser-decoder": ("parser-tiny-decoder", [], "parser"),
    "parser-nes": ("parser-tiny-nes", [*NES], "parser-decoder"),
    "parser-nes-kl": (
        "parser-tiny-nes",
        [
            *NES,
            "model.divergence=gumbel",
            "model.structure=non-projective",
            "estimator.gumbel=per_pair",
        ],
        "parser-decoder",
    ),
    "parser-nes-decoder": (
        "parser-tiny-nes",
        ["estimator.population_size=6", "estimator.mode=vmap", "model.freeze_decoder=false"],
        "parser-decoder",
    ),
    "parser-structure-nes": (
        "parser-tiny-nes",
        ["estimator.name=StructureNES", "estimator.num_samples=4", "estimator.num_covariance=8"],
        "parser-decoder",
    ),
    "parser-score-nes": (
        "parser-tiny-nes",
        ["estimator.name=ScoreNES", "estimator.num_pairs=2"],
        "parser-decoder",
    ),
    "parser-dpp": ("parser-tiny-nes", ["estimator.name=DPP"], "parser-decoder"),
    "parser-sparse-map": ("parser-tiny-nes", ["estimator.name=SparseMAP"], "parser-decoder"),
    "parser-sst": (
        "parser-tiny-nes",
        ["estimator.name=SST", "model.divergence=gibbs"],
        "parser-decoder",
    ),
    "parser-reinforce": ("parser-tiny-nes", ["estimator.name=Reinforce"], "parser-decoder"),
}
FUSED = ["model.hidden_size=64", "model.fused=true", "training.matmul_precision=high"]
CUDA = {
    "nes-per-pair": CPU["nes-per-pair"],
    "nes-categorical": CPU["nes-categorical"],
    "snes": CPU["snes"],
    "structure-nes": CPU["structure-nes"],
    "structure-nes-fused": ("graph-layout-5", [*TINY, *FUSED], None),
    "nes-fused": ("graph-layout-tiny", [*TINY, *FUSED, "estimator.population_size=20"], None),
    "sst": CPU["sst"],
    "score-nes": CPU["score-nes"],
    "nvil": CPU["nvil"],
    "reinforce-ema": CPU["reinforce-ema"],
    "enumeration": CPU["enumeration"],
    "parser": CPU["parser"],
    "parser-decoder": CPU["parser-decoder"],
    "parser-nes": CPU["parser-nes"],
    "parser-dpp": CPU["parser-dpp"],
    "parser-structure-nes": CPU["parser-structure-nes"],
}

COSTS = ("timing", "decoded", "solved")  # of the test record: not what is computed


def run_case(name: str, folder: Path, cases: dict, steps: int, device: str) -> dict:
    recipe, overrides, start = cases[name]
    run = folder / name
    command = [sys.executable, "-m", "nestruct", "train", recipe, "--run", str(run)]
    command += ["--max-steps", str(steps), "--device", device, "--seed", "3", *overrides]
    command += [f"training.eval_interval={steps}", "training.log_interval=1"]
    if start is not None:
        command += ["--init-from", str(folder / start)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"error": (done.stdout + done.stderr)[-600:]}
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    state = load_file(run / "checkpoints" / "last" / "model.safetensors")
    hashed = hashlib.sha256()
    for key in sorted(state):
        hashed.update(key.encode() + state[key].tobytes())
    train = [r for r in records if r["split"] == "train"]
    return {
        "losses": [r["loss"] for r in train],
        "norms": [r["grad_norm"] for r in train],
        "evaluations": [r["evaluations"] for r in train][-1:],
        "test": {
            name: value
            for record in records
            if record["split"] == "test"
            for name, value in record.items()
            if name not in COSTS
        },
        "parameters": hashed.hexdigest(),
    }


def record(file: Path, steps: int, device: str, only: list[str]) -> None:
    cases = CPU if device == "cpu" else CUDA
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in only or cases:
            found[name] = run_case(name, Path(folder), cases, steps, device)
            print(name, found[name].get("error", found[name].get("losses", [])[-1:]), flush=True)
    file.write_text(json.dumps({"device": device, "steps": steps, "cases": found}, indent=1) + "\n")


def compare(old: Path, new: Path) -> int:
    before, after = (json.loads(file.read_text())["cases"] for file in (old, new))
    different = 0
    for name, was in before.items():
        now = after.get(name)
        if now == was:
            print(f"{name}: the same bits")
            continue
        different += 1
        if now is None or "error" in now or "error" in was:
            print(f"{name}: {now and now.get('error')} / {was.get('error')}")
            continue
        pairs = list(zip(was["losses"], now["losses"], strict=True))
        first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        gap = max(abs(a - b) / max(abs(a), 1e-300) for a, b in pairs[:5])
        print(
            f"{name}: DIFFERENT from step {first} on; first five steps apart by {gap:.1e}; "
            f"evaluations {was['evaluations']} {now['evaluations']}; "
            f"last losses {pairs[-1]}"
        )
    print(f"{len(before) - different} of {len(before)} the same")
    return different


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("record")
    one.add_argument("file", type=Path)
    one.add_argument("--device", default="cpu")
    one.add_argument("--steps", type=int, default=50)
    one.add_argument("--only", nargs="*", default=[])
    two = verbs.add_parser("compare")
    two.add_argument("old", type=Path)
    two.add_argument("new", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    if options.verb == "record":
        record(options.file, options.steps, options.device, options.only)
    else:
        sys.exit(bool(compare(options.old, options.new)))
