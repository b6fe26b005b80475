"""Any number of runs as one HTML page: no network, no library, opens from disk.

It begins with the verdict: one sentence, one chart. Everything on the page is as Python wrote it:
sentences, tables, drawings. The script ``assets/page.js`` draws nothing: it sorts tables, opens
what is folded, chooses which drawings are shown, and plays the structures that were found. The page
asks the browser to refuse all that is not in it.
"""

import base64
import hashlib
import html
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from nestruct.errors import InputError
from nestruct.files import write_whole
from nestruct.reports.charts import draw_charts, swatch
from nestruct.reports.configuration import configurations, environments, run_names
from nestruct.reports.curves import axes, charts, looks
from nestruct.reports.groups import Group, group_runs, own_title
from nestruct.reports.names import method_name, named, space_name
from nestruct.reports.players import players
from nestruct.reports.runs import read_runs
from nestruct.reports.sections import ReportSection, contents
from nestruct.reports.summary import cost_table, count_repeats, results_table, sentence
from nestruct.reports.tables import to_html
from nestruct.reports.tasks import Comparison, compare_methods
from nestruct.reports.trajectories import trajectories
from nestruct.reports.verdict import verdict

UNFOLDED = 8  # groups: of more, all but the first of what belongs together folds away
SHOWN = 12  # groups of a latent space whose curves are drawn at first
DRAWN = 48  # groups that have curves; of more, those of the verdict come first
CHARTS = 6  # that are not folded away


class PagePart(NamedTuple):
    """A part of the page: the name of its anchor, its heading, its HTML.

    Attributes:
        name: Of its anchor.
        heading: Its heading, which stands in the contents too.
        content: HTML; a part without is left out.
        folded: What stands beside the heading of a part that is folded away; of others, empty.
    """

    name: str
    heading: str
    content: str
    folded: str = ""


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
    script, compared = _asset("page.js"), compare_methods(groups)
    parts = [part for part in _parts(groups, compared, sections) if part.content]
    fields = {
        "title": html.escape(title),
        "style": style() + _asset("page.css"),
        "script": script,
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "verdict": verdict(compared, groups),
        "sentences": _sentences(groups),
        "about": _about(sum(len(group.runs) for group in groups)),
        "contents": "".join(f'<a href="#{p.name}">{html.escape(p.heading)}</a> ' for p in parts),
        "parts": "".join(map(_section, parts)),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: fields[match[1]], _asset("page.html"))


def _section(part: PagePart) -> str:
    head = f"<h2>{html.escape(part.heading)}</h2>"
    body = f"{head}\n{part.content}"
    if part.folded:
        summary = f"<summary>{head}<span>{html.escape(part.folded)}</span></summary>"
        body = f'<details class="part">{summary}\n{part.content}</details>'
    return f'<section id="{part.name}">\n{body}\n</section>\n'


def _parts(
    groups: list[Group], compared: Comparison | None, sections: Sequence[ReportSection] | None
) -> list[PagePart]:
    """All parts of the page in order; those that do not apply are empty."""
    runs = [run for group in groups for run in group.runs]
    names, several, many = run_names(runs), len(groups) > 1, len(groups) > UNFOLDED
    structures = PagePart("structures", "Structures as they were learnt", players(groups))
    # Of one group the structures over time show the same as its trajectories, and more.
    paths = trajectories(groups) if several or not structures.content else ""
    trees = PagePart("trajectories", "Trajectories", paths)
    sizes = f"{len(groups)} groups", f"{len(runs)} runs"
    rows, each = sizes if many else ("", "")
    costs = to_html(cost_table(groups, names)) + environments(runs, names)
    return [
        # Of one group they are what there is to see; of many, numbers compare methods better.
        *([] if several else [structures]),
        *([] if many else [trees]),
        *_tables(groups, sections, many=many),
        *([trees] if many else []),
        PagePart("curves", "Curves", _curves(_drawn(groups, compared), groups)),
        *([structures] if several else []),
        PagePart("results", "Every metric", to_html(results_table(groups)), rows),
        PagePart("configuration", "Configuration", configurations(groups, names), rows),
        PagePart("environment", "Environment and cost", costs, each),
    ]


