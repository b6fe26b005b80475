"""Pictures: structures of every kind, curves of runs, scores of methods.

They are SVG files of a few kilobytes, drawn by what draws the pages of `nestruct report`. A
notebook shows a `Picture` that is the last line of a cell; `Picture.save` writes it.
"""

import base64
import html
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from nestruct.checks import check_count
from nestruct.errors import InputError
from nestruct.files import write_whole
from nestruct.models import ParsedSentence
from nestruct.reports import charts as drawn
from nestruct.reports.curves import POINTS, axes, series
from nestruct.reports.curves import charts as find_charts
from nestruct.reports.page import read_groups, style
from nestruct.reports.scores import draw_scores
from nestruct.reports.sentences import draw_sentence
from nestruct.reports.shapes import draw_example, shape_of
from nestruct.structures import Structure
from nestruct.training.drawings import described, parts_of

_GAP, _TITLE = 22, 20  # pixels
_PALETTE = re.compile(r"(--\w+): (#\w+);")


@dataclass(frozen=True)
class Picture:
    """An SVG drawing.

    Attributes:
        svg: Its text.

    Example:
        >>> import nestruct.plots
        >>> nestruct.plots.scores({"NES": 1.5}, label="loss").svg[:4]
        '<svg'
    """

    svg: str

    def save(self, path: str | Path) -> None:
        """Writes it; the file is whole or not there.

        Args:
            path: A name that ends in .svg.
        """
        if Path(path).suffix != ".svg":
            raise InputError(f"A picture is saved as SVG: give a name in .svg, got {path}.")
        write_whole(Path(path), self.svg.encode())

    def _repr_html_(self) -> str:
        coded = base64.b64encode(self.svg.encode()).decode()
        return f'<img src="data:image/svg+xml;base64,{coded}" alt="">'


def structures(
    structure: Structure,
    z: Tensor | Mapping[str, Tensor],
    *,
    truth: Tensor | None = None,
    paths: Tensor | None = None,
    words: Sequence[Sequence[str]] | None = None,
    examples: int = 4,
) -> Picture:
    """Draws structures: graphs, arcs over words, brackets, sequences, paths, subsets.

    Args:
        structure: What they are.
        z: Structures ``[examples, *parts]``, or several such by title, a row for each.
        truth: The true structures: parts are then coloured as right, wrong and missed.
        paths: Where nodes go over time ``[examples, nodes, times, 2]``, for graphs.
        words: The words of each example, for trees over sentences.
        examples: How many of them are drawn, from the first on.

    Example:
        >>> import torch, nestruct, nestruct.plots
        >>> tree = nestruct.SpanningTree(5)
        >>> z = tree.argmax(torch.randn(2, 10, generator=torch.Generator().manual_seed(0)))
        >>> picture = nestruct.plots.structures(tree, z)
        >>> picture.svg.count("<line")  # two trees of four edges
        8
    """
    check_count("plots.structures", "examples", examples, 1)
    rows = z if isinstance(z, Mapping) else {"": z}
    shown = {title: _examples(structure, value, examples) for title, value in rows.items()}
    scene: dict[str, Any] = described(structure) | {"true": None, "drawing": {}}
    if truth is not None:
        scene["true"] = _examples(structure, truth, examples)
    if paths is not None:
        scene["drawing"]["paths"] = paths[:examples].tolist()
    if words is not None:
        scene["drawing"]["words"] = [list(each) for each in words[:examples]]
    for what, given in (("truth", scene["true"]), ("words", words)):
        if given is not None and len(given) < max(map(len, shown.values()), default=0):
            raise InputError(f"plots.structures: {what} must be there for every example drawn.")
    grid = [
        (title, [draw_example(scene, k, parts) for k, parts in enumerate(found)])
        for title, found in shown.items()
    ]
    if shape_of(scene).stacked:  # wide drawings stand below each other
        grid = [(title, [cell]) for title, cells in grid for cell in cells]
    return _arranged(grid)


