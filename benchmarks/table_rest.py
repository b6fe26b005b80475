"""The smaller tables: the demo, Figure 2, the quality of gradients, times of steps."""

from collections.abc import Sequence
from statistics import median

from table_data import (
    Data,
    archived,
    configurations,
    entry,
    numeric,
    plain,
    runs_named,
    summary,
    table,
)

from nestruct.benches.scaling_summary import step_seconds
from nestruct.data import GraphLayout
from nestruct.models.structured import f1
from nestruct.reports import Run

TRAINED = ("untrained", "early", "trained")
ELSEWHERE = ("argmax", "labels")  # what methods see that do not aim at an expected loss
# The recipes of the demo's page, and how the names of their runs begin.
DEMO = {
    "graph-layout-10": "seed=",
    "graph-layout-5": "graph-layout-5/seed",
    "graph-layout-5-nes": "graph-layout-demo/seed=",  # as it was called then
}


def collect_demo() -> Data:
    with archived("demo", "small") as folders:
        runs = runs_named(folders)
    entries = {}
    for name, run in runs.items():
        metric = "uas" if name.startswith("pars") else "f1_map"
        entries[name] = entry(run, ["f1_map", "uas", "loss"], curve=[metric])
    rows = []
    for recipe, stem in DEMO.items():
        names = [name for name in entries if name.startswith(stem)]
        own = summary([entries[name] for name in names], ["f1_map"])
        rows.append(
            {"row": recipe, "runs": names, **own, "without learning": _without(runs[names[0]])}
        )
    return {
        "title": "The demo: ten particles by StructureNES; five, also by NES; other small runs",
        "archives": ["demo-runs.tar.xz", "small-runs.tar.xz"],
        "protocol": "F1 of the most likely tree on test data, at the step best on validation data.",
        "rows": rows,
        **configurations(runs),
        "runs": entries,
    }


def _without(run: Run) -> float:
    """F1 of the shortest tree on the test data of a run."""
    sizes = {key: value for key, value in run.config["data"].items() if key != "name"}
    layout = GraphLayout(**sizes)
    test = layout.splits()["test"]
    return float(f1(layout.baselines(test)["shortest tree without learning"], test["z"]).mean())


def demo_table(data: Data) -> str:
    """What make demo trains, and the two tasks of five particles."""
    columns = [[data["runs"][name] for name in row["runs"]] for row in data["rows"]]

    def ends(values: Sequence[float], say: str) -> str:
        low, high = (format(value, say) for value in (min(values), max(values)))
        return low if low == high else f"{low} to {high}"

    both = "encoder and decoder; the solver is a black box"
    lines = [
        ["particles", "10", "5", "5"],
        ["differentiated", both, both, "nothing"],
        [
            "**shortest tree, without learning**: F1",
            *(f"{r['without learning']:.3f}" for r in data["rows"]),
        ],
        [
            "**trained**: F1 of the seeds 0, 1, 2",
            *(", ".join(f"{r['test']['f1_map']:.3f}" for r in runs) for runs in columns),
        ],
        [
            "at step 0: F1 on validation data",
            *(ends([r["curve"]["f1_map"][0] for r in runs], ".2f") for runs in columns),
        ],
        [
            "forward evaluations of a member or sample",
            *(ends([r["evaluations"] for r in runs], ",") for runs in columns),
        ],
        [
            "time",
            *(ends([r["seconds"] for r in runs], ".3g") + " s" for runs in columns),
        ],
        ["machine", "one thread of two busy cores", *["two quiet cores"] * 2],
    ]
    methods = ("StructureNES", "StructureNES", "NES")
    head = [f"{m} (`{r['row']}`)" for m, r in zip(methods, data["rows"], strict=True)]
    return table(["", *head], lines, "|---|---|---|---|")


def gradient_table(data: Data) -> str:
    """Cosine, variance and bias of every estimator at three checkpoints; the best is bold."""
    cells = {(cell["row"], cell["checkpoint"]): cell for cell in data["table"]}
    lines = []
    for label in dict.fromkeys(cell["row"] for cell in data["table"]):
        line = [label]
        for when in TRAINED:
            cell = cells[label, when]
            column = [cells[key] for key in cells if key[1] == when]
            high = cell["cosine"] == max(c["cosine"] for c in column)
            low = cell["variance"] is not None and cell["variance"] == min(
                c["variance"] for c in column if c["variance"] is not None
            )
            cosine, variance = _cosine(cell["cosine"]), _variance(cell["variance"])
            line += [f"**{cosine}**" if high else cosine, f"**{variance}**" if low else variance]
            line.append(_bias(cell))
        lines.append(line)
    columns = [""]
    for when in TRAINED:
        columns += [f"{when}: cosine", "variance", "bias"]
    return numeric(columns, lines)


