"""From run folders to something to look at: one HTML page that opens without a network.

Everything here is made from run files only (``config.toml``, ``metrics.jsonl``,
``environment.json``, ``structures.jsonl``, ``details.json``), so a page can be redrawn where
nothing was trained: no torch, no model, no plotting library. ``runs.py`` reads folders,
``groups.py`` finds repeats, ``methods.py``, ``comparison.py`` (Table 1), ``parsing.py`` (Table 2),
``sizes.py`` (Table 3), ``attachment.py`` and ``scoreboard.py`` make tables, ``page.py`` writes the
page.
"""

from nestruct.reports.groups import Group, group_runs
from nestruct.reports.page import paper_tables, read_groups, report_tables, write_page
from nestruct.reports.runs import Run, find_runs, read_run
from nestruct.reports.tables import Table, to_csv, to_markdown

__all__ = [
    "Group",
    "Run",
    "Table",
    "find_runs",
    "group_runs",
    "paper_tables",
    "read_groups",
    "read_run",
    "report_tables",
    "to_csv",
    "to_markdown",
    "write_page",
]
