"""The tables of docs/categorical.md, from run files: ``benchmarks/categorical_tables.py``.

Reads ``results/categorical`` and replaces what stands between the markers in the page. Test values
at the step that was best on validation (by the true ELBO), with their sign: higher is better.
"""

from pathlib import Path

from nestruct.reports import Run, read_run

ROOT = Path(__file__).parent.parent
RUNS, PAGE = ROOT / "results" / "categorical", ROOT / "docs" / "categorical.md"
BEGIN, END = "<!-- tables -->\n", "<!-- end of tables -->\n"
# Table 3 of the paper: hidden size: (parameters, SST, NES, N).
PAPER = {
    16: ("25K", -240.48, -239.40, 60),
    32: ("50K", -239.49, -231.02, 60),
    64: ("100K", -233.13, -232.40, 90),
    128: ("200K", -233.92, -233.99, 100),
    256: ("400K", -239.02, -234.29, 100),
    512: ("800K", -241.03, -234.86, 100),
}


def read(name: str) -> Run | None:
    return read_run(RUNS / name) if (RUNS / name).is_dir() else None


def elbo(run: Run | None, metric: str = "loss_mode") -> str:
    value = None if run is None else run.value("test", metric)
    return "not run" if value is None else f"{-value:.2f}"


def row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def table3() -> list[str]:
    lines = [
        row("parameters", "SST, paper", "SST", "NES, paper", "NES, same N", "N", "NES, true ELBO"),
        row(*["---"] * 7),
    ]
    for hidden, (size, sst, nes, number) in PAPER.items():
        ours = read(f"table3-nes-{hidden}")
        lines.append(
            row(
                *(size, f"{sst:.2f}", elbo(read(f"table3-sst-{hidden}")), f"{nes:.2f}"),
                *(elbo(ours), number, elbo(ours, "loss")),
            )
        )
    return lines


def population_sizes() -> list[str]:
    sizes = (20, 40, 60, 90, 100, 120, 180)
    lines = [row("parameters", *(f"N = {n}" for n in sizes)), row(*["---"] * (len(sizes) + 1))]
    for hidden, (size, _, _, number) in PAPER.items():
        names = [f"table3-nes-{hidden}" + ("" if n == number else f"-n{n}") for n in sizes]
        lines.append(row(size, *(elbo(read(name)) for name in names)))
    return lines


def unstructured() -> list[str]:
    lines = [
        row("data", "method", "paper's form", "true ELBO", "log p(x)", "best epoch", "seconds"),
        row(*["---"] * 7),
    ]
    for data, steps in (("fashion", 390), ("kmnist", 390), ("omniglot", 125)):
        for method in ("nes", "unbiased", "gsm"):
            lines.append(_one(f"{data}-{method}", data, method, steps))
    return lines


def boundedness() -> list[str]:
    lines = [
        row("data", "M", "paper's form", "true ELBO", "log p(x)", "best epoch", "seconds"),
        row(*["---"] * 7),
    ]
    lines += [_one(f"bound-{bound}", "fashion", str(bound), 390) for bound in (1, 3, 9)]
    return [*lines, _one("fashion-nes", "fashion", "none", 390)]


def _one(name: str, data: str, label: str, steps_per_epoch: int) -> str:
    run = read(name)
    if run is None:
        return row(data, label, *["not run"] * 5)
    seconds = max(run.timings("seconds"))
    epoch = (run.best_step or 0) // steps_per_epoch
    values = [elbo(run, metric) for metric in ("loss_mode", "loss", "nll")]
    return row(data, label, *values, epoch, round(seconds))


def main() -> None:
    sections = {
        "Table 3: FashionMNIST, 300 epochs, one seed, the paper's form of the test ELBO": table3(),
        "NES at other population sizes, the same": population_sizes(),
        "Unstructured tasks: 784-300-10, NES with N = 300, 300 epochs, one seed": unstructured(),
        "Boundedness: NES as above with log-probabilities of pixels bounded at -M": boundedness(),
    }
    parts = ["\n".join([f"\n**{title}**\n", *lines]) for title, lines in sections.items()]
    text = PAGE.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    PAGE.write_text(f"{head}{BEGIN}{chr(10).join(parts)}\n\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
