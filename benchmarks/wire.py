"""What an all-reduce sends and takes with many processes on one machine, beside the formula for it.

    python benchmarks/wire.py [--processes 2,4,8,16,32] [--repeats 20] [--json FILE]

Each process runs with gloo and one thread. Bytes are those of the loopback interface
(``/proc/net/dev``), which all of them share: on a machine with other traffic there they are too
many. A ring sends 2 (p - 1) / p times the tensor from each process. Times are of processes that
share a few cores, so they say how a collective grows with p here, and nothing of a network.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# The losses of 600 members and a flag; the gradient of the 50K model; that of Table 1's model.
SIZES = {"600 losses": 601 * 8, "50K gradient": 51_482 * 4, "Table 1's gradient": 931_587 * 4}


def loopback() -> int:
    """Bytes that the loopback interface has sent."""
    for line in Path("/proc/net/dev").read_text(encoding="utf-8").splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[8])
    raise SystemExit("There is no loopback interface to count on.")


def work(repeats: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {}
    for name, size in SIZES.items():
        tensor = torch.zeros(size // 4)
        for _ in range(2):
            dist.all_reduce(tensor)
        spent, sent = [], []
        for _ in range(repeats):
            dist.barrier()
            time.sleep(0.01)  # the barrier's own messages are through
            before, start = loopback(), time.perf_counter()
            dist.all_reduce(tensor)
            spent.append(1e3 * (time.perf_counter() - start))
            dist.barrier()
            sent.append(loopback() - before)
        found[name] = {"ms": statistics.median(spent), "lo_bytes": statistics.median(sent)}
    # What two barriers and the headers of packets send is in lo_bytes too: counted apart.
    idle = []
    for _ in range(repeats):
        dist.barrier()
        time.sleep(0.01)
        before = loopback()
        dist.barrier()
        idle.append(loopback() - before)
    for entry in found.values():
        entry["lo_bytes"] -= statistics.median(idle)
    dist.destroy_process_group()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--processes", default="2,4,8,16,32")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        found = work(options.repeats)
        if os.environ["RANK"] == "0":
            options.worker.write_text(json.dumps(found))
        return
    rows = []
    for count in map(int, options.processes.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "found.json"
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            words = [f"--nproc-per-node={count}", __file__, "--worker", str(out)]
            subprocess.run(
                [*torchrun, *words, "--repeats", str(options.repeats)],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                check=True,
            )
            found = json.loads(out.read_text())
        for name, entry in found.items():
            ring = 2 * (count - 1) / count * SIZES[name]
            each = entry["lo_bytes"] / count
            row = {"tensor": name, "bytes": SIZES[name], "processes": count}
            row |= {"sent_each": round(each), "ring": round(ring), "ms": round(entry["ms"], 3)}
            rows.append(row)
            print(
                f"{name:20} {count:4} processes: {each:12,.0f} bytes sent by each, "
                f"{ring:12,.0f} by the formula, {entry['ms']:8.2f} ms",
                flush=True,
            )
    if options.json:
        about = {
            "title": "One all-reduce, gloo, all processes on one machine",
            "cores": len(os.sched_getaffinity(0)),
            "load_average": os.getloadavg()[0],
            "torch": torch.__version__,
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        }
        options.json.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
