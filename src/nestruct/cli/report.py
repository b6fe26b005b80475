"""``nestruct report``: one page about any number of runs, or its tables as text."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from nestruct.cli.arguments import Flag
from nestruct.errors import InputError, NestructError, first_line
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
    """Write one HTML page about runs: a verdict, then methods, structures, curves, cost.

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
    with _one_sentence():
        if output is not None:
            write_page(folders, output, title=title)
        tables = report_tables(read_groups(folders)) if markdown or csv else []
        texts = [
            form(table) for form in [to_markdown] * markdown + [to_csv] * csv for table in tables
        ]
    if texts:
        print("\n".join(texts), end="")
    if output is not None:
        out = sys.stderr if markdown or csv else sys.stdout
        print(f"Wrote {output}: open it in a browser.", file=out)
    return 0


@contextlib.contextmanager
def _one_sentence() -> Iterator[None]:
    """Says what in the files of a run, which may be a stranger's, nothing can be drawn of."""
    try:
        yield
    except (NestructError, OSError, MemoryError):
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {first_line(error)}"
        raise InputError(
            f"The files of these runs hold what no training wrote ({why}): leave out the run that "
            "is not yours, or update nestruct if all are."
        ) from error
