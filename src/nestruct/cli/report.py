"""``nestruct report``: one page about any number of runs."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from nestruct.reports import write_page


def report(
    runs: Annotated[tuple[Path, ...], Positional, arg(metavar="DIR ...")],
    /,
    *,
    output: Annotated[Path, arg(aliases=["-o"], metavar="PAGE.html")],
    title: Annotated[str | None, arg(metavar="TEXT", help_behavior_hint="")] = None,
) -> int:
    """Write one HTML page about runs: curves, structures, cost, configuration.

    Runs that differ in their seed only are drawn as one curve with a band. The page holds all it
    needs and opens from disk.

    Args:
        runs: Run folders.
        output: The page to write.
        title: The page's title.
    """
    write_page(runs, output, title=title)
    print(f"Wrote {output}: open it in a browser.")
    return 0
