"""Table 1, graph layout: ``results/table1.json`` from run files, and the tables made of it."""

import math
import re
import statistics
from collections.abc import Sequence

from table_data import (
    RESULTS,
    Data,
    archived,
    configurations,
    entry,
    numeric,
    published,
    runs_named,
    spread,
    summary,
)

from nestruct.training.recipes.plan import read_plan
from nestruct.wording import count, duration

# Groups of rows with one protocol each: what their runs are called, and what the table says.
GROUPS = {
    "no prior knowledge": ("", "**No prior knowledge**"),
    "pull": ("pull-", "**With the pull** †"),
    "published": ("published-", "**The paper's protocol** †"),
}
# A row of a group: what the paper calls the method, what its runs are called.
METHODS: dict[str, tuple[str, str]] = {
    "StructureNES": ("", "structure-nes"),
    "SST": ("SST", "sst"),
    "SST, temperature 0.5": ("", "sst-cold"),
    "ScoreNES": ("", "score-nes"),
    "REINFORCE, 8 samples": ("REINFORCE (multi-sample)", "reinforce-8"),
    "REINFORCE, 4 samples": ("REINFORCE (multi-sample)", "reinforce-4"),
    "REINFORCE, 2 samples": ("REINFORCE (multi-sample)", "reinforce-2"),
    "REINFORCE, 8 samples of the Gibbs law": ("", "reinforce-gibbs-8"),
    "REINFORCE, EMA": ("REINFORCE (EMA)", "reinforce-ema"),
    "REINFORCE, batch": ("REINFORCE (batch)", "reinforce-batch"),
    "NVIL": ("NVIL", "nvil"),
    "NVIL, its authors' averages": ("", "nvil-residuals"),
    "NES": ("NES", "nes"),
    "NES, a minibatch per pair": ("", "nes-per-pair"),
    "NES, a minibatch per pair, 90,000 steps": ("", "nes-per-pair-long"),
    "NES, a minibatch per pair, ranks": ("", "nes-per-pair-ranks"),
    "NES, 2,400 members, 2 examples per pair": ("", "nes-pairs-of-2"),
}
PLANS = {"no prior knowledge": "table1", "pull": "table1-pull", "published": "table1-published"}
# A row that stands for less than its plan has.
SHORT = {("published", "NES"): "NES, 1,000 of the 50,000 steps"}
COLUMNS = ("spanning-tree", "k-subset")
METRICS = ("f1_sample", "f1_map", "loss_published")
OPEN_LOOP = "loss_open_loop"  # runs before aef9171 lack it
TARGETS = (
    *(("f1_sample", 0.80), ("f1_sample", 0.90), ("f1_sample", 0.95)),
    *(("elbo", -1500.0), ("elbo", -1080.0), ("elbo", -500.0)),
)
CURVE = (500, 2000, 5000, 9000, 10000, 10500, 12000, 20000, 29500, 34000)
CUT = "pull-nes-per-pair-s0"
GOOD_START = 0.86  # F1 after 1,000 steps; the others are below 0.4
GOOD_OBJECTIVE = 1500.0  # after 1,000 steps; no start is between 1,372 and 1,795


