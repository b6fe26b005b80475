"""A page read back: as a tree without its script, its tags in order, and as a browser has it."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import pytest
from reports.devtools import browser

from nestruct.reports import page as page_module

VOID = {"meta", "br", "input", "line", "circle", "path", "rect", "img"}


@dataclass
class Node:
    """An element, with elements and texts inside."""

    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list["Node | str"] = field(default_factory=list)

    @property
    def text(self) -> str:
        parts = (child if isinstance(child, str) else child.text for child in self.children)
        return "".join(parts)

    def all(self, tag: str = "", **attributes: str) -> Iterator["Node"]:
        """Every element inside with this tag and these attributes; ``kind`` stands for class."""
        wanted = {"class" if key == "kind" else key: value for key, value in attributes.items()}
        for child in self.children:
            if isinstance(child, Node):
                has = all(v in child.attributes.get(k, "").split() for k, v in wanted.items())
                if tag in ("", child.tag) and has:
                    yield child
                yield from child.all(tag, **attributes)

    def one(self, tag: str = "", **attributes: str) -> "Node":
        (found,) = self.all(tag, **attributes)
        return found


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [Node("")]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, {key: value or "" for key, value in attrs})
        self.open[-1].children.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop().tag == tag, f"</{tag}> at line {self.getpos()[0]}"

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parse(path: Path) -> Node:
    """A page as a tree; an element that is closed in the wrong place is an error."""
    reader = _Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    (root,) = reader.open
    return root


def rows(page: Node, section: str, nth: int = 0) -> list[dict[str, str]]:
    """The rows of a section's table, by column: what stands over it and its own name."""
    table = list(page.one(id=section).all("table"))[nth]
    *above, last = table.one("thead").all("tr")
    spans = [
        cell.text
        for row in above
        for cell in row.children
        if isinstance(cell, Node)
        for _ in range(int(cell.attributes.get("colspan", 1)))
    ]
    names = [head.text for head in last.all("th")]
    if spans:
        names = [f"{over} {name}".strip() for over, name in zip(spans, names, strict=True)]
    body = [[cell.text for cell in row.all("td")] for row in table.one("tbody").all("tr")]
    return [dict(zip(names, cells, strict=True)) for cells in body]


# ------------------------------------------------------------------ in a browser

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
in_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on this machine")


def opened(page: Path, query: str = "") -> tuple[str, list[str]]:
    """The document as the browser has it after its scripts ran, and what it complained about."""
    with browser(str(BROWSER)) as tab:
        tab.open(page, query=query)
        tab.play(5000)
        return tab.run("document.documentElement.outerHTML"), tab.complaints


def with_script(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Adds code to the page's own script: what a user would do, or a mistake."""
    asset = page_module._asset
    monkeypatch.setattr(
        page_module, "_asset", lambda name: asset(name) + (code if name == "page.js" else "")
    )