def scoreboard_gradient_table(data: Data, task: str) -> str:
    """One task's methods beside the exact gradient; those that aim elsewhere come last."""
    cells = {(row["method"], row["stage"]): row for row in data["rows"] if row["task"] == task}
    laws = {method: row["law"] for (method, _), row in cells.items()}
    lines = []
    for method in sorted(laws, key=lambda method: laws[method] in ELSEWHERE):
        first = cells[method, TRAINED[0]]
        line = [method, first["law"], f"{first['decoded']:.0f}", f"{first['solved']:.0f}"]
        for when in TRAINED:
            cell = cells[method, when]
            line.append(f"{cell['cosine']:z.2f} ({cell['cosine_of_mean']:z.2f})")
            if first["law"] == "labels":
                line += ["", ""]
            else:
                below, bias = cell["bias_below"], cell["bias"]
                line.append(_variance(cell["variance"]))
                line.append(f"< {_size(below)}" if below is not None else _size(bias))
        lines.append(line)
    columns = ["method", "law", "decodings", "solver calls"]
    for when in TRAINED:
        columns += [f"{when}: cosine (of the mean)", "variance", "bias"]
    return numeric(columns, lines, text=2)


def _size(value: float | None) -> str:
    return "-" if value is None else f"{value:.{1 if value >= 1 else 2}f}"


def _cosine(value: float) -> str:
    if value < 0.0005:
        return "< 0.0005"  # what 50 trials can tell from zero
    return f"{value:.{4 if value < 0.01 else 3 if value >= 0.99 else 2}f}"


def _variance(value: float | None) -> str:
    if value is None:
        return "-"
    if value >= 1e5:
        return f"{value:.1e}".replace("e+0", "e")
    return f"{value:.{0 if value >= 10 else 1 if value >= 1 else 2 if value >= 0.01 else 3}f}"


def _bias(cell: Data) -> str:
    if cell["bias_below"] is not None:
        return f"< {cell['bias_below']:g}"
    return "-" if cell["bias"] is None else f"{cell['bias']:.2f}"


def scaling_table(data: Data) -> str:
    """Figure 2 in numbers: a step at three sizes, its growth, what NES does meanwhile."""
    on_gpu = data["protocol"]["device"] != "cpu"
    middle = 130 if on_gpu else 100
    lines = []
    for line in data["summary"]:
        few = data["protocol"]["few_members"]
        label = f"{line['task']}, {line['method']}"
        label += {"NES": f", N = {line['members']}", "REINFORCE": " by MCMC"}.get(
            line["method"], ""
        )
        extrapolated = line["extrapolated_sizes"]
        if extrapolated:
            label += ", extrapolated" + (f" from n = {min(extrapolated)} on" if on_gpu else "")
        growth = f"{line['growth']['exponent']:.1f}"
        if not on_gpu:
            ends = f"({line['growth']['low']:.2f} to {line['growth']['high']:.2f})"
            growth = f"{line['growth']['exponent']:.2f} {ends}"
            growth = "as above" if line["members"] > few else growth
        meanwhile = line.get("members_meanwhile")
        shown = "" if meanwhile is None else format(meanwhile, ".0f" if on_gpu else ".1f")
        times = [_seconds(data, line, size, on_gpu) for size in (10, middle, 250)]
        lines.append([label, *times, growth, shown])
    if on_gpu:
        exponent = "exponent, n >= 130 (parsing NES and DPP: three sizes), n >= 100 (others: four)"
        columns = ["seconds, one H200", "n = 10", "n = 130", "n = 250", exponent]
    else:
        columns = ["core-seconds", "n = 10", "n = 100", "n = 250", "exponent, n >= 100"]
    columns.append("members of NES meanwhile, n = 250")
    return table(columns, lines, "|---" * len(columns) + "|")


