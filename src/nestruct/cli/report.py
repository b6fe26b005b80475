"""``nestruct report``: one page about any number of runs, or its tables as text."""

import sys
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from nestruct.cli.arguments import Flag
from nestruct.errors import InputError
from nestruct.reports import (
    find_runs,
    read_groups,
    report_tables,
    to_csv,
    to_markdown,
    write_page,
)


def report(
    runs: Annotated[tuple[Path, ...], Positional, arg(metavar="DIR ...", help_behavior_hint="")],
    /,
    *,
    output: Annotated[
        Path | None, arg(aliases=["-o"], metavar="PAGE.html", help_behavior_hint="")
    ] = None,
    title: Annotated[str | None, arg(metavar="TEXT", help_behavior_hint="")] = None,
    markdown: Flag = False,
    csv: Flag = False,
) -> int:
    """Write one HTML page about runs: methods, structures, curves, cost, configuration.

    Runs that differ in their seed only are one row and one curve with a band. The page holds all it
    needs and opens from disk. `--markdown` and `--csv` print its tables instead of, or beside, a
    page.

    Args:
        runs: Run folders, or archives of them (.tar.xz, .tar.gz). A folder that is no run stands
            for the runs in it.
        output: The page to write.
        title: The page's title.
        markdown: Print the tables as Markdown.
        csv: Print the tables as CSV, with full numbers.
    """
    if output is None and not (markdown or csv):
        raise InputError("Say what to make: -o PAGE.html, --markdown or --csv.")
    folders, others = find_runs(runs)
    for path in others:
        print(f"nestruct: left out, no run is there: {path}", file=sys.stderr)
    if not folders:
        raise InputError("There is no run to report on: no folder with a config.toml was found.")
    if output is not None:
        write_page(folders, output, title=title)
    if markdown or csv:
        tables = report_tables(read_groups(folders))
        for form in [to_markdown] * markdown + [to_csv] * csv:
            print("\n".join(map(form, tables)), end="")
    if output is not None:
        out = sys.stderr if markdown or csv else sys.stdout
        print(f"Wrote {output}: open it in a browser.", file=out)
    return 0
