"""From run folders to something to look at: one HTML page that opens without a network.

Everything here is made from run files only (``config.toml``, ``metrics.jsonl``,
``environment.json``, ``structures.jsonl``), so a page can be redrawn where nothing was trained:
no torch, no model, no plotting library. ``runs.py`` reads folders, ``page.py`` writes the page.
"""

from nestruct.reports.page import write_page
from nestruct.reports.runs import Group, Run, group_runs, read_run

__all__ = ["Group", "Run", "group_runs", "read_run", "write_page"]