def collect() -> Data:
    with archived("table1") as folders:
        runs = runs_named(folders)
    references: dict[str, Data] = {column: {} for column in COLUMNS}
    for run in runs.values():
        for label, values in ((run.scene or {}).get("references") or {}).items():
            references[run.config["model"]["structure"]][label] = values["f1"]
    entries = {n: entry(run, (*METRICS, OPEN_LOOP), curve=METRICS) for n, run in runs.items()}
    for name, values in tried().items():
        entries[name]["starts"] = values
    entries[CUT]["train_seconds"] = runs[CUT].records["train"][-1]["timing"]["seconds"]
    paper = {row["method"]: row for row in published("table1")["rows"]}
    rows = []
    for group, (prefix, _) in GROUPS.items():
        planned = {one.name for one in read_plan(PLANS[group]).entries}
        for label, (method, stem) in METHODS.items():
            for column, k in zip(COLUMNS, ("", "k-"), strict=True):
                names = named(entries, f"{k}{prefix}{stem}")
                if not names and f"{prefix}{stem}" not in planned:
                    continue
                found: Data = {"group": group, "row": label, "column": column, "runs": names}
                if names:
                    found |= summary([entries[name] for name in names], METRICS)
                printed = paper.get(method, {}).get(column, {})
                found["paper"] = {key: printed[key] for key in ("elbo", "f1") if key in printed}
                rows.append(found)
    return {
        "title": "Table 1: graph layout, 10 nodes, T = 10",
        "archives": ["table1-runs.tar.xz", "table1-search-runs.tar.xz"],
        "protocol": (
            "Test data at the step that was best on validation data. ELBO (minus loss_published) "
            "per node, one step ahead at one sampled structure, Gumbel KL over directed edges, no "
            "constant; F1 of that structure. Seconds are one run's, beside two others; of four "
            "starts, beside four or five others, all starts counted."
        ),
        "rows": rows,
        "without learning, F1 on validation data": references,
        "single starts": starts(),
        **configurations(runs),
        "runs": entries,
    }


def tried() -> dict[str, list[float]]:
    """What the starts of a run came to on validation data, as it was printed; the least is kept."""
    text = (RESULTS / "table1-starts.txt").read_text(encoding="utf-8")
    pattern = r"Start \d of \d: validation loss_published ([0-9.,]+) after"
    return {
        block.partition("\n")[0]: [float(v.replace(",", "")) for v in re.findall(pattern, block)]
        for block in re.split(r"^(?=\S+-s\d+$)", text, flags=re.MULTILINE)[1:]
    }


def starts() -> Data:
    """StructureNES without the pull after 1,000 steps: which of 24 starts find the trees."""
    with archived("table1-search") as folders:
        runs = runs_named({n: f for n, f in folders.items() if n.startswith("starts/start-")})
    found = [
        {
            "run": name,
            "seed": run.config["seed"],
            "commit": run.environment["commit"],
            "steps": run.validation[-1]["step"],
            "seconds": run.validation[-1]["timing"]["seconds"],
            **{metric: run.validation[-1][metric] for metric in METRICS},
        }
        for name, run in sorted(runs.items(), key=lambda item: item[1].config["seed"])
    ]
    good = [start for start in found if start["f1_sample"] >= GOOD_START]
    bad = [start for start in found if start["f1_sample"] < GOOD_START]
    return {
        "good": len(good),
        "of": len(found),
        "f1_sample": {kind: ends(group, "f1_sample") for kind, group in _kinds(good, bad)},
        "loss_published": {
            kind: ends(group, "loss_published") for kind, group in _kinds(good, bad)
        },
        "starts": found,
        "alone": "300 steps by themselves, starts/alone-structure-nes: 5.5 ms a step",
    }


def _kinds(good: list[Data], bad: list[Data]) -> tuple[tuple[str, list[Data]], ...]:
    return ("good", good), ("bad", bad)


def ends(group: Sequence[Data], metric: str) -> list[float]:
    values = [start[metric] for start in group]
    return [min(values), max(values)]


def named(entries: Data, stem: str) -> list[str]:
    """The runs of one configuration, in order of their seeds."""
    return [name for name in sorted(entries) if name.rpartition("-s")[0] == stem]


def elbo(value: float) -> str:
    return f"{value:,.0f}"


def percent(value: float) -> str:
    return f"{value:.1f}"


def ours(data: Data, cell: Data) -> tuple[str, str, str]:
    """ELBO, open-loop ELBO and F1 of a cell, in words."""
    runs = [data["runs"][name]["test"] for name in cell["runs"]]
    if not runs:
        return "not run", "", "not run"
    far = [-run[OPEN_LOOP] for run in runs if OPEN_LOOP in run]
    return (
        spread([-run["loss_published"] for run in runs], elbo),
        spread(far, elbo) if far else "",
        spread([100 * run["f1_sample"] for run in runs], percent),
    )