def _seconds(data: Data, line: Data, size: int, on_gpu: bool) -> str:
    key = (line["task"], line["method"], line["members"], size)
    found = (c for c in data["cells"] if (c["task"], c["method"], c["members"], c["size"]) == key)
    value = median(step_seconds(next(found)))
    if not on_gpu and size == 100:
        return f"{value:.{2 if value < 10 else 0}f}"
    digits = 1 if value >= 1 else 2 if value >= 0.1 else 3 if value >= 0.01 else 4
    return f"{value:,.{0 if value >= 100 else digits}f}"


def processes_table(data: Data) -> str:
    """Milliseconds of a step that one, two and four processes share."""
    keys = ("best_ms", "median_ms", "cpu_ms")
    lines = [
        [
            *(line["case"], line["processes"], *(f"{line[key]:.0f}" for key in keys)),
            *(line["calls_per_step"], f"{line['bytes_per_step']:,}", f"{line['undivided']:.0%}"),
        ]
        for line in data["rows"]
    ]
    columns = ["step", "processes", "best, ms", "median, ms", "processor time of one process, ms"]
    columns += ["collectives", "bytes", "does not divide"]
    return table(columns, lines, "|---" * len(columns) + "|")


def relational_table(data: Data) -> str:
    """Milliseconds of a step of Table 1's model, and what the arithmetic alone would take."""

    def say(value: float | None) -> str:
        return "" if value is None else f"{value:.{0 if value >= 100 else 1}f} ms"

    keys = ("plain_ms", "fused_ms", "floor_ms")
    lines = [[line["case"], *(say(line[key]) for key in keys)] for line in data["rows"]]
    return numeric(["one step", "plain (TF32)", "fused", "floor of the arithmetic"], lines)


def kernel_table(data: Data) -> str:
    """Milliseconds of NES's steps on Table 1's model by its kernels, and their floors."""
    floors = {}
    for stage in data["stages"]:
        parts = [map(float, text.split(" / ")) for text in stage["floors"].values()]
        floors[stage["case"]] = [sum(column) for column in zip(*parts, strict=True)]
    lines = []
    for row in data["steps"]:
        if "decodings" in row:
            rate = row["decodings"] / row["ms"] / 1e3
            work, memory = (f"{value:.1f} ms" for value in floors[row["case"]])
            lines.append([row["case"], f"{row['ms']:.1f} ms", f"{rate:.2f}", work, memory])
    columns = ["one step of NES", "ours", "million decodings a second"]
    return numeric([*columns, "floor of the arithmetic", "floor of memory"], lines)


def cosine_table(data: Data) -> str:
    """One estimate's cosine to its mean at every tenfold N: measured, and by the formula."""
    stages: dict[str, list[Data]] = {}
    for row in data["rows"]:
        stages.setdefault(f"{row['stage'].split(',')[0]}, sigma {row['sigma']}", []).append(row)
    lines = [["members", *stages]]
    populations = sorted({row["population"] for row in data["rows"]})
    for population in (n for n in populations if str(n).rstrip("0") == "1"):
        found = [{r["population"]: r for r in rows}.get(population) for rows in stages.values()]
        cells = (f"{r['none']['cosine']:.3f} ({r['predicted']:.3f})" if r else "" for r in found)
        lines.append([f"{population:,}", *cells])
    firsts = [rows[0] for rows in stages.values()]
    lines.append(["V", *(f"{r['V']:,.0f} ± {r['V_error']:,.0f}" for r in firsts)])
    lines.append(["squared length of the mean", *(f"{r['mean_square']:,.0f}" for r in firsts)])
    limits = (f"{r['cosine_of_mean_to_exact']:.2f}" for r in firsts)
    lines.append(["cosine of the mean to the exact gradient", *limits])
    return numeric(lines[0], lines[1:])


def layer_table(data: Data) -> str:
    """What a layer takes, ours beside the other side of each comparison."""
    lines = []
    for row in data["rows"]:
        (ours, mine), (other, theirs) = row["milliseconds"].items()
        low, high = row["quartiles"]
        ratio = f"{row['ratio']:.2f} ({low:.2f} to {high:.2f})"
        sides = [f"{name} {ms:.3f}" for name, ms in ((ours, mine), (other, theirs))]
        lines.append([row["comparison"], row["batch"], *sides, ratio])
    return plain(["comparison", "batch", "one side, ms", "other side, ms", "ratio"], lines)
