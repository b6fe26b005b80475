"""Figure 2 of the paper from a file of measurements: one panel for each task, both axes in logs."""

from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from nestruct.benches.growth import fit_growth
from nestruct.benches.scaling_summary import Measurements, step_seconds
from nestruct.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which the colour-blind can tell apart; markers tell methods apart too.
_LOOKS = {
    "NES": ("#0072B2", "o"),
    "SST": ("#D55E00", "s"),
    "DPP": ("#D55E00", "s"),
    "SparseMAP": ("#D55E00", "s"),
    "REINFORCE": ("#999999", "^"),
}
_TITLES = {
    "relational": "relational model (n trajectories)",
    "projective": "projective parsing (n words)",
    "non-projective": "non-projective parsing (n words)",
}


def draw_scaling(record: Measurements, path: Path) -> None:
    """Draws seconds of a step on one GPU, or core-seconds, against n.

    A line is the median over seeds, its band smallest to largest. Hollow marks are extrapolated
    from fewer members. Dotted: NES with N = 4 over four, the paper's one member on each GPU.
    """
    try:
        import matplotlib
    except ImportError:
        raise InputError(
            "The figure needs matplotlib: pip install nestruct[plots]; the measurements are kept."
        ) from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    tasks = [task for task in _TITLES if any(c["task"] == task for c in _measured(record))]
    if not tasks:
        raise InputError("There is nothing to draw: no measurement has been made yet.")
    width = 1.2 + 4.6 * len(tasks)
    figure, places = plt.subplots(
        1, len(tasks), figsize=(width, 5.2), layout="constrained", squeeze=False
    )
    for place, task in zip(places[0], tasks, strict=True):
        _draw_task(place, record, task)
    protocol = record["protocol"]
    on_cpu = protocol["device"] == "cpu"
    unit = "core-seconds" if on_cpu else "seconds on one device"
    places[0][0].set_ylabel(f"one training step, {unit}")
    threads = "one thread" if protocol["threads"] == 1 else f"{protocol['threads']} threads"
    where = f"a CPU, {threads}" if on_cpu else protocol["device"]
    figure.suptitle(f"One training step against n, on {where}")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _measured(record: Measurements) -> list[dict[str, Any]]:
    return [cell for cell in record["cells"] if cell["seconds"]]


def _draw_task(place: "Axes", record: Measurements, task: str) -> None:
    cells = [cell for cell in _measured(record) if cell["task"] == task]
    few = record["protocol"]["few_members"]
    for method, members in dict.fromkeys((c["method"], c["members"]) for c in cells):
        mine = [c for c in cells if (c["method"], c["members"]) == (method, members)]
        times = [step_seconds(cell) for cell in mine]
        sizes, middle = [cell["size"] for cell in mine], [median(values) for values in times]
        colour, marker = _LOOKS[method]
        growth = fit_growth(sizes, middle)
        name = f"NES, N = {members}" if method == "NES" else method
        grows = "" if growth is None else f"   $n^{{{growth.exponent:.1f}}}$"
        line = "--" if method == "NES" and members != few else "-"
        place.plot(sizes, middle, line, color=colour)
        for hollow in (False, True):
            shown = [k for k, c in enumerate(mine) if (c["timed_members"] != members) == hollow]
            place.plot(
                [sizes[k] for k in shown],
                [middle[k] for k in shown],
                marker,
                color=colour,
                markersize=5,
                markerfacecolor="white" if hollow else colour,
            )
        place.plot([], [], line, marker=marker, color=colour, markersize=5, label=name + grows)
        low, high = [min(values) for values in times], [max(values) for values in times]
        place.fill_between(sizes, low, high, color=colour, alpha=0.15, linewidth=0)
        if method == "NES" and members == few:
            quarter = [seconds / few for seconds in middle]
            unit = "cores" if record["protocol"]["device"] == "cpu" else "devices"
            label = f"NES, N = {few}, on {few} {unit} (ideal)"
            place.plot(sizes, quarter, ":", color=colour, label=label)
    if any(cell["timed_members"] != cell["members"] for cell in cells):
        place.plot([], [], "o", color="grey", markerfacecolor="white", label="extrapolated")
    place.set(xscale="log", yscale="log", xlabel="n", title=_TITLES[task])
    place.set_xticks([10, 20, 50, 100, 250], ["10", "20", "50", "100", "250"])
    place.minorticks_off()
    place.spines[["top", "right"]].set_visible(False)
    place.grid(alpha=0.25)
    place.legend(
        frameon=False, fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.14)
    )
