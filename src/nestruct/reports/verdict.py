"""The verdict: what runs came to, in one sentence and one chart.

Up to three tasks are told one by one. Of more, the sentence tells means over them, and the chart
how far each method is from the middle one of each task.
"""

import html
from collections.abc import Mapping, Sequence
from statistics import fmean, median, stdev

from nestruct.reports.charts import draw_lines
from nestruct.reports.curves import POINTS, axes, charts, looks, series
from nestruct.reports.groups import Group
from nestruct.reports.metrics import find_metric
from nestruct.reports.scores import draw_scores
from nestruct.reports.shapes import structure_noun
from nestruct.reports.tasks import Comparison, Entry, Task
from nestruct.wording import number

SEPARATE = 3  # tasks: so many are told one by one
TOLD = 3  # methods of a task in the sentence
ROWS = 12  # methods in a chart
_SPACE = "\N{NO-BREAK SPACE}"  # within a number
_LEARNING = " without learning"  # what names of references may end with


def verdict(found: Comparison | None, groups: Sequence[Group]) -> str:
    """The sentence and the chart, as HTML.

    Args:
        found: How methods compare; None where there is no number yet.
        groups: All runs of the page: colours are those of its curves.
    """
    said = "No results yet." if found is None else say_verdict(found)
    drawn = "" if found is None else _draw(found, groups)
    return f'<p class="verdict">{html.escape(said)}</p>{drawn}'


def say_verdict(found: Comparison) -> str:
    """What methods came to, in one sentence."""
    words = _separately(found) if len(found.tasks) <= SEPARATE else _over_tasks(found)
    return f"{words[0].upper()}{words[1:]}."


def _separately(found: Comparison) -> str:
    """Each task by itself; what needs no learning once, where it is the same for all."""
    bests = [_best_reference(found, task) for task in found.tasks]
    shared = len(set(bests)) == 1
    clauses: list[str] = []
    unbeaten: list[str] = []
    for task, best in zip(found.tasks, bests, strict=True):
        told = [(entry.name, [entry.mean], _spread(found, entry)) for entry in task.entries]
        words = _list(found, told, first=not clauses)
        several = len(found.tasks) > 1
        clauses.append(f"{task.name}: {words}" if several else words)
        if best is None:
            continue
        name, value = best
        if not shared or task is found.tasks[-1]:
            clauses.append(f"without learning {_say(found, value)} at best ({name})")
        known = [e.validation for e in task.entries if e.validation is not None]
        if known and all(found.sign * (mean - value) <= 0 for mean in known):
            unbeaten.append(f"{name}, {task.name}" if several else name)
    words = "; ".join(clauses)
    if unbeaten:
        return f"no method beats what needs no learning ({'; '.join(unbeaten)}): {words}"
    return words


def _over_tasks(found: Comparison) -> str:
    """Means over all tasks, of the methods that ran in all of them."""
    means = {name: [e.mean for e in found.entries if e.name == name] for name in found.methods}
    every = {name: values for name, values in means.items() if len(values) == len(found.tasks)}
    some = [f"{name} in {len(v)}" for name, v in means.items() if name not in every]
    if not every:
        return (
            f"no method ran in all of {len(found.tasks)} tasks; the chart compares those that ran "
            f"in the same ones ({_where(found)})"
        )
    ranked = sorted(every.items(), key=lambda item: -found.sign * fmean(item[1]))
    told = [(name, values, "") for name, values in ranked]
    words = f"in the mean of {len(found.tasks)} tasks, {_list(found, told)}"
    return f"{words}; fewer tasks: {', '.join(some)}" if some else words


def _list(
    found: Comparison, told: Sequence[tuple[str, Sequence[float], str]], *, first: bool = True
) -> str:
    """Methods with their means, the first of them with what was measured, the last in short."""
    shown, rest = told[:TOLD], [fmean(values) for _, values, _ in told[TOLD:]]
    parts = [f"{name} {_say(found, fmean(values), more)}" for name, values, more in shown]
    name, values, more = told[0]
    if first:
        parts[0] = f"{name} reaches {_say(found, fmean(values), more)} ({_where(found)})"
    if rest:
        ends = " to ".join(dict.fromkeys(_say(found, end) for end in (min(rest), max(rest))))
        parts.append(f"{len(rest)} other{'s' * (len(rest) > 1)} {ends}")
    return ", ".join(parts)


def _where(found: Comparison) -> str:
    """What was measured, on what, over how many runs, and whether it can still change."""
    counts = sorted({len(entry.values) for entry in found.entries})
    ends = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    means = f", {'mean of ' * (counts[0] > 1)}{ends} run{'s' * (counts[-1] > 1)}"
    runs = [run for entry in found.entries for run in entry.group.runs]
    cut = sum(not run.finished for run in runs)
    so_far = f", {cut} of {len(runs)} runs unfinished" if cut else ""
    less = "" if found.sign > 0 else ", less is better"
    return f"{_measured(found)}{less}{means if len(runs) > 1 else ''}{so_far}"


def _measured(found: Comparison) -> str:
    noun = structure_noun([run for entry in found.entries for run in entry.group.runs])
    data = "test" if found.when == "test" else "validation"
    return f"{find_metric(found.metric).say(noun)} on {data} data"


def _say(found: Comparison, value: float, more: str = "") -> str:
    if find_metric(found.metric).percent:
        return f"{100 * value:.1f}{more}{_SPACE}%"
    return f"{number(value)}{more}"


