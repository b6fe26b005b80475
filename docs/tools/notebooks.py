"""Notebooks from scripts: python docs/tools/notebooks.py [NAME ...]

A script of ``examples/notebooks/`` has its cells under ``# %%``, text under ``# %% [markdown]``. It
is executed here, and what its cells print and show becomes a page of the documentation with SVG
pictures, and an .ipynb to open. Building the documentation executes nothing.

This is a file of our own, since all it takes is to execute cells and to write two formats: with
jupytext, nbclient and a kernel it would be a dozen packages, and pictures would not be shared by
the page and the notebook.
"""

import ast
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nestruct.plots import Picture

ROOT = Path(__file__).parents[2]
SCRIPTS, PAGES = ROOT / "examples" / "notebooks", ROOT / "docs" / "notebooks"


@dataclass
class Cell:
    """A cell: its text or code, and what came of it."""

    source: str
    is_text: bool
    printed: str = ""
    shown: Any = None


def cells_of(script: str) -> list[Cell]:
    """The cells of a script in order, those before the first mark left out."""
    _, *parts = re.split(r"^# %%", script, flags=re.MULTILINE)
    found = []
    for part in parts:
        head, _, body = part.partition("\n")
        is_text = head.strip() == "[markdown]"
        lines = body.strip("\n").splitlines()
        if is_text:
            lines = [line.removeprefix("#").removeprefix(" ") for line in lines]
        found.append(Cell("\n".join(lines), is_text))
    return found


def execute(cells: list[Cell]) -> None:
    """Runs code cells one after the other, in a folder of their own."""
    names: dict[str, Any] = {"__name__": "__main__"}
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for number, cell in enumerate(cells):
                if not cell.is_text:
                    _execute(cell, names, f"<cell {number}>")
        finally:
            os.chdir(before)


def to_page(cells: list[Cell], name: str, folder: Path) -> str:
    """The page as Markdown; its pictures are written beside it."""
    title, *rest = cells
    heading, _, text = title.source.partition("\n")
    files = f"Open it as [a notebook]({name}.ipynb), or run `examples/notebooks/{name}.py`."
    parts = [heading, text.strip("\n"), files]
    for number, cell in enumerate(rest, start=1):
        if cell.is_text:
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        if cell.printed:
            parts.append(f"```text\n{cell.printed.rstrip()}\n```")
        if isinstance(cell.shown, Picture):
            file = f"{name}-{number}.svg"
            cell.shown.save(folder / file)
            parts.append(f"![What the cell above shows]({file})")
    return "\n\n".join(parts) + "\n"


def to_notebook(cells: list[Cell]) -> str:
    """The notebook as Jupyter opens it."""
    found = []
    for number, cell in enumerate(cells):
        common = {"id": f"cell-{number}", "metadata": {}, "source": cell.source}
        if cell.is_text:
            found.append(common | {"cell_type": "markdown"})
            continue
        outputs: list[dict[str, Any]] = []
        if cell.printed:
            outputs.append({"output_type": "stream", "name": "stdout", "text": cell.printed})
        if isinstance(cell.shown, Picture):
            data = {"image/svg+xml": cell.shown.svg}
            outputs.append({"output_type": "display_data", "metadata": {}, "data": data})
        found.append(common | {"cell_type": "code", "execution_count": None, "outputs": outputs})
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    whole = {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": found}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def render(name: str, folder: Path = PAGES) -> list[Cell]:
    """Executes a script and writes its page, pictures and notebook."""
    cells = cells_of((SCRIPTS / f"{name}.py").read_text(encoding="utf-8"))
    execute(cells)
    for old in folder.glob(f"{name}-*.svg"):
        old.unlink()
    page = to_page(cells, name, folder)
    (folder / f"{name}.md").write_text(page, encoding="utf-8")
    (folder / f"{name}.ipynb").write_text(to_notebook(cells), encoding="utf-8")
    return cells


def _execute(cell: Cell, names: dict[str, Any], where: str) -> None:
    """Runs a cell; the value of its last line, where that is an expression, is what it shows."""
    tree = ast.parse(cell.source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, where, "exec"), names)
        if isinstance(last, ast.Expr):
            cell.shown = eval(compile(ast.Expression(last.value), where, "eval"), names)
            if cell.shown is not None and not isinstance(cell.shown, Picture):
                print(repr(cell.shown))
    cell.printed = printed.getvalue()


if __name__ == "__main__":
    for chosen in sys.argv[1:] or sorted(file.stem for file in SCRIPTS.glob("*.py")):
        render(chosen)
        print(f"docs/notebooks/{chosen}.md")
