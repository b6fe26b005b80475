"""What many GPUs would give, computed: one process's share of a step, plus what crosses the wire.

A share takes a fixed time, and a time for each of its members or examples; both come from steps
that were measured on one GPU. The number of collectives and their bytes are counted in a test
(tests/estimators/test_processes.py), and the bytes that an all-reduce sends are checked with many
processes on one machine (`benchmarks/wire.py`). The network is **assumed**, because we have had one
GPU at a time: see `NETWORK`. `benchmarks/tables.py` writes the tables.
"""

import math
from dataclasses import dataclass

import torch
from table_data import Data, numeric

GPUS = (1, 8, 64, 1000)
NODE = 8  # GPUs
# Assumed, of the order that NCCL's own tests show on such machines: seconds before the first byte
# of an all-reduce within a node, per level of a tree between nodes, and bytes per second.
NETWORK = {"start": 30e-6, "level": 10e-6, "within": 100e9, "between": 25e9}


@dataclass
class Case:
    """A step: what it costs, what it sends.

    Args:
        unit: What is shared, and ``whole``, how many there are of it.
        fixed: Milliseconds that every process needs.
        each: Milliseconds for each of the shared.
        calls: Collectives: losses, gradient, whether anyone asked to stop; two for each layer of
            batch normalisation where examples are shared.
        bytes: Of all of them.
    """

    name: str
    unit: str
    whole: int
    fixed: float
    each: float
    calls: int
    bytes: int

    def share(self, processes: int) -> float:
        return self.fixed + self.each * math.ceil(self.whole / processes)

    def wire(self, processes: int, slower: float = 1.0) -> float:
        """Milliseconds of a step's collectives: a start each, and the bytes of a ring."""
        if processes == 1:
            return 0.0
        nodes = math.ceil(processes / NODE)
        start = NETWORK["start"] + 2 * math.ceil(math.log2(nodes)) * NETWORK["level"]
        rate = NETWORK["within"] if nodes == 1 else NETWORK["between"]
        moved = 2 * (processes - 1) / processes * self.bytes
        return 1e3 * slower * (self.calls * start + moved / rate)


def cases(shares: Data, steps: Data, parser: Data) -> list[Case]:
    """The three steps, from what was measured of them."""
    rows = [row for row in shares["rows"] if row["case"] == "NES, Table 1"]
    pairs = [row["whole"] // row["processes"] for row in rows]
    line = torch.tensor([[1.0, n] for n in pairs], dtype=torch.float64)
    times = torch.tensor([[row["ms"]] for row in rows], dtype=torch.float64)
    weight = 1 / times  # relative errors count alike
    fixed, each = torch.linalg.lstsq(weight * line, weight * times).solution[:, 0].tolist()
    parameters = rows[0]["parameters"]
    ms = {row["case"]: row["fused_ms"] for row in steps["rows"]}
    many, few = (ms[f"StructureNES, {n} samples, 1 step"] for n in (16, 8))
    whole = 1e3 * parser["seconds"]["median"]
    small = 20.1  # N = 4, 32 sentences of 10 words: results/scaling-cuda-eager.txt
    sums = 8 * 8 * 513  # 256 features, twice, and their number; four layers, both ways
    return [
        Case("NES, Table 1", "pairs", 300, fixed, each, 3, 8 * 601 + 4 * parameters),
        Case(
            *("StructureNES, Table 1", "examples", 128, 2 * few - many, 2 * (many - few) / 128, 11),
            16 * 16 * 128 + sums + 4 * parameters,
        ),
        Case(
            *("NES, parser", "pairs", 200, small, (whole - small) / 200, 3),
            8 * 401 + 4 * int(parser["needed"]["normals"]) // (parser["options"]["members"] // 2),
        ),
    ]


def constants_table(*measured: Data) -> str:
    columns = ["step", "shared", "every process, ms", "for each of them, ms", "collectives"]
    lines = [
        [c.name, f"{c.whole} {c.unit}", f"{c.fixed:.2f}", f"{c.each:.4f}", c.calls, f"{c.bytes:,}"]
        for c in cases(*measured)
    ]
    return numeric([*columns, "bytes"], lines)


def projection_table(*measured: Data) -> str:
    columns = ["step", "GPUs", "with work", "share, ms", "wire, ms", "step, ms", "speed-up"]
    lines = []
    for case in cases(*measured):
        for count in GPUS:
            share, alone = case.share(count), case.share(1)
            both = [share + case.wire(count, slower) for slower in (1, 10)]
            lines.append(
                [
                    *(case.name, f"{count:,}", min(count, case.whole), f"{share:.2f}"),
                    *(f"{case.wire(count):.2f}", f"{both[0]:.2f}"),
                    *(f"{alone / time:.1f}" for time in both),
                ]
            )
    return numeric([*columns, "speed-up, slow network"], lines)


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
