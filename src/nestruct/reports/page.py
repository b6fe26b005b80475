"""Any number of runs as one HTML page: no network, no library, opens from disk.

Everything to be read is in the page as Python wrote it: sentences, tables, drawings. The script
``assets/page.js`` sorts tables, and draws curves and structures again as one chooses, from the JSON
that `nestruct.reports.payload` embeds. The page asks the browser to refuse all that is not in it.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

from nestruct.errors import InputError
from nestruct.files import write_whole
from nestruct.reports.attachment import attachment_charts, attachment_tables
from nestruct.reports.charts import draw_chart, swatch
from nestruct.reports.comparison import comparisons
from nestruct.reports.gaps import gap_tables
from nestruct.reports.groups import REPEAT_KEYS, Group, group_runs, own_title
from nestruct.reports.methods import in_order, methods_table
from nestruct.reports.parsing import parsing_tables
from nestruct.reports.payload import payload
from nestruct.reports.published import short_names
from nestruct.reports.runs import Run, read_run
from nestruct.reports.scoreboard import scoreboard
from nestruct.reports.sizes import size_tables
from nestruct.reports.summary import cost_table, results_table, sentence
from nestruct.reports.tables import NOTHING, Table, to_html
from nestruct.reports.trajectories import trajectories
from nestruct.wording import flatten

# What is no one else's: shown with the run, not in the table of environments.
ORIGIN_KEYS = ("command", "started")
# Filled and shown by the script, which lets one choose a run and a step.
STRUCTURES = """<section id="structures" hidden>
  <h2>Structures as they were learnt</h2>
  <p class="note" id="structures-note"></p>
  <div class="controls" id="structures-controls"></div>
  <div class="legend" id="structures-legend"></div>
  <div class="cards" id="structures-cards"></div>
</section>
"""
SENTENCES = 4  # groups that are told at length; of more, the table of methods tells first


def write_page(
    run_dirs: Iterable[str | Path],
    path: str | Path,
    *,
    title: str | None = None,
    tiny: str | None = None,
) -> None:
    """Writes one self-contained HTML page about the runs.

    Args:
        run_dirs: Run folders; one named twice counts once. Runs that differ in nothing but seed
            and device are shown as one group.
        path: The file to write; replaced only when the new page is complete.
        title: The heading; by default the title that all runs share, if they share one.
        tiny: As for `paper_tables`.

    Raises:
        InputError: A folder cannot be read as a run, or the page cannot be written there.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a file in it, like {path / 'page.html'}.")
    if not path.parent.is_dir():
        raise InputError(f"{path} cannot be written: there is no folder {path.parent}; make it.")
    groups = read_groups(run_dirs)
    names = {own_title(group.runs[0]) or group.label for group in groups}
    title = title or (names.pop() if len(names) == 1 else f"{len(groups)} groups of runs")
    page = _document(groups, title, tiny)
    try:
        write_whole(path, page.encode())
    except OSError as error:
        message = f"{path} cannot be written ({error.strerror}); choose a folder you may write to."
        raise InputError(message) from error


def read_groups(run_dirs: Iterable[str | Path]) -> list[Group]:
    """Reads run folders, each once, and groups them, methods in the order of published tables."""
    folders = dict.fromkeys(Path(folder).resolve() for folder in run_dirs)
    if not folders:
        raise InputError("No run folder was given; name at least one.")
    groups = in_order(group_runs([read_run(folder) for folder in folders]))
    if len(groups) == 1:
        return groups
    names = short_names([group.runs[0] for group in groups], [group.label for group in groups])
    return [Group(name, group.runs) for name, group in zip(names, groups, strict=True)]


def report_tables(groups: Sequence[Group], *, tiny: str | None = None) -> list[Table]:
    """The tables that a report is about: published ones, methods, cost to target.

    Args:
        groups: Runs.
        tiny: As for `paper_tables`.
    """
    found = [methods_table(groups), *attachment_tables(groups), *scoreboard(groups)]
    return [*paper_tables(groups, tiny=tiny), *found]


def paper_tables(groups: Sequence[Group], *, tiny: str | None = None) -> list[Table]:
    """The published tables that runs belong to, with ours beside, and what they cost.

    Args:
        groups: Runs.
        tiny: Of the runs of ``nestruct reproduce table2 --tiny``, ``table2``: they are in the rows
            of that table, whatever their data are, and it says that nothing can be compared.
    """
    makers = (comparisons, parsing_tables, size_tables, gap_tables)
    return [table for make in makers for table in make(groups, tiny=tiny)]


def _document(groups: list[Group], title: str, tiny: str | None) -> str:
    runs = [run for group in groups for run in group.runs]
    names = _names(runs)
    data = payload(groups, names)
    script = _asset("page.js")
    costs = cost_table(groups, names)
    paths = trajectories(groups)
    fields = {
        "title": html.escape(title),
        "style": _asset("page.css"),
        "script": script,
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "sentences": _sentences(groups),
        "about": _about(len(runs)),
        "trajectories": _section("trajectories", "Trajectories", paths) if paths else "",
        # Of one run they are what there is to see; of several, methods are compared first.
        "structures_first": STRUCTURES if len(groups) == 1 else "",
        "structures_last": STRUCTURES if len(groups) > 1 else "",
        "tables": _tables(groups, tiny),
        "legend": _legend(data),
        "charts": _charts(data, main=True),
        "more_charts": _charts(data, main=False),
        "results": to_html(results_table(groups)),
        "configuration": _matrix("key", {group.label: _config(group) for group in groups}),
        "runs": "".join(map(_run, names, runs)),
        "cost": to_html(costs),
        "environment": _matrix("environment", _environments(names, runs)),
        # Inside a script element only "<" can end it; JSON may write it as an escape.
        "data": json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: fields[match[1]], _asset("page.html"))


