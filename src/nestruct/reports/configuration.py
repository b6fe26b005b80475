"""What runs were configured with, and what they ran on, as HTML."""

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

from nestruct.reports.groups import REPEAT_KEYS, Group
from nestruct.reports.runs import Run
from nestruct.reports.tables import NOTHING, Cell, Table, to_html
from nestruct.wording import flatten

SIDE_BY_SIDE = 8  # columns of a matrix; of more, what differs is a row for each
FILES = 40  # runs whose files are shown as written
# What only one run has: shown with the run, not in the table of environments.
ORIGIN_KEYS = ("command", "started")


def configurations(groups: Sequence[Group], names: Sequence[str]) -> str:
    """Every option of every group, and the files of runs where those are not too many."""
    runs = [run for group in groups for run in group.runs]
    table = _matrix("key", {group.label: _config(group) for group in groups})
    if len(runs) <= FILES:
        return table + "".join(map(_run, names, runs))
    note = f"{len(runs)} runs: the file of each is config.toml in its folder."
    return f'{table}<p class="note">{note}</p>'


def environments(runs: Sequence[Run], names: Sequence[str]) -> str:
    """What runs ran on."""
    found: dict[str, list[str]] = {}
    for name, run in zip(names, runs, strict=True):
        same = {key: value for key, value in run.environment.items() if key not in ORIGIN_KEYS}
        found.setdefault(json.dumps(same), []).append(name)
    return _matrix(
        "environment", {_few(members): json.loads(text) for text, members in found.items()}
    )


def run_names(runs: Sequence[Run]) -> list[str]:
    """Folder names, with as many parents as it takes to tell them apart."""
    for depth in range(1, 9):
        names = ["/".join(run.path.parts[-depth:]) for run in runs]
        if len(set(names)) == len(names):
            return names
    return [str(run.path) for run in runs]


def _few(names: Sequence[str]) -> str:
    """Names, or the first and last of them with how many there are."""
    if len(names) <= SIDE_BY_SIDE:
        return ", ".join(names)
    return f"{len(names)} runs, {names[0]} to {names[-1]}"


def _config(group: Group) -> dict[str, Any]:
    """The configuration of a group, with all seeds and devices that its runs had."""
    config = dict(group.runs[0].config)
    for key in REPEAT_KEYS & set(config):
        config[key] = ", ".join(dict.fromkeys(str(run.config.get(key)) for run in group.runs))
    return config


def _matrix(heading: str, tables: Mapping[str, dict[str, Any]]) -> str:
    """Keys against columns, with a mark where a key is not the same everywhere.

    Of many tables, what differs is told apart from what is the same in all of them.
    """
    flat = {label: _texts(table) for label, table in tables.items()}
    keys = dict.fromkeys(key for table in flat.values() for key in table)
    differing = [key for key in keys if len({table.get(key) for table in flat.values()}) > 1]
    if not keys:
        return ""
    if len(flat) <= SIDE_BY_SIDE:
        return _side_by_side(heading, flat, list(keys), differing)
    first = next(iter(flat.values()))
    shared = {heading: {key: first[key] for key in keys if key not in differing}}
    columns = [("", "group"), *((_section(key), key.rpartition(".")[2]) for key in differing)]
    rows = [
        [Cell(label), *(Cell(table.get(key, "")) for key in differing)]
        for label, table in flat.items()
    ]
    told = _side_by_side(heading, shared, list(shared[heading]), []) if shared[heading] else ""
    same = f"{len(shared[heading])} more are the same everywhere"
    return (
        f"{to_html(Table(f'{heading}: what differs', columns, rows))}"
        f"<details><summary>{same}</summary>{told}</details>"
    )


def _side_by_side(
    heading: str,
    flat: Mapping[str, Mapping[str, str]],
    keys: Sequence[str],
    differing: Sequence[str],
) -> str:
    rows = []
    for key in keys:
        differs = key in differing
        name = html.escape(f"≠ {key}" if differs else key)
        cells = "".join(
            f"<td>{html.escape(table.get(key, '')) or NOTHING}</td>" for table in flat.values()
        )
        mark = ' class="differs"' if differs else ""
        rows.append(f'<tr{mark}><td class="first">{name}</td>{cells}</tr>\n')
    heads = "".join(f'<th scope="col">{html.escape(label)}</th>' for label in flat)
    head = f'<tr class="head"><th>{heading}</th>{heads}</tr>' if len(flat) > 1 else ""
    table = f'<table class="text"><thead>{head}</thead><tbody>\n{"".join(rows)}</tbody></table>'
    return f'<div class="matrix"><div class="scroll">{table}</div></div>'


def _section(key: str) -> str:
    return key.rpartition(".")[0]


def _texts(table: dict[str, Any]) -> dict[str, str]:
    return {
        key: value if isinstance(value, str) else json.dumps(value, default=str)
        for key, value in flatten(table).items()
    }


def _run(name: str, run: Run) -> str:
    """A run's configuration as written, under how and when it was started."""
    lines = [f"# {key}: {run.environment[key]}\n" for key in ORIGIN_KEYS if key in run.environment]
    text = html.escape("".join(lines) + run.config_text)
    summary = html.escape(f"{name}: config.toml ({run.state})")
    return f"<details><summary>{summary}</summary><pre>{text}</pre></details>\n"
