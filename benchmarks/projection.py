"""What many GPUs would give, computed: one process's share of a step, plus what crosses the wire.

Shares are measured on one GPU (`benchmarks/shares.py`), the number of collectives and their bytes
are counted in a test (tests/estimators/test_processes.py), and the bytes that an all-reduce sends
are checked with many processes on one machine (`benchmarks/wire.py`). The network is **assumed**,
because we have had one GPU at a time: see `NETWORK`. `benchmarks/tables.py` writes the table.
"""

import math

from table_data import Data, numeric

NODE = 8  # GPUs
# Assumed, of the order that NCCL's own tests show on such machines: seconds before the first byte
# of an all-reduce within a node, per level of a tree between nodes, and bytes per second.
NETWORK = {"start": 30e-6, "level": 10e-6, "within": 100e9, "between": 25e9}
# Bytes besides the gradient: 8 for each member's loss; 16 for each sample's loss and whether it
# counts; sums of batch normalisation, four layers of 256 features, forward and backward.
CASES = {
    "NES, Table 1": {"calls": 2, "bytes": 8 * 601, "limit": 300},
    "StructureNES, Table 1": {"calls": 10, "bytes": 16 * 16 * 128 + 8 * 8 * 513, "limit": 128},
    "NES, parser": {"calls": 2, "bytes": 8 * 401, "limit": 200},
}


def wire(processes: int, calls: int, size: float, slower: float = 1.0) -> float:
    """Seconds that the collectives of a step take: a start each, and the bytes of a ring."""
    if processes == 1:
        return 0.0
    nodes = math.ceil(processes / NODE)
    start = NETWORK["start"] + 2 * math.ceil(math.log2(nodes)) * NETWORK["level"]
    rate = NETWORK["within"] if nodes == 1 else NETWORK["between"]
    return slower * (calls * start + 2 * (processes - 1) / processes * size / rate)


def project(shares: Data) -> list[Data]:
    """A line for each case and number of processes."""
    alone = {row["case"]: row["ms"] for row in shares["rows"] if row["processes"] == 1}
    lines = []
    for row in shares["rows"]:
        case, count = CASES[row["case"]], row["processes"]
        size = case["bytes"] + 4 * row["parameters"]
        times = [row["ms"] + 1e3 * wire(count, case["calls"], size, slow) for slow in (1, 10)]
        line = {"case": row["case"], "processes": count, "share_ms": row["ms"]}
        line |= {"wire_ms": times[0] - row["ms"], "ms": times[0]}
        line["busy"] = min(count, case["limit"])
        line["speed_up"], line["slow_speed_up"] = (alone[row["case"]] / time for time in times)
        lines.append(line)
    return lines


def projection_table(shares: Data) -> str:
    columns = ["step", "GPUs", "with work", "its share", "the wire", "step", "speed-up"]
    columns += ["speed-up, network ten times slower"]
    lines = [
        [
            *(line["case"], f"{line['processes']:,}", line["busy"]),
            *(f"{line[key]:.2f} ms" for key in ("share_ms", "wire_ms", "ms")),
            *(f"{line[key]:.1f}" for key in ("speed_up", "slow_speed_up")),
        ]
        for line in project(shares)
    ]
    return numeric(columns, lines)


def wire_table(data: Data) -> str:
    """Bytes that one process sends in an all-reduce, counted and by the formula."""
    lines = [
        [
            *(row["tensor"], f"{row['bytes']:,}", row["processes"], f"{row['sent_each']:,}"),
            *(f"{row['ring']:,}", f"{row['ms']:.1f} ms"),
        ]
        for row in data["rows"]
    ]
    columns = ["tensor", "bytes", "processes", "sent by each", "formula", "time, two cores"]
    return numeric(columns, lines)