def _tables(groups: Sequence[Group], tiny: str | None) -> str:
    """The tables, those of attachment under the charts that show the same."""
    charts = attachment_charts(groups)
    behind = {table.title for table in attachment_tables(groups)}
    shown, folded = "", ""
    for table in report_tables(groups, tiny=tiny):
        if table.title in behind:
            head = f"<summary>{html.escape(table.title)}: the numbers</summary>"
            folded += f"<details>{head}{to_html(table)}</details>"
        else:
            shown += _table_section(table)
    if not charts:
        return shown
    note = '<p class="note">Line: mean of the runs. Band: smallest to largest of them.</p>'
    return shown + _section("attachment", "Attachment by length", charts + note + folded)


def _asset(name: str) -> str:
    return (resources.files("nestruct.reports") / "assets" / name).read_text(encoding="utf-8")


def _section(name: str, heading: str, content: str) -> str:
    return f'<section id="{name}">\n<h2>{html.escape(heading)}</h2>\n{content}\n</section>\n'


def _table_section(table: Table) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", table.title.lower()).strip("-")
    return _section(name, table.title, to_html(table))


def _sentences(groups: Sequence[Group]) -> str:
    lines = []
    for group in groups:
        label = f"<b>{html.escape(group.label)}</b>" if len(groups) > 1 else ""
        lines.append(f'<p class="sentence">{label}{html.escape(sentence(group))}</p>')
    if len(lines) <= SENTENCES:
        return "".join(lines)
    told = f"<details><summary>Each of {len(lines)} groups in a sentence</summary>"
    return f'{told}<div class="sentences-many">{"".join(lines)}</div></details>'


def _about(num_runs: int) -> str:
    when = f"{datetime.now():%d %B %Y, %H:%M}".lstrip("0")
    return (
        f"{num_runs} run{'s' * (num_runs > 1)}, page made on {when}. From the first evaluation to "
        "the one whose model was kept, on validation data unless another is named."
    )


def _legend(data: dict[str, Any]) -> str:
    if len(data["groups"]) < 2:
        return ""
    spans = [
        f"<span>{swatch(group['look'])}{html.escape(group['label'])} ({group['repeats']})</span>"
        for k, group in enumerate(data["groups"])
        if k in data["view"]["shown"]
    ]
    return f'<div class="legend">{"".join(spans)}</div>'


def _charts(data: dict[str, Any], *, main: bool) -> str:
    """A place for each chart; without a script, those are hidden that have nothing to draw."""
    looks = [group["look"] for group in data["groups"]]
    places = ""
    for k, chart in enumerate(data["charts"]):
        if chart["main"] == main:
            drawing = draw_chart(chart, data["runs"], data["view"], looks) if main else ""
            hidden = " hidden" * (main and not drawing)
            places += f'<figure class="chart" id="chart-{k}"{hidden}>{drawing}</figure>'
    return places


def _config(group: Group) -> dict[str, Any]:
    """The configuration of a group, with all seeds and devices that its runs had."""
    config = dict(group.runs[0].config)
    for key in REPEAT_KEYS & set(config):
        config[key] = ", ".join(dict.fromkeys(str(run.config.get(key)) for run in group.runs))
    return config


def _environments(names: Sequence[str], runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """What runs ran on, under the names of all that ran on the same."""
    found: dict[str, list[str]] = {}
    for name, run in zip(names, runs, strict=True):
        same = {key: value for key, value in run.environment.items() if key not in ORIGIN_KEYS}
        found.setdefault(json.dumps(same), []).append(name)
    return {", ".join(members): json.loads(text) for text, members in found.items()}


def _matrix(heading: str, tables: dict[str, dict[str, Any]]) -> str:
    """Keys against columns, with a mark where a key is not the same everywhere."""
    flat = [flatten(table) for table in tables.values()]
    rows = []
    for key in dict.fromkeys(key for table in flat for key in table):
        values = [
            v if isinstance(v := table.get(key, ""), str) else json.dumps(v, default=str)
            for table in flat
        ]
        differs = len(set(values)) > 1
        name = html.escape(f"≠ {key}" if differs else key)
        cells = "".join(f"<td>{html.escape(value) or NOTHING}</td>" for value in values)
        mark = ' class="differs"' if differs else ""
        rows.append(f'<tr{mark}><td class="first">{name}</td>{cells}</tr>\n')
    if not rows:
        return ""
    heads = "".join(f'<th scope="col">{html.escape(label)}</th>' for label in tables)
    head = f'<tr class="head"><th>{heading}</th>{heads}</tr>' if len(tables) > 1 else ""
    table = f'<table class="text"><thead>{head}</thead><tbody>\n{"".join(rows)}</tbody></table>'
    return f'<div class="matrix"><div class="scroll">{table}</div></div>'


def _run(name: str, run: Run) -> str:
    """A run's configuration as written, under how and when it was started."""
    lines = [f"# {key}: {run.environment[key]}\n" for key in ORIGIN_KEYS if key in run.environment]
    text = html.escape("".join(lines) + run.config_text)
    summary = html.escape(f"{name}: config.toml ({run.state})")
    return f"<details><summary>{summary}</summary><pre>{text}</pre></details>\n"


def _names(runs: Sequence[Run]) -> list[str]:
    """Folder names, with as many parents as it takes to tell them apart."""
    for depth in range(1, 9):
        names = ["/".join(run.path.parts[-depth:]) for run in runs]
        if len(set(names)) == len(names):
            return names
    return [str(run.path) for run in runs]