def _spread(found: Comparison, entry: Entry) -> str:
    """The standard deviation over runs, where there are several."""
    if len(entry.values) < 2:
        return ""
    deviation = stdev(entry.values)
    if find_metric(found.metric).percent:
        return f"{_SPACE}±{_SPACE}{100 * deviation:.1f}"
    return f"{_SPACE}±{_SPACE}{number(deviation, like=entry.mean)}"


def _best_reference(found: Comparison, task: Task) -> tuple[str, float] | None:
    known = task.references.items()
    best = max(known, key=lambda item: found.sign * item[1], default=None)
    return best and (best[0].removesuffix(_LEARNING), best[1])


# ---------------------------------------------------------------- the chart


def _draw(found: Comparison, groups: Sequence[Group]) -> str:
    tasks = ""
    if len(found.tasks) > SEPARATE:
        figure, dots = _over_many(found)
        names = html.escape("; ".join(task.name for task in found.tasks))
        tasks = f"<details><summary>The tasks</summary><p>{names}</p></details>"
        notes = [dots]
    elif len(found.entries) == 1 and (curve := _curve(found)):
        figure, notes = curve, []
    else:
        look = {id(g.runs[0]): own for g, own in zip(groups, looks(groups), strict=True)}
        figure = "".join(_scores(found, task, look) for task in found.tasks)
        notes = ["A dot is a run, a bar the mean of a method's runs."]
        if any(task.references for task in found.tasks):
            notes.append("Dotted: what needs no learning, on validation data.")
        if any(len(task.entries) > ROWS for task in found.tasks):
            notes.append("The table of methods has the others.")
    said = " ".join([*notes, *_choices(found)])
    return f'<div class="charts">{figure}</div><div class="note"><p>{said}</p>{tasks}</div>'


def _choices(found: Comparison) -> list[str]:
    """How runs came to be in the verdict, or not."""
    notes = []
    if found.num_configurations > len(found.entries):
        notes.append(
            f"{found.num_configurations} configurations ran; of each method, the one with the most "
            "tested runs, then the best on validation data, is here."
        )
    if found.when == "best":
        notes.append("None was tested: the validation data also chose the step, so it flatters.")
    if found.num_left_out:
        runs = f"{found.num_left_out} run{'s' * (found.num_left_out > 1)}"
        notes.append(f"Not here: {runs} with other data or settings, or without this number.")
    return notes


def _scores(found: Comparison, task: Task, look: Mapping[int, int]) -> str:
    entries, unit = task.entries[:ROWS], 100 if find_metric(found.metric).percent else 1
    values = {entry.name: [unit * value for value in entry.values] for entry in entries}
    marks = {name.removesuffix(_LEARNING): unit * value for name, value in task.references.items()}
    colours = [look[id(entry.group.runs[0])] for entry in entries]
    title = task.name if len(found.tasks) > 1 else ""
    label = f"{_measured(found)}{' (%)' * (unit == 100)}"
    return _figure(title, values, label, marks, colours)


def _over_many(found: Comparison) -> tuple[str, str]:
    """How much better each method is than the middle one of each task, and what a dot is.

    Where no task has two methods, the numbers themselves, by task.
    """
    unit = 100 if find_metric(found.metric).percent else 1
    shared = [task for task in found.tasks if len(task.entries) > 1]
    if not shared:
        values = {
            f"{task.name}: {entry.name}": [unit * value for value in entry.values]
            for task in found.tasks[:ROWS]
            for entry in task.entries
        }
        label = f"{_measured(found)}{' (%)' * (unit == 100)}"
        return _figure("", values, label, {}, None), "A dot is a run, a bar the mean of a task's."
    better: dict[str, list[float]] = {}
    for task in shared:
        middle = median(entry.mean for entry in task.entries)
        for entry in task.entries:
            better.setdefault(entry.name, []).append(unit * found.sign * (entry.mean - middle))
    ranked = sorted(better, key=lambda name: -fmean(better[name]))[:ROWS]
    points = " (points)" if unit == 100 else ""
    label = f"better than the middle method{points}: {_measured(found)}"
    figure = _figure(
        "", {name: better[name] for name in ranked}, label, {"middle method": 0.0}, None
    )
    dots = "A dot is a task: the mean over a method's runs there. A bar is the dots' mean."
    alone = len(found.tasks) - len(shared)
    return figure, dots + (f" Tasks with one method ({alone}) have none." if alone else "")


def _figure(
    title: str,
    values: Mapping[str, Sequence[float]],
    label: str,
    marks: Mapping[str, float],
    colours: Sequence[int] | None,
) -> str:
    """A chart in two forms, of which a screen shows the one that suits its width."""
    head = f"<h3>{html.escape(title)}</h3>" if title else ""
    wide, narrow = (
        draw_scores(values, label, marks, colours=colours, stacked=stacked)
        for stacked in (False, True)
    )
    return (
        f'<figure class="chart scores">{head}<div class="for-wide">{wide}</div>'
        f'<div class="for-narrow">{narrow}</div></figure>'
    )


def _curve(found: Comparison) -> str:
    """The validation curve of the only method, with what needs no learning; empty where none is."""
    groups = [found.entries[0].group]
    every = [c for c in charts(groups) if c.split == "validation" and c.metric == found.metric]
    axis = next(iter(axes(groups)), None)
    if not every or axis is None:
        return ""
    line = series(groups[0], every[0], axis, log=every[0].log, limit=POINTS)
    if line is None or len(line.xs) < 2:
        return ""
    drawn = draw_lines(every[0], axis, every[0].log, {0: line}, {0: groups[0].label}, [0], [0])
    head = html.escape(every[0].label)
    return f'<figure class="chart"><h3>{head}</h3><svg{drawn}</svg></figure>'