def printed(cell: Data, metric: str) -> str:
    numbers = cell["paper"].get(metric)
    return f"{numbers[0]:,} ± {numbers[1]}" if numbers else ""


def cells(data: Data, group: str) -> dict[str, list[Data]]:
    """The cells of a group that were run, by their row: trees first, then any n - 1 edges."""
    found: dict[str, list[Data]] = {}
    for cell in data["rows"]:
        if cell["group"] == group:
            found.setdefault(cell["row"], []).append(cell)
    return {label: row for label, row in found.items() if any(cell["runs"] for cell in row)}


def main_table(data: Data) -> str:
    far = [_has_open_loop(data, column) for column in COLUMNS]
    columns = ["", *_titles("ELBO, paper", far[0], "ELBO, ours", "F1, paper", "F1, ours")]
    columns += _titles("n-1 edges: ELBO, paper", far[1], "ours", "F1, paper", "ours")
    blank = [""] * (len(columns) - 1)
    lines, missing = [], []
    best = {column: _best(data, column)["runs"] for column in COLUMNS}
    for group, (_, title) in GROUPS.items():
        shown = cells(data, group)
        lines.append([title, *blank])
        for label, row in shown.items():
            line = [SHORT.get((group, label), label)]
            for cell, with_far in zip(row, far, strict=False):
                near, open_loop, f1 = (
                    f"**{text}**" if text and cell["runs"] == best[cell["column"]] else text
                    for text in ours(data, cell)
                )
                line += [printed(cell, "elbo"), near, *[open_loop] * with_far]
                line += [printed(cell, "f1"), f1]
            lines.append(line + [""] * (len(columns) - len(line)))
        rest = {cell["row"] for cell in data["rows"] if cell["group"] == group} - set(shown)
        missing.append([label for label in METHODS if label in rest])
    references = data["without learning, F1 on validation data"]["k-subset"]
    tree = percent(100 * references["shortest tree without learning"])
    pairs = percent(100 * references["nearest pairs without learning"])
    lines.append(["**No learning**", *blank])
    last = [["", "", *[""] * each, ""] for each in far]  # all of a column but its F1
    label = "shortest tree through the last three positions"
    lines.append([label, *last[0], tree, *last[1], tree])
    lines.append(["nine nearest pairs", *last[0], "", *last[1], pairs])
    first = ["untrained model"]
    for stem, with_far in zip(("pull-structure-nes", "k-pull-structure-nes"), far, strict=True):
        curves = [data["runs"][name]["curve"] for name in named(data["runs"], stem)]
        first += ["", spread([-curve["loss_published"][0] for curve in curves], elbo)]
        f1 = spread([100 * curve["f1_sample"][0] for curve in curves], percent)
        first += [*[""] * with_far, "", f1]
    said = ["without prior knowledge", "with the pull", "by the paper's protocol"]
    left = [
        f"Not run yet {how}: {'; '.join(m)}." for how, m in zip(said, missing, strict=True) if m
    ]
    return numeric(columns, [*lines, first]) + "\n" + " ".join(left) + "\n"


def _best(data: Data, column: str) -> Data:
    run = [cell for cell in data["rows"] if cell["column"] == column and cell["runs"]]
    return max(run, key=lambda cell: cell["f1_sample"]["mean"])


def _has_open_loop(data: Data, column: str) -> bool:
    names = [name for cell in data["rows"] if cell["column"] == column for name in cell["runs"]]
    return any(OPEN_LOOP in data["runs"][name]["test"] for name in names)


def _titles(paper: str, far: bool, ours: str, *f1: str) -> list[str]:
    return [paper, ours, *["open loop"] * far, *f1]


