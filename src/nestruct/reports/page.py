"""Any number of runs as one HTML page: no network, no library, opens from disk.

Everything on the page is as Python wrote it: sentences, tables, drawings. The script
``assets/page.js`` draws nothing: it sorts tables, chooses which drawings are shown, and plays the
structures that were found. The page asks the browser to refuse all that is not in it.
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
from typing import Any, NamedTuple

from nestruct.errors import InputError
from nestruct.files import write_whole
from nestruct.reports.charts import draw_charts, swatch
from nestruct.reports.curves import axes, charts, looks
from nestruct.reports.groups import REPEAT_KEYS, Group, group_runs, own_title
from nestruct.reports.names import method_name, named, space_name
from nestruct.reports.players import players
from nestruct.reports.runs import Run, read_runs
from nestruct.reports.sections import ReportSection, contents
from nestruct.reports.summary import cost_table, count_repeats, results_table, sentence
from nestruct.reports.tables import NOTHING, to_html
from nestruct.reports.trajectories import trajectories
from nestruct.wording import flatten

# What only one run has: shown with the run, not in the table of environments.
ORIGIN_KEYS = ("command", "started")
SENTENCES = 4  # groups that are told at length; of more, the table of methods tells first
SHOWN = 12  # groups of a latent space whose curves are drawn at first
UNFOLDED = 8  # groups: of more, tables about single groups and runs fold away


class PagePart(NamedTuple):
    """A part of the page: the name of its anchor, its heading, its HTML."""

    name: str
    heading: str
    content: str


def write_page(
    run_dirs: Iterable[str | Path],
    path: str | Path,
    *,
    title: str | None = None,
    sections: Sequence[ReportSection] | None = None,
) -> None:
    """Writes one self-contained HTML page about the runs.

    Args:
        run_dirs: Run folders and archives of them; one named twice counts once. Runs that differ
            in nothing but seed and device are shown as one group.
        path: The file to write; replaced only when the new page is complete.
        title: The heading; by default the title that all runs share, or their methods.
        sections: What is said of some runs only; ``nestruct.reports.SECTIONS`` when None.

    Raises:
        InputError: A folder cannot be read as a run, or the page cannot be written there.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a file in it, like {path / 'page.html'}.")
    if not path.parent.is_dir():
        raise InputError(f"{path} cannot be written: there is no folder {path.parent}; make it.")
    groups = read_groups(run_dirs)
    page = _document(groups, title or _title(groups), sections)
    try:
        write_whole(path, page.encode(errors="replace"))
    except OSError as error:
        message = f"{path} cannot be written ({error.strerror}); choose a folder you may write to."
        raise InputError(message) from error


def read_groups(run_dirs: Iterable[str | Path]) -> list[Group]:
    """Reads run folders and archives of them, each once, and groups them, in order, with names."""
    return named(group_runs(read_runs(run_dirs)))


def style() -> str:
    """The rules by which structures and curves are drawn."""
    return _asset("drawings.css")


def _document(groups: list[Group], title: str, sections: Sequence[ReportSection] | None) -> str:
    runs = [run for group in groups for run in group.runs]
    script = _asset("page.js")
    parts = [part for part in _parts(groups, runs, sections) if part.content]
    fields = {
        "title": html.escape(title),
        "style": style() + _asset("page.css"),
        "script": script,
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "sentences": _sentences(groups),
        "about": _about(len(runs)),
        "contents": "".join(f'<a href="#{p.name}">{html.escape(p.heading)}</a> ' for p in parts),
        "parts": "".join(
            f'<section id="{part.name}">\n<h2>{html.escape(part.heading)}</h2>\n{part.content}\n'
            "</section>\n"
            for part in parts
        ),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: fields[match[1]], _asset("page.html"))