def _tables(
    groups: list[Group], sections: Sequence[ReportSection] | None, *, many: bool
) -> list[PagePart]:
    """The sections that are about some runs: their tables, which fold away below drawings.

    Of many groups, the first table of a section is not folded away, nor are few drawings.
    """
    found = []
    for section, content in contents(groups, sections):
        if not content.drawings:
            for k, table in enumerate(content.tables):
                folded = f"{len(table.rows)} rows" if many and k else ""
                found.append(PagePart(_anchor(table.title), table.title, to_html(table), folded))
            continue
        numbers = "".join(
            f"<details><summary>{html.escape(table.title)}: the numbers</summary>{to_html(table)}"
            "</details>"
            for table in content.tables
        )
        figures = content.drawings.count("<figure")
        folded = f"{figures} charts" if figures > CHARTS else ""
        drawn = content.drawings + numbers
        found.append(PagePart(_anchor(section.title), section.title, drawn, folded))
    return found


def _drawn(groups: Sequence[Group], compared: Comparison | None) -> list[Group]:
    """The groups that have curves: all of them, or those of the verdict and the first others."""
    told = compared.entries if compared else []
    first = {id(entry.group) for entry in told} if len(groups) > DRAWN else set[int]()
    ranked = sorted(groups, key=lambda group: id(group) not in first)[:DRAWN]
    kept = {id(group) for group in ranked}
    return [group for group in groups if id(group) in kept]


def _curves(drawn: Sequence[Group], groups: Sequence[Group]) -> str:
    """Charts, those about how training went folded away."""
    own = {id(group): look for group, look in zip(groups, looks(groups), strict=True)}
    its_charts, its_looks, shown = charts(drawn), [own[id(group)] for group in drawn], _shown(drawn)
    figures = draw_charts(its_charts, drawn, axes(drawn), its_looks, shown)
    found = [(c.main, f) for c, f in zip(its_charts, figures, strict=True) if f]
    main, more = (
        [figure for is_main, figure in found if is_main == first] for first in (True, False)
    )
    if not found:
        return ""
    legend = "".join(
        f'<span data-group="{k}"{" hidden" * (k not in shown)}>{swatch(its_looks[k])}'
        f"{html.escape(group.label)} ({count_repeats(group)})</span>"
        for k, group in enumerate(drawn)
    )
    left_out = len(groups) - len(drawn)
    note = f"{left_out} of {len(groups)} groups have no curve here; the tables have them all."
    return (
        '<div class="controls" id="curves-controls"></div>'
        + (f'<div class="legend" id="curves-legend">{legend}</div>' if len(drawn) > 1 else "")
        + (f'<p class="note">{note}</p>' if left_out else "")
        + '<p class="note" id="curves-none" hidden>Nothing to draw with these choices.</p>'
        f'<div id="curves-main"><div class="charts">{"".join(main[:CHARTS])}</div>'
        + _folded(f"{len(main) - CHARTS} more charts", main[CHARTS:])
        + "</div>"
        + _folded("How training went", more)
    )


def _folded(summary: str, figures: Sequence[str]) -> str:
    if not figures:
        return ""
    charts = f'<div class="charts">{"".join(figures)}</div>'
    return f"<details><summary>{summary}</summary>{charts}</details>"


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


def _asset(name: str) -> str:
    return (resources.files("nestruct.reports") / "assets" / name).read_text(encoding="utf-8")


def _sentences(groups: Sequence[Group]) -> str:
    """What each group came to and cost; of several, folded away."""
    if len(groups) == 1:
        return f'<p class="sentence">{html.escape(sentence(groups[0]))}</p>'
    lines = [
        f'<p class="sentence"><b>{html.escape(group.label)}</b>{html.escape(sentence(group))}</p>'
        for group in groups
    ]
    told = f"Each of {len(lines)} groups in a sentence, with its cost"
    return f"<details><summary>{told}</summary>{''.join(lines)}</details>"


def _about(num_runs: int) -> str:
    when = f"{datetime.now():%d %B %Y, %H:%M}".lstrip("0")
    return f"{num_runs} run{'s' * (num_runs > 1)}, page made on {when}."