def cost_table(data: Data) -> str:
    columns = ["", "steps", "decoder evaluations", "wall-clock"]
    columns += ["n-1 edges: steps", "decoder evaluations", "wall-clock"]
    lines = []
    for group, (_, title) in GROUPS.items():
        lines.append([title, *[""] * 6])
        for label, row in cells(data, group).items():
            line = [label, *(text for cell in row for text in _cost(data, cell["runs"]))]
            lines.append(line + [""] * (len(columns) - len(line)))
    return numeric(columns, lines)


def _cost(data: Data, names: Sequence[str]) -> list[str]:
    if not names:
        return ["", "", ""]
    runs = [data["runs"][name] for name in names]
    steps, spent, seconds = (
        statistics.fmean(run[key] for run in runs) for key in ("steps", "decoded", "seconds")
    )
    if names == [CUT]:  # what came after its best step was stopped, and its test ran on a CPU
        steps, seconds = runs[0]["best_step"], runs[0]["train_seconds"]
    return [f"{steps:,.0f}", count(spent), duration(seconds)]


def examples(data: Data, name: str) -> int:
    """How many examples one evaluation of a run decodes."""
    run = data["runs"][name]
    return run["decoded"] // run["evaluations"]


def reached(data: Data, names: Sequence[str], metric: str, target: float) -> tuple[float, float]:
    """Decodings and seconds to a target on validation data, the median over seeds."""
    spent = []
    for name in names:
        curve, size = data["runs"][name]["curve"], examples(data, name)
        values = curve["f1_sample"] if metric != "elbo" else [-v for v in curve["loss_published"]]
        first = next((k for k, value in enumerate(values) if value >= target), None)
        known = first is not None
        spent.append(
            (curve["evaluations"][first] * size, curve["seconds"][first])
            if known
            else (math.inf, math.inf)
        )
    decodings, seconds = zip(*spent, strict=True)
    return statistics.median(decodings), statistics.median(seconds)


def starts_table(data: Data) -> str:
    """How many of a row's single starts are in the good basin after 1,000 steps."""
    lines = []
    for label, row in cells(data, "no prior knowledge").items():
        tried = [data["runs"][name].get("starts", []) for name in row[0]["runs"]]
        values = [value for starts in tried for value in starts]
        if values:
            good = sum(value < GOOD_OBJECTIVE for value in values)
            kept = spread([-min(starts) for starts in tried if starts], elbo)
            lines.append([label, f"{good} of {len(values)}", kept])
    return numeric(["", "good starts", "ELBO of the start that is kept"], lines)


def target_table(data: Data) -> str:
    columns = ["", "F1 80", "F1 90", "F1 95", "ELBO -1500", "ELBO -1080", "ELBO -500"]
    costs = {
        f"{label}, {group}": [reached(data, row[0]["runs"], *target) for target in TARGETS]
        for group in GROUPS
        for label, row in cells(data, group).items()
        if row[0]["runs"]
    }
    lines = []
    for label, reaches in costs.items():
        line = [label]
        for k, (spent, seconds) in enumerate(reaches):
            if math.isinf(spent):
                line.append("-")
                continue
            fewest, quickest = (min(row[k][which] for row in costs.values()) for which in (0, 1))
            texts = (count(spent), spent == fewest), (f"{seconds:.0f} s", seconds == quickest)
            if all(best for _, best in texts):
                line.append(f"**{texts[0][0]}, {texts[1][0]}**")
            else:
                line.append(", ".join(f"**{text}**" if best else text for text, best in texts))
        lines.append(line)
    return numeric(columns, lines)


def curve_table(data: Data) -> str:
    curve, size = data["runs"][CUT]["curve"], examples(data, CUT)
    places = [curve["step"].index(step) for step in CURVE]
    head = ["decodings", *(count(curve["evaluations"][k] * size) for k in places)]
    lines = [
        ["step", *(f"{step:,}" for step in CURVE)],
        ["F1 (validation)", *(percent(100 * curve["f1_sample"][k]) for k in places)],
        ["ELBO", *(elbo(-curve["loss_published"][k]) for k in places)],
    ]
    return numeric(head, lines)
