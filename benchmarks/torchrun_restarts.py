"""How often processes that torchrun restarts find each other again.

    python benchmarks/torchrun_restarts.py [--launches 10] [--json F]

Two processes add tensors over gloo. In each of the first three starts one kills itself; the fourth
is to finish. Three ways to join are compared: torch's ``init_process_group``, the same where
torchrun's agent does not share its store (TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1), and
`nestruct.training.join_processes`.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from nestruct.training import join_processes

SECONDS = 20  # the time limit of a collective, and of the start
WAYS = {
    "init_process_group": ("torch", {}),
    "init_process_group, store not shared": (
        "torch",
        {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    ),
    "join_processes": ("nestruct", {}),
}


@contextlib.contextmanager
def join_by_torch() -> Iterator[None]:
    dist.init_process_group("gloo", timeout=timedelta(seconds=SECONDS))
    yield
    dist.barrier()
    dist.destroy_process_group()


def work(way: str) -> None:
    """What one process does."""
    start = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    with join_by_torch() if way == "torch" else join_processes("cpu", timeout=SECONDS):
        for step in range(200):
            dist.all_reduce(torch.ones(4))
            if start < 3 and step == 100 and dist.get_rank() == start % 2:
                os.kill(os.getpid(), signal.SIGKILL)


def launch(way: str, environment: dict[str, str]) -> str:
    """How one torchrun ended."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=3"]
    process = subprocess.run(
        [*torchrun, "--nproc-per-node=2", __file__, "--worker", way],
        env=os.environ | environment | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode == 0:
        return "finished"
    return "timed out" if "timed out" in process.stderr.lower() else "failed"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--launches", type=int, default=10)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        work(options.worker)
        return
    ended: dict[str, list[str]] = {name: [] for name in WAYS}
    for _ in range(options.launches):
        for name, (way, environment) in WAYS.items():
            ended[name].append(launch(way, environment))
    for name, outcomes in ended.items():
        print(f"{name:40} {outcomes.count('finished')} of {len(outcomes)} finished: {outcomes}")
    if options.json:
        about = {"torch": torch.__version__, "load_average": os.getloadavg()[0]}
        about["date"] = datetime.now(UTC).strftime("%Y-%m-%d")
        options.json.write_text(json.dumps({"about": about, "ended": ended}, indent=1) + "\n")


if __name__ == "__main__":
    main()
