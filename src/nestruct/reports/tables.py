"""A table as plain data, and its three forms: HTML that can be read as it is, Markdown, CSV."""

import csv
import html
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

from nestruct.wording import number

NOTHING = "\N{EN DASH}"  # what an empty cell shows
TALL = 16  # rows: a table with more scrolls by itself
DENSE = 260  # letters across: on paper, cells of a wider table are broken anywhere
LONG = 32  # letters of a cell: longer ones stand on several lines
# A cell that starts like this is computed by spreadsheets, some of which part cells at semicolons.
_FORMULA = re.compile(r"(^|[;|])(?=\s*[=+\-@\uff1d\uff0b\uff0d\uff20])")
_MARKUP = re.compile(r"[\\\[\]`]")  # of Markdown: links, images, code
_ENTITY = re.compile(r"&(?=#?\w+;)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True)
class Cell:
    """What a table shows.

    Attributes:
        text: As people read it; empty where there is nothing.
        value: What it sorts by; None for words, infinity for what was never reached.
        spread: The standard deviation over runs, where there were several.
        extra: More numbers that the text tells, by name: the ends of an interval, say.
        best: Whether it is the one to look at, in bold.
    """

    text: str = ""
    value: float | None = None
    spread: float | None = None
    extra: Mapping[str, float] = field(default_factory=dict)
    best: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of cells under named columns.

    Attributes:
        title: What it shows.
        columns: For each column what stands over it and its neighbours, and its own name.
        rows: One cell for each column.
        notes: Sentences that belong below it.
    """

    title: str
    columns: Sequence[tuple[str, str]]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = field(default=())

    def is_text(self, column: int) -> bool:
        """Whether no row has a number in a column."""
        return all(row[column].value is None for row in self.rows)


def spread(values: Sequence[float | None], say: Callable[[float], str] = number) -> Cell:
    """The mean of what is known, with the standard deviation where there are several values."""
    known = [value for value in values if value is not None]
    if not known:
        return Cell()
    mean = fmean(known)
    deviation = stdev(known) if len(known) > 1 else None
    text = say(mean)
    if deviation:
        text += f" ± {number(deviation, like=mean) if say is number else say(deviation)}"
    if len(known) < len(values):
        text += f" ({len(known)} of {len(values)})"
    return Cell(text, mean, deviation)


def to_html(table: Table) -> str:
    """A table to read, which the page's script makes sortable."""
    sides = [' class="first"' if table.is_text(c) else "" for c in range(len(table.columns))]
    above = ""
    if any(over for over, _ in table.columns):
        spans = _spans(table)
        above = "".join(
            f'<th colspan="{width}" scope="colgroup">{html.escape(over)}</th>'
            if over
            else f'<td colspan="{width}"></td>'
            for over, width in spans
        )
        above = f"<tr>{above}</tr>"
    heads = "".join(
        f'<th scope="col"{side}>{html.escape(label)}</th>'
        for (_, label), side in zip(table.columns, sides, strict=True)
    )
    rows = "".join(f"<tr>{''.join(map(_td, row, sides))}</tr>\n" for row in table.rows)
    label = html.escape(table.title)
    notes = f'<p class="note">{html.escape(" ".join(table.notes))}</p>' if table.notes else ""
    tall, letters = " tall" * (len(table.rows) > TALL), _letters(table)
    return (
        f'<div class="scroll{tall}" tabindex="0" role="region" aria-label="{label}">'
        f'<table class="sortable{" dense" * (letters > DENSE)}" style="--letters:{letters}">'
        f"<thead>{above}<tr>{heads}</tr></thead>\n"
        f"<tbody>\n{rows}</tbody></table></div>{notes}"
    )


def _letters(table: Table) -> int:
    """How wide a table is: paper has its letters as small as that needs."""
    widths = [max(map(len, label.split()), default=1) for _, label in table.columns]
    for row in table.rows:
        sizes = (min(len(cell.text), LONG) for cell in row)
        widths = [max(width, size) for width, size in zip(widths, sizes, strict=True)]
    return sum(widths) + 2 * len(widths)


def to_markdown(table: Table) -> str:
    """A table as Markdown has it, under its title in bold."""
    heads = [": ".join(filter(None, pair)) for pair in table.columns]
    lines = ["---" if table.is_text(c) else "---:" for c in range(len(heads))]
    rows = [[_in_markdown(cell) for cell in row] for row in table.rows]
    heads = [_escaped(head).replace("|", "\\|") for head in heads]
    body = "\n".join(f"| {' | '.join(row)} |" for row in [heads, lines, *rows])
    notes = f"\n\n{_escaped(' '.join(table.notes))}" if table.notes else ""
    return f"**{_escaped(table.title)}**\n\n{body}{notes}\n"


def to_csv(table: Table) -> str:
    """A table as CSV, under a line with its title: full numbers, deviations in their own column.

    Words that a spreadsheet would take for a formula have an apostrophe before them.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    beside = [
        list(dict.fromkeys(name for row in table.rows for name in _more(row[c])))
        for c in range(len(table.columns))
    ]
    heads: list[str] = []
    for pair, names in zip(table.columns, beside, strict=True):
        head = ": ".join(filter(None, pair))
        heads += [head, *(f"{head}, {name}" for name in names)]
    writer.writerow(map(_defused, heads))
    for row in table.rows:
        cells: list[str | float] = []
        for cell, names in zip(row, beside, strict=True):
            known = cell.value is not None and math.isfinite(cell.value)
            cells.append(cell.value if known and cell.value is not None else _defused(cell.text))
            cells += [_more(cell).get(name, "") for name in names]
        writer.writerow(cells)
    return f"# {_one_line(table.title)}\n{out.getvalue()}"


def _more(cell: Cell) -> dict[str, float]:
    """The numbers beside a cell's value."""
    own = {} if cell.spread is None else {"deviation": cell.spread}
    return own | dict(cell.extra)


def _td(cell: Cell, side: str) -> str:
    side = ' class="first long"' if len(cell.text) > LONG else side
    value = "" if cell.value is None else f' data-value="{_value(cell.value)}"'
    text = html.escape(cell.text) or NOTHING
    return f"<td{side}{value}>{f'<b>{text}</b>' if cell.best else text}</td>"


def _in_markdown(cell: Cell) -> str:
    text = _escaped(cell.text or NOTHING).replace("|", "\\|")
    return f"**{text}**" if cell.best else text


def _value(value: float) -> str:
    return f"{value:.9g}" if math.isfinite(value) else "Infinity"


def _spans(table: Table) -> list[tuple[str, int]]:
    spans: list[tuple[str, int]] = []
    for over, _ in table.columns:
        if spans and spans[-1][0] == over:
            spans[-1] = (over, spans[-1][1] + 1)
        else:
            spans.append((over, 1))
    return spans


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is: no raw HTML, no links."""
    text = _MARKUP.sub(r"\\\g<0>", _one_line(text))
    return _ENTITY.sub("&amp;", text).replace("<", "&lt;").replace(">", "&gt;")


def _defused(text: str) -> str:
    """Text that no spreadsheet computes; what is a number stays one."""
    line = _one_line(text)
    try:
        float(line)
    except ValueError:
        return _FORMULA.sub(r"\1'", line)
    return line


def _one_line(text: str) -> str:
    """Without line ends, tabs, and what moves a terminal's cursor or cannot be written."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", " ".join(text.split()))
