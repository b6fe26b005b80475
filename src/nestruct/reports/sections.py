"""The sections of a report that are about some runs only: each says whether it applies.

``SECTIONS`` is the list of them, in the order in which a report has them. A package like
`nestruct.reports.paper` adds its own.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from nestruct.reports.budgets import budget_tables, has_tasks
from nestruct.reports.groups import Group
from nestruct.reports.methods import methods_table
from nestruct.reports.scoreboard import reaches_targets, scoreboard
from nestruct.reports.tables import Table


class Content(NamedTuple):
    """What a section shows.

    Attributes:
        tables: Its tables. Without drawings, each of them is a section of the page.
        drawings: HTML above the tables, which then fold away.
    """

    tables: Sequence[Table]
    drawings: str = ""


class ReportSection(NamedTuple):
    """A part of a report.

    Attributes:
        title: What it is about.
        applies: Says whether it has something to show of some groups of runs.
        render: Makes what it shows of them.
    """

    title: str
    applies: Callable[[Sequence[Group]], bool]
    render: Callable[[Sequence[Group]], Content]


METHODS = ReportSection("Methods", bool, lambda groups: Content([methods_table(groups)]))
SCOREBOARD = ReportSection(
    "Cost to target", reaches_targets, lambda groups: Content(scoreboard(groups))
)
EQUAL_BUDGETS = ReportSection(
    "Quality at equal budgets", has_tasks, lambda groups: Content(budget_tables(groups))
)
SECTIONS: list[ReportSection] = [EQUAL_BUDGETS, METHODS, SCOREBOARD]


def contents(
    groups: Sequence[Group], sections: Sequence[ReportSection] | None = None
) -> list[tuple[ReportSection, Content]]:
    """Every section that applies, with what it shows."""
    every = SECTIONS if sections is None else sections
    return [(section, section.render(groups)) for section in every if section.applies(groups)]


def report_tables(
    groups: Sequence[Group], sections: Sequence[ReportSection] | None = None
) -> list[Table]:
    """The tables that a report is about.

    Args:
        groups: Runs.
        sections: Whose tables; those of ``SECTIONS`` when None.
    """
    return [table for _, content in contents(groups, sections) for table in content.tables]