def sentences(parsed: ParsedSentence | Sequence[ParsedSentence]) -> Picture:
    """Draws sentences with their dependency trees, one below the other.

    Args:
        parsed: What ``parse`` of a parser gives.

    Example:
        >>> import nestruct.plots
        >>> from nestruct.models import ParsedSentence
        >>> tree = ParsedSentence(("It", "barks"), (2, 0), ("nsubj", "root"))
        >>> nestruct.plots.sentences(tree).svg.count('class="tip"')  # an arrow for each word
        2
    """
    every = [parsed] if isinstance(parsed, ParsedSentence) else list(parsed)
    cells = [draw_sentence(one.words, one.heads, one.labels) for one in every]
    return _arranged([("", [cell]) for cell in cells])


def curves(
    runs: str | Path | Sequence[str | Path],
    metric: str | None = None,
    *,
    split: str = "validation",
    against: Literal["step", "evaluations", "seconds"] = "step",
    log: bool | None = None,
) -> Picture:
    """Draws a metric of runs as they went on; repeats with other seeds are a mean and a band.

    Args:
        runs: Run folders, or folders and archives of them.
        metric: Its name in ``metrics.jsonl``; the first that the report draws when None.
        split: ``validation`` or ``train``.
        against: What stands below.
        log: Whether values are on a logarithmic scale; as the report has it when None.

    Example:
        >>> import tempfile, torch, nestruct, nestruct.plots
        >>> from nestruct.models import mlp
        >>> vae = nestruct.StructuredVAE(mlp(6, 4), mlp(4, 6), nestruct.Categorical(4))
        >>> adam, x = torch.optim.Adam(vae.parameters()), torch.ones(10, 6)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     options = {"run": f"{folder}/run", "max_steps": 4, "eval_interval": 2}
        ...     _ = nestruct.fit(
        ...         vae, nestruct.Enumeration(), adam, x, validation=x, progress=False, **options
        ...     )
        ...     picture = nestruct.plots.curves(options["run"], "loss")
        >>> picture.svg.count('class="mean"')
        1
    """
    groups = read_groups([runs] if isinstance(runs, str | Path) else list(runs))
    every = [chart for chart in find_charts(groups) if chart.split == split]
    chart = next((chart for chart in every if metric in (None, chart.metric)), None)
    if chart is None:
        there = ", ".join(dict.fromkeys(chart.metric for chart in every)) or "none"
        raise InputError(f"plots.curves: {metric} of {split} is not in the runs; there is {there}.")
    axis = next((axis for axis in axes(groups) if axis.key == against), None)
    if axis is None:
        raise InputError(f"plots.curves: the runs do not say their {against}; take step.")
    log = chart.log if log is None else log
    found = {k: series(groups[k], chart, axis, log=log, limit=POINTS) for k in chart.groups}
    lines = {k: line for k, line in found.items() if line is not None}
    if not lines:
        raise InputError(f"plots.curves: {chart.metric} has no point to draw against {against}.")
    names, order = {k: groups[k].label for k in lines}, list(lines)
    look = {k: place for place, k in enumerate(order)}
    looks = [look.get(k, 0) for k in range(len(groups))]
    inner = drawn.draw_lines(chart, axis, log, lines, names, looks, order)
    cells = [f'<svg width="{drawn.WIDTH}" height="{drawn.HEIGHT}"{inner}</svg>']
    for k in order:
        text = (
            f'<text class="word" x="40" y="16" style="text-anchor:start">{_safe(names[k])}</text>'
        )
        swatch = drawn.swatch(look[k]).replace("<svg ", '<svg y="5" width="30" height="12" ', 1)
        width = 48 + 7 * len(names[k])
        cells.append(f'<svg width="{width}" height="22">{swatch}{text}</svg>')
    return _arranged([(chart.label, cells[:1]), *(("", [cell]) for cell in cells[1:])])


