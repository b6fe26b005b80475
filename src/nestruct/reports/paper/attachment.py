"""What parsers attach on the same test sentences: who is better, and where.

From the counts that a run notes of its test data: differences with intervals
(`nestruct.reports.paper.bootstrap`), and the share of rightly attached words by sentence length and
by the true arc's length. Words without punctuation everywhere, as published.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from nestruct.errors import InputError
from nestruct.reports.charts import Series, draw_buckets, swatch
from nestruct.reports.groups import Group
from nestruct.reports.names import short_names
from nestruct.reports.paper.bootstrap import Difference, paired_bootstrap
from nestruct.reports.paper.comparison import chosen
from nestruct.reports.paper.published import pair_name, published_tables
from nestruct.reports.runs import Record, Run
from nestruct.reports.tables import Cell, Table

# The first length of each bucket; the last is open. An arc of length 0 is one from the root.
SENTENCES = (1, 11, 21, 31, 41)
ARCS = (0, 1, 2, 3, 6, 11)
_LENGTHS = (
    ("scored", SENTENCES, "words in the sentence"),
    ("arcs", ARCS, "length of the true arc"),
)
MOST = 12  # parsers in a chart of runs that no published table chooses from


@dataclass(frozen=True)
class OneTest:
    """Parsers that were tested on the same sentences.

    Attributes:
        name: Which sentences.
        parsers: Groups of runs, by name.
    """

    name: str
    parsers: dict[str, Group]


def compare(
    first: Group, second: Group, *, which: str = "best", against: str = "best"
) -> Difference | None:
    """How much more of the test words one group attaches than another; None where not counted.

    Args:
        first: Runs of one configuration.
        second: Runs of another.
        which: The first one's parameters: ``best`` or ``last``.
        against: The second one's.
    """
    one, two = _counted(first, which), _counted(second, against)
    if not (one and two) or _test(one[0]) != _test(two[0]):
        return None
    return paired_bootstrap(
        [_counts(run, which)["scored_right"] for run in one],
        [_counts(run, against)["scored_right"] for run in two],
        _of(one[0])["scored"],
    )


def say_difference(found: Difference) -> Cell:
    """A difference in points, its interval, and in how many resamples the first is better."""
    value, low, high = (100 * end for end in (found.value, found.low, found.high))
    text = f"{value:+.2f} ({low:+.2f} to {high:+.2f}) {100 * found.share:.0f} %"
    return Cell(text, value, extra={"from": low, "to": high, "better in": found.share})


def by_test_set(groups: Sequence[Group]) -> list[OneTest]:
    """Parsers by what they were tested on; of a published table's runs, those in its cells."""
    cells = {id(group) for group in _in_cells(groups)}
    sets: dict[tuple, list[Group]] = {}
    for group in groups:
        runs = _counted(group, "best")
        if not runs or runs[0].option("model.objective") == "decoder":
            continue
        if id(group) in cells or not any(t.row(runs[0]) for t in published_tables()):
            sets.setdefault((_name(runs[0]), *_test(runs[0])), []).append(group)
    found = []
    for (name, *_), members in sets.items():
        firsts, labels = [g.runs[0] for g in members], [g.label for g in members]
        names = short_names(firsts, labels)[:MOST]
        found.append(OneTest(name, dict(zip(names, members[:MOST], strict=True))))
    return found


def is_counted(groups: Sequence[Group]) -> bool:
    """True if some run is a parser that noted what it attached."""
    return bool(by_test_set(groups))


def attachment_tables(groups: Sequence[Group]) -> list[Table]:
    """By sentence length and by arc length, every parser of every test set."""
    sets = by_test_set(groups)
    tables = []
    for (key, starts, _), title, note in zip(
        _LENGTHS,
        ("Attachment by sentence length", "Attachment by arc length"),
        (
            "Words in the sentence.",
            "Words between a word and its true head, the head included; root: it has none.",
        ),
        strict=True,
    ):
        columns = [("", "parser"), ("", "test")]
        columns += [("UAS (%)", label) for label in labels(starts)]
        rows = []
        for test in sets:
            first = _counted(next(iter(test.parsers.values())), "best")[0]
            sizes = [sum(c) for c in _bucketed(first, key, starts, None)]
            cells = [Cell(f"{size:,}", size) for size in sizes]
            rows.append([Cell("how many words"), Cell(test.name), *cells])
            for name, group in test.parsers.items():
                shares = zip(*_shares(group, key, starts), strict=True)
                cells = [_mean(values) for values in shares]
                rows.append([Cell(name), Cell(test.name), *cells])
        tables.append(Table(title, columns, rows, [note, "Punctuation does not count."]))
    return tables


def attachment_charts(groups: Sequence[Group]) -> str:
    """For each test set a pair of charts, and what the last epoch changed, as HTML."""
    parts = []
    for test in by_test_set(groups):
        legend = "".join(
            f"<span>{swatch(k)}{html.escape(name)}</span>" for k, name in enumerate(test.parsers)
        )
        figures = ""
        for key, starts, over in _LENGTHS:
            lines = {k: _line(_shares(g, key, starts)) for k, g in enumerate(test.parsers.values())}
            title = f"UAS (%) by {over}, {test.name}"
            figures += draw_buckets(title, over, labels(starts), lines)
        for key, starts, over in _LENGTHS:
            lines = _changes(test, key, starts)
            if lines:
                title = f"Change after the last epoch, against source only (points), {test.name}"
                figures += draw_buckets(title, over, labels(starts), lines)
        head = f'<div class="legend above">{legend}</div>'
        parts.append(f'{head}<div class="charts">{figures}</div>')
    note = '<p class="note">Line: mean of the runs. Band: smallest to largest of them.</p>'
    return "\n".join([*parts, note])