def _parts(
    groups: list[Group], runs: Sequence[Run], sections: Sequence[ReportSection] | None
) -> list[PagePart]:
    """All parts of the page in order; those that do not apply are empty."""
    names = _names(runs)
    several = len(groups) > 1
    structures = PagePart("structures", "Structures as they were learnt", players(groups))
    # Of one group the structures over time show the same as its trajectories, and more.
    paths = trajectories(groups) if several or not structures.content else ""
    configuration = _matrix("key", {group.label: _config(group) for group in groups})
    environment = _matrix("environment", _environments(names, runs))
    fold = len(groups) > UNFOLDED
    return [
        PagePart("trajectories", "Trajectories", paths),
        # Of one group they are what there is to see; of several, methods are compared first.
        *([] if several else [structures]),
        *_tables(groups, sections),
        PagePart("curves", "Curves", _curves(groups)),
        *([structures] if several else []),
        PagePart("results", "Every metric", _folded(to_html(results_table(groups)), fold)),
        PagePart(
            "configuration",
            "Configuration",
            _folded(configuration, fold) + "".join(map(_run, names, runs)),
        ),
        PagePart(
            "environment",
            "Environment and cost",
            _folded(to_html(cost_table(groups, names)), fold) + _folded(environment, fold),
        ),
    ]


def _tables(groups: list[Group], sections: Sequence[ReportSection] | None) -> list[PagePart]:
    """The sections that are about some runs: their tables, which fold away below drawings."""
    found = []
    for section, content in contents(groups, sections):
        if not content.drawings:
            found += [PagePart(_anchor(t.title), t.title, to_html(t)) for t in content.tables]
            continue
        numbers = "".join(
            f"<details><summary>{html.escape(table.title)}: the numbers</summary>{to_html(table)}"
            "</details>"
            for table in content.tables
        )
        found.append(PagePart(_anchor(section.title), section.title, content.drawings + numbers))
    return found


def _curves(groups: list[Group]) -> str:
    """Every chart, those about how training went folded away."""
    drawn, its_looks, shown = charts(groups), looks(groups), _shown(groups)
    figures = draw_charts(drawn, groups, axes(groups), its_looks, shown)
    main, more = (
        "".join(figure for chart, figure in zip(drawn, figures, strict=True) if chart.main == first)
        for first in (True, False)
    )
    if not (main or more):
        return ""
    legend = "".join(
        f'<span data-group="{k}"{" hidden" * (k not in shown)}>{swatch(its_looks[k])}'
        f"{html.escape(group.label)} ({count_repeats(group)})</span>"
        for k, group in enumerate(groups)
    )
    legend = f'<div class="legend" id="curves-legend">{legend}</div>' if len(groups) > 1 else ""
    folded = f'<div class="charts">{more}</div>'
    return (
        f'<div class="controls" id="curves-controls"></div>{legend}'
        '<p class="note" id="curves-none" hidden>Nothing to draw with these choices.</p>'
        f'<div class="charts" id="curves-main">{main}</div>'
        + (f"<details><summary>How training went</summary>{folded}</details>" if more else "")
    )


def _shown(groups: Sequence[Group]) -> list[int]:
    """The groups whose curves are drawn at first: so many of each latent space."""
    spaces: dict[str | None, list[int]] = {}
    for k, group in enumerate(groups):
        spaces.setdefault(space_name(group.runs[0]), []).append(k)
    return [k for members in spaces.values() for k in members[:SHOWN]]


def _title(groups: Sequence[Group]) -> str:
    """The title that all runs share, else their methods."""
    titles = {own_title(group.runs[0]) or group.label for group in groups}
    if len(titles) == 1:
        return titles.pop()
    methods = [*dict.fromkeys(method_name(group.runs[0]) or group.label for group in groups)]
    if len(methods) == 1:
        return f"{methods[0]}: {len(groups)} configurations"
    more = [f"{len(methods) - 3} other methods"] if len(methods) > 4 else methods[3:]
    *firsts, last = [*methods[:3], *more]
    title = f"{', '.join(firsts)} and {last}"
    return title[0].upper() + title[1:]


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _folded(content: str, fold: bool) -> str:
    return f"<details><summary>Show</summary>{content}</details>" if fold and content else content


def _asset(name: str) -> str:
    return (resources.files("nestruct.reports") / "assets" / name).read_text(encoding="utf-8")


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
