"""The table of solvers beside their peers, from what `solvers.py` measured."""

from typing import Any

from table_data import Data, numeric

SIZES = (25, 50, 100)
NO_PEERS = ("topk",)  # a floor: it does not write the answer
NAMES = {"supar": "SuPar", "plain": "plain torch"}
SMALL = 128  # instances: below that a launch on a GPU is most of what is timed


def main_table(data: Data) -> str:
    """Microseconds per instance, and how many times as long the best peer takes; by conditions."""
    text = []
    for conditions in dict.fromkeys(_conditions(session) for session in data["sessions"]):
        same = [i for i, each in enumerate(data["sessions"]) if _conditions(each) == conditions]
        rows = [row for row in data["rows"] if row["session"] in same]
        if rows:
            on_gpu = "gpu" in data["sessions"][same[0]]
            used = [data["sessions"][i] for i in same if any(r["session"] == i for r in rows)]
            days = ", ".join(sorted({session["date"][:10] for session in used}))
            commits = ", ".join(dict.fromkeys(each.get("commit") or "not noted" for each in used))
            said = f"Measured with {conditions}, {days}, commit {commits}."
            text.append(f"{_one_table(rows, on_gpu)}\n{said}\n")
    return "\n".join(text)


def _conditions(session: dict[str, Any]) -> str:
    if "gpu" in session:
        return f"one {session['gpu']}"
    threads = "one thread" if session["threads"] == 1 else f"{session['threads']} threads"
    by_process = session.get("clock") == "process"
    return f"{threads} of {session['cpu']}, {'CPU time' if by_process else 'wall-clock'}"


def _one_table(rows: list[dict[str, Any]], on_gpu: bool) -> str:
    lines: list[list[str]] = []
    missed: list[str] = []
    small: list[str] = []
    for problem in dict.fromkeys(row["problem"] for row in rows):
        cells, peers, below, bar = [], [], [], ""
        for n in SIZES:
            here = [row for row in rows if (row["problem"], row["n"]) == (problem, n)]
            own = [row for row in here if row["solver"] == "ours"]
            others = [row for row in here if row["solver"] not in ("ours", *NO_PEERS)]
            if not own:
                cells += ["", ""]
                continue
            best = min(others, key=lambda row: row["min_us"], default=None)
            times = best["min_us"] / own[0]["min_us"] if best else None
            mark = ""
            if on_gpu and own[0]["batch"] < SMALL:
                mark = " *"
                small.append(f"{own[0]['batch']}")
            figure = _figure(own[0]["median_us"]) + mark
            cells += [figure, "" if times is None else _figure(times)]
            if best:
                peers.append(NAMES.get(best["solver"], best["solver"]))
            said = own[0].get("bar", "")
            if "times" in said:
                bar = said.partition(" times")[0].removeprefix(">= ")
            if "times" in said and "MISSED" in said:
                floor = max(own[0]["floors_us"].values())
                below.append((n, _figure(times or 0), own[0]["median_us"] / floor))
        if below:
            sizes, found, above = zip(*below, strict=True)
            missed.append(
                f"{problem}: {', '.join(found)} times at n = {', '.join(map(str, sizes))}, not "
                f"{bar}; ours takes {_figure(min(above))} to {_figure(max(above))} times its floor"
            )
        lines.append([problem, *cells, ", ".join(dict.fromkeys(peers)), bar])
    columns = [each for n in SIZES for each in (f"n = {n}", "times")]
    text = numeric(["", *columns, "best peer", "bar"], lines)
    if small:
        text += f"\n\\* in batches of {' and '.join(dict.fromkeys(small))} instances only.\n"
    if missed:
        text += (
            "\nBars that are missed; the floor is the largest one of an instance:\n\n"
            + "".join(f"- {each}\n" for each in missed)
        )
    return text


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