def labels(starts: Sequence[int]) -> list[str]:
    """What buckets of lengths are called.

    Example:
        >>> labels((0, 1, 2, 6))
        ['root', '1', '2 to 5', '6 and more']
    """
    names = [
        "root" if low == 0 else str(low) if high == low + 1 else f"{low} to {high - 1}"
        for low, high in pairwise(starts)
    ]
    return [*names, f"{starts[-1]} and more"]


def _name(run: Run) -> str:
    is_generated = run.option("data.name") == "grammar"
    return pair_name(run) or ("generated treebank" if is_generated else "test data")


def _in_cells(groups: Sequence[Group]) -> list[Group]:
    """What stands in the cells of published tables about parsers."""
    found = []
    for table in published_tables():
        if table.column == "data.target":
            for column in table.columns:
                for row in table.rows:
                    group = chosen(table, groups, row, column, metric="uas")
                    found += [] if group is None else [group]
    return found


def _counted(group: Group, which: str) -> list[Run]:
    """The runs of a group whose counts are known, where all are about the same sentences."""
    runs = [run for run in group.runs if which in _of(run).get("models", {})]
    return runs if all(_test(run) == _test(runs[0]) for run in runs) else []


def _of(run: Run) -> Record:
    """What a parser noted of its test sentences; empty where a run has none, or is no parser."""
    found = run.details or {}
    if "arcs" not in found:
        return {}
    sizes = {key: len(value) for key, value in found.items() if isinstance(value, list)}
    models, keys = found.get("models"), ("words", "scored", "arcs")
    good = found.get("format") == 1 and isinstance(models, dict) and set(keys) <= set(sizes)
    good = good and sizes["words"] == sizes["scored"]
    for counts in models.values() if good and models else ():
        good = good and all(len(counts.get(f"{key}_right") or []) == sizes[key] for key in keys)
    if not good:
        raise InputError(
            f"{run.path} notes what it attached in a form that this version does not write; make "
            f"that again with `nestruct evaluate {run.path}`, or remove the file."
        )
    return found


def _counts(run: Run, which: str) -> Record:
    return _of(run)["models"][which]


def _test(run: Run) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What tells one test set from another."""
    return tuple(_of(run)["words"]), tuple(_of(run)["scored"])


def _bucketed(run: Run, key: str, starts: Sequence[int], which: str | None) -> list[list[int]]:
    """The counts in each bucket: all words, or the right ones of some parameters."""
    counts = _of(run)[key] if which is None else _counts(run, which)[f"{key}_right"]
    lengths = _of(run)["words"] if key == "scored" else range(len(counts))
    buckets: list[list[int]] = [[] for _ in starts]
    for length, count in zip(lengths, counts, strict=True):
        buckets[sum(length >= start for start in starts) - 1].append(count)
    return buckets


def _changes(test: OneTest, key: str, starts: Sequence[int]) -> dict[int, Series]:
    """What training changed up to its last epoch, whatever was kept, by the parser's place."""
    sources = {
        str(group.runs[0].option("model.structure")): group
        for group in test.parsers.values()
        if group.runs[0].option("model.objective") == "parser"
    }
    lines = {}
    for place, group in enumerate(test.parsers.values()):
        source = sources.get(str(group.runs[0].option("model.structure")))
        if source is None or source is group or not _counted(group, "last"):
            continue
        starts_at = _line(_shares(source, key, starts)).mean
        ends_at = _line(_shares(group, key, starts, "last"))
        moved = [
            [value - start for value, start in zip(values, starts_at, strict=True)]
            for values in (ends_at.mean, ends_at.low, ends_at.high)
        ]
        lines[place] = Series(ends_at.xs, *moved)
    return lines


def _line(shares: Sequence[Sequence[float | None]]) -> Series:
    """Mean and range over runs in each bucket that has words."""
    columns = [[v for v in values if v is not None] for values in zip(*shares, strict=True)]
    xs = [k for k, values in enumerate(columns) if values]
    known = [columns[k] for k in xs]
    means = [sum(values) / len(values) for values in known]
    return Series([*map(float, xs)], means, [*map(min, known)], [*map(max, known)])


def _shares(
    group: Group, key: str, starts: Sequence[int], which: str = "best"
) -> list[list[float | None]]:
    """For each run the share of right words in each bucket, in per cent; None where it is empty."""
    found = []
    for run in _counted(group, which):
        every = map(sum, _bucketed(run, key, starts, None))
        right = map(sum, _bucketed(run, key, starts, which))
        found.append([100 * r / n if n else None for r, n in zip(right, every, strict=True)])
    return found


def _mean(values: Sequence[float | None]) -> Cell:
    known = [value for value in values if value is not None]
    mean = sum(known) / len(known) if known else None
    return Cell() if mean is None else Cell(f"{mean:.1f}", mean)