def scores(
    values: Mapping[str, float | Sequence[float] | np.ndarray | Tensor],
    *,
    label: str,
    baselines: Mapping[str, float] | None = None,
) -> Picture:
    """Draws one number for each seed of each method: a dot for a seed, a line for their mean.

    Args:
        values: A number, or several (a list, an array), by method.
        label: What the numbers are.
        baselines: What needs no learning, as dotted lines.

    Example:
        >>> import nestruct.plots
        >>> found = {"StructureNES": [97.2, 97.5], "SST": 97.7}
        >>> picture = nestruct.plots.scores(found, label="F1", baselines={"shortest tree": 81.4})
        >>> picture.svg.count("<circle")
        3
    """
    try:
        seeds = {name: np.ravel(value).astype(float).tolist() for name, value in values.items()}
    except (TypeError, ValueError):
        raise InputError(
            "plots.scores: values must be numbers, one or several by method."
        ) from None
    if not seeds or not all(seeds.values()):
        raise InputError("plots.scores: give each method at least one number.")
    if not all(math.isfinite(value) for some in seeds.values() for value in some):
        raise InputError("plots.scores: a value is not finite; leave it out.")
    return _arranged([("", [draw_scores(seeds, label, baselines or {})])])


def _examples(structure: Structure, z: Tensor, examples: int) -> list[list[list[int]]]:
    axes = structure.part_axes
    if not isinstance(z, Tensor) or z.dim() not in (axes, axes + 1):
        got = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
        raise InputError(
            f"plots.structures: structures of {structure!r} have {axes} axes of parts, and one of "
            f"examples before them; got {got}."
        )
    return parts_of(torch.atleast_1d(z if z.dim() > axes else z[None])[:examples])


def _arranged(rows: Sequence[tuple[str, Sequence[str]]]) -> Picture:
    """Rows of SVG elements below each other, each with its title above."""
    parts: list[str] = []
    top, widest = 8.0, 0.0
    for title, cells in rows:
        if title:
            parts.append(f'<text class="word title" x="8" y="{top + 14:g}">{_safe(title)}</text>')
            top += _TITLE
        left, height = 8.0, 0.0
        for cell in cells:
            width, tall = (float(_attribute(cell, name)) for name in ("width", "height"))
            parts.append(cell.replace("<svg ", f'<svg x="{left:g}" y="{top:g}" ', 1))
            left, height = left + width + _GAP, max(height, tall)
        top, widest = top + height + 8, max(widest, left - _GAP)
    size = f'width="{widest + 8:g}" height="{top:g}" viewBox="0 0 {widest + 8:g} {top:g}"'
    rules, light = _style()
    body = f'<rect width="100%" height="100%" fill="var(--paper)" class="paper"/>{"".join(parts)}'
    body = re.sub(r"var\((--\w+)\)", lambda name: light[name[1]], body)
    return Picture(
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{rules}</style>{body}</svg>\n'
    )


def _style() -> tuple[str, dict[str, str]]:
    """The rules of drawings with their colours filled in, light and dark, and the light ones."""
    text = re.sub(r"/\*.*?\*/", "", style(), flags=re.DOTALL)
    head, _, rest = text.partition("@media")
    dark_head, _, rules = rest.partition("}\n}")
    light, dark = (dict(_PALETTE.findall(part)) for part in (head, dark_head))
    rules += ".paper { fill: var(--paper); } .title { font-weight: 600; text-anchor: start; }"
    rules += " text { font-family: system-ui, sans-serif; }"
    rules = " ".join(rules.split())

    def filled(palette: Mapping[str, str]) -> str:
        return re.sub(r"var\((--\w+)\)", lambda name: palette[name[1]], rules)

    return f"{filled(light)} @media (prefers-color-scheme: dark) {{ {filled(dark)} }}", light


def _attribute(element: str, name: str) -> str:
    found = re.search(rf'\b{name}="([0-9.]+)"', element)
    assert found, element[:80]
    return found[1]


def _safe(text: str) -> str:
    return html.escape(text)
