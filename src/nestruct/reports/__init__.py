"""From run folders to something to look at: one HTML page that opens without a network.

Everything here is made from run files only (``config.toml``, ``metrics.jsonl``,
``environment.json``, ``structures.jsonl``, ``details.json``), or an archive of them, so a page can
be redrawn where nothing was trained. ``runs.py`` reads, ``groups.py`` finds repeats,
``metrics.py`` says what is known of each metric, ``methods.py`` and ``scoreboard.py`` make tables,
``charts.py`` and ``shapes.py`` draw, ``page.py`` writes the page, ``sections.py`` lists what is in
it. ``paper/`` adds what belongs to the paper's tables; nothing else here knows of it.
"""

from nestruct.reports.archives import pack_runs
from nestruct.reports.groups import Group, group_runs
from nestruct.reports.metrics import METRICS, Metric
from nestruct.reports.page import read_groups, write_page
from nestruct.reports.paper import paper_tables
from nestruct.reports.runs import Run, find_runs, read_run
from nestruct.reports.sections import SECTIONS, ReportSection, report_tables
from nestruct.reports.tables import Table, to_csv, to_markdown

__all__ = [
    "METRICS",
    "SECTIONS",
    "Group",
    "Metric",
    "ReportSection",
    "Run",
    "Table",
    "find_runs",
    "group_runs",
    "pack_runs",
    "paper_tables",
    "read_groups",
    "read_run",
    "report_tables",
    "to_csv",
    "to_markdown",
    "write_page",
]
