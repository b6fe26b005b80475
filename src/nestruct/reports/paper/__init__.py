"""What belongs to the paper's tables: its numbers, its tasks, its metrics, its names for methods.

Importing this package adds them to the registries of `nestruct.reports`: metrics, namings and
sections. The modules of `nestruct.reports` itself know nothing of it.

`published` has the printed numbers (``published.toml``) and which run belongs beside which of them;
`comparison` makes Table 1, `parsing` Table 2, `sizes` Table 3, `gaps` the appendix's figure, and
`attachment` compares parsers sentence by sentence.
"""

from collections.abc import Callable, Sequence

from nestruct.reports.groups import Group
from nestruct.reports.metrics import METRICS
from nestruct.reports.names import NAMINGS
from nestruct.reports.paper.attachment import attachment_charts, attachment_tables, is_counted
from nestruct.reports.paper.comparison import structure_tables
from nestruct.reports.paper.gaps import gap_table, has_gaps
from nestruct.reports.paper.metrics import PAPER_METRICS
from nestruct.reports.paper.parsing import parsing_tables
from nestruct.reports.paper.published import PaperWords, PublishedTable, published_tables
from nestruct.reports.paper.sizes import size_tables
from nestruct.reports.sections import METHODS, SECTIONS, Content, ReportSection, report_tables
from nestruct.reports.tables import Table

METRICS.update(PAPER_METRICS)
NAMINGS.append(PaperWords())
# How a table is made, by the option that its columns are values of.
_FORMS: dict[str, Callable[[PublishedTable, Sequence[Group]], list[Table]]] = {
    "model.structure": structure_tables,
    "data.target": parsing_tables,
    "model.hidden_size": size_tables,
}


def paper_sections(*, tiny: str | None = None) -> list[ReportSection]:
    """A section for each published table, and one for the figure of smoothing gaps.

    Args:
        tiny: Of the runs of ``nestruct reproduce table2 --tiny``, ``table2``: they stand in the
            rows of that table, whatever their data, and nothing is compared.
    """
    if tiny is None:
        tables, gaps = list(published_tables()), "Smoothing gap"
    else:
        tables = [table.tiny() for table in published_tables() if table.key == tiny]
        gaps = "Smoothing gap (tiny: not comparable)"
    of_gaps = ReportSection(gaps, has_gaps, lambda groups: Content([gap_table(groups, gaps)]))
    return [*map(_published, tables), of_gaps]


def paper_tables(groups: Sequence[Group], *, tiny: str | None = None) -> list[Table]:
    """The published tables that runs belong to, with ours beside, and what they cost.

    Args:
        groups: Runs.
        tiny: As for `paper_sections`.
    """
    return report_tables(groups, paper_sections(tiny=tiny))


def sections(*, tiny: str | None = None) -> list[ReportSection]:
    """Every section of a report; see `paper_sections`."""
    others = [section for section in SECTIONS if section not in _PAPER]
    return [*paper_sections(tiny=tiny), *others]


def _published(table: PublishedTable) -> ReportSection:
    def ours(groups: Sequence[Group]) -> list[Group]:
        return [group for group in groups if table.row(group.runs[0]) is not None]

    def render(groups: Sequence[Group]) -> Content:
        return Content(_FORMS[table.column](table, ours(groups)))

    return ReportSection(table.title, lambda groups: bool(ours(groups)), render)


_ATTACHMENT = ReportSection(
    "Attachment by length",
    is_counted,
    lambda groups: Content(attachment_tables(groups), attachment_charts(groups)),
)
_PAPER = paper_sections()
SECTIONS.insert(SECTIONS.index(METHODS) + 1, _ATTACHMENT)
SECTIONS[:0] = _PAPER
