"""Structures as drawings: graphs over nodes, arcs over words, cells for everything else.

A drawing holds every part once, as a group with a class that says what it is: ``true``, ``right``,
``wrong``, ``missed``, ``plain`` (the truth is not known) or ``absent``. The page's style shows each
class in its own way, so that playing what was learnt over time only changes classes.
"""

import contextlib
import html
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from nestruct.errors import InputError
from nestruct.reports.runs import Record, Run

SIZE, PAD = 150, 15  # of a graph
MOST = 2000  # nodes, or empty cells, that are drawn, whatever a file says
Indices = Sequence[int]  # the indices of a part of a structure
Marks = Sequence[tuple[Indices, str]]  # parts with the attributes of their groups; empty: not drawn


class Shape(NamedTuple):
    """How a structure is drawn.

    Attributes:
        draw: Gives the drawing of one example from the scene, the example's number and its parts.
        unit: What a part is called.
        noun: What a structure is called.
        stacked: True if drawings are wide, and stand above each other.
    """

    draw: Callable[[Record, int, Marks], str]
    unit: str = "part"
    noun: str = "structure"
    stacked: bool = True


def shape_of(scene: Record) -> Shape:
    """How the structures of a run are drawn; those without a shape of their own as cells."""
    if nodes_of(scene):
        # Subsets of the pairs of particles are drawn as the graphs they are.
        return SHAPES["SpanningTree"]._replace(noun=_noun(scene))
    options = scene.get("options") or {}
    if options.get("several"):  # a row of cells, or several, for each structure of an example
        return Shape(draw_cells, noun=_noun(scene), stacked=False)
    shape = options.get("shape")
    return SHAPES.get(scene["structure"], Shape(draw_cells, stacked=len(shape or [0]) == 1))


def structure_noun(runs: Sequence[Run]) -> str:
    """What the runs' structures are called, where they share a name."""
    nouns = {_noun(run.scene) for run in runs if run.scene}
    return nouns.pop() if len(nouns) == 1 else "structure"


def nodes_of(scene: Record) -> int:
    """How many particles a scene's structures connect; 0 where they are not edges between any."""
    paths = (scene.get("drawing") or {}).get("paths")
    if not paths or not scene.get("true"):
        return 0
    nodes = len(paths[0])
    pairs = (scene.get("options") or {}).get("num_items") == nodes * (nodes - 1) // 2
    return nodes if pairs or scene["structure"] == "SpanningTree" else 0


def edge_nodes(edge: int, nodes: int) -> tuple[int, int]:
    """The two ends of an undirected edge, numbered in triu order.

    Example:
        >>> [edge_nodes(edge, 4) for edge in range(6)]
        [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    """
    if not 0 <= edge < nodes * (nodes - 1) // 2:
        raise IndexError(f"{nodes} nodes have no edge {edge}")
    first = 0
    while edge >= nodes - 1 - first:
        edge -= nodes - 1 - first
        first += 1
    return first, first + 1 + edge


def panel(
    scene: Record,
    example: int,
    title: str,
    found: Sequence[Indices] | None,
    *,
    name: str = "",
    frames: Sequence[Sequence[Indices]] = (),
    played: bool = False,
) -> str:
    """A figure of one example: the parts that were found, against the truth where it is known.

    Args:
        scene: What the structures are.
        example: Which example.
        title: What stands below it.
        found: The parts; those of the truth, with all paths, when None.
        name: What the script calls the figure.
        frames: The parts at every evaluation: figures of one example have room for all of them.
        played: Whether the script shows one evaluation after the other.
    """
    shape, true = shape_of(scene), scene["true"][example] if scene.get("true") else None
    wanted = {tuple(part) for part in true or ()}
    chosen = wanted if found is None else {tuple(part) for part in found}
    seen = [{tuple(part) for part in parts} for parts in frames]
    # What is true comes first: other parts are drawn over missed ones.
    every = [*sorted(wanted), *sorted(chosen.union(*seen) - wanted)]
    marks = []
    for part in every:
        kinds = ("missed", "right") if part in wanted else ("absent", "wrong")
        kinds = kinds if true is not None else ("absent", "plain")
        kind = kinds[part in chosen] if found is not None or part not in wanted else "true"
        bits = "".join("01"[part in parts] for parts in seen)
        more = f' data-seen="{bits}"' if played else ""
        named = f'class="part {kind}" data-part="{",".join(map(str, part))}"{more}'
        marks.append((part, named if played or kind != "absent" else ""))
    unit = f"{shape.unit}{'s' * (len(wanted) != 1)}"
    noun = shape.noun if shape.noun == "category" else ""  # what can be told in a word
    said = ", ".join(",".join(map(str, part)) for part in every if part in chosen)
    said = f"{noun} {said}" if noun and said else ""
    if true is not None:
        said = f"{len(wanted & chosen)} of {len(wanted)} {unit}" if found is not None else ""
    words = f' data-noun="{noun}"' if true is None else f' data-unit="{unit}"'
    return (
        f'<figure data-panel="{name}"{words}>{shape.draw(scene, example, marks)}'
        f"<figcaption><b>{html.escape(title)}</b><br><span>{said}</span></figcaption></figure>"
    )


def draw_example(scene: Record, example: int, found: Sequence[Indices]) -> str:
    """One example's drawing by itself: parts against the truth, where the scene has it."""
    true = scene["true"][example] if scene.get("true") else None
    chosen, wanted = {tuple(part) for part in found}, {tuple(part) for part in true or ()}
    marks = []
    for part in [*sorted(wanted), *sorted(chosen - wanted)]:  # others are drawn over missed ones
        kind = "right" if part in chosen else "missed"
        kind = kind if part in wanted else "wrong"
        marks.append((part, f'class="part {"plain" if true is None else kind}"'))
    return shape_of(scene).draw(scene, example, marks)


@contextlib.contextmanager
def drawing(run: Run) -> Iterator[None]:
    """Within this context, a structure that cannot be drawn is an error that names the run's file.

    Raises:
        InputError: An index is out of range, or something is no number.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError(
            f"{run.path / 'structures.jsonl'} cannot be drawn ({type(error).__name__}: {error}); "
            "mend it, or remove it to make the page without structures."
        ) from None


def draw_graph(scene: Record, example: int, marks: Marks) -> str:
    """Edges between nodes, where the particles end, or on a circle; their paths with the truth."""
    paths = ((scene.get("drawing") or {}).get("paths") or {example: None})[example]
    if paths is None:
        nodes = min((scene.get("options") or {}).get("num_nodes") or 2, MOST)
        angles = [2 * math.pi * k / nodes - math.pi / 2 for k in range(nodes)]
        paths = [[[math.cos(angle), math.sin(angle)]] for angle in angles]
    place = _placed(paths)
    ends = [place(path[-1]) for path in paths]
    parts = _trails(paths, place) if any("part true" in named for _, named in marks) else []
    for part, named in marks:
        (x1, y1), (x2, y2) = (ends[k] for k in edge_nodes(part[0], len(ends)))
        line = f'<line class="edge" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"/>'
        parts.append(_group(named, line))
    parts += [f'<circle class="dot" cx="{x:g}" cy="{y:g}" r="4.2"/>' for x, y in ends]
    return _svg("graph", SIZE, SIZE, parts)


def draw_arcs(scene: Record, example: int, marks: Marks) -> str:
    """Arcs from heads to dependents, above the words."""
    drawing = scene.get("drawing") or {}
    given = (drawing.get("words") or drawing.get("labels") or {example: None})[example]
    last = max([1, *(node for part, _ in marks for node in part)])
    root = (drawing.get("roots") or {example: "root"})[example]
    words = [str(root), *(given or map(str, range(1, last + 1)))]
    widths = [max(30, 7 * len(word) + 7) for word in words]
    xs = [sum(widths[:k]) + width / 2 for k, width in enumerate(widths)]
    heights = [10 + 13 * min(7, abs(head - dependent)) for (head, dependent), _ in marks]
    top = round(max([20, *heights]) * 0.78 + 8, 1)
    parts = []
    for ((head, dependent), named), height in zip(marks, heights, strict=True):
        a, b = xs[head], xs[dependent] - math.copysign(3, dependent - head)
        up = round(top - height, 1)
        line = f"M{a:g} {top:g}C{a:g} {up:g} {b:g} {up:g} {b:g} {top - 4:g}"
        tip = f'<path class="tip" d="M{b:g} {top:g}l-3-6h6z"/>'
        parts.append(_group(named, f'<path class="edge" d="{line}"/>{tip}'))
    for x, word in zip(xs, words, strict=True):
        safe = html.escape(str(word))
        parts.append(f'<text class="word" x="{x:g}" y="{top + 14:g}">{safe}</text>')
    return _svg("arc", sum(widths), top + 20, parts)


def draw_cells(scene: Record, example: int, marks: Marks) -> str:
    """Rows of cells: one row for one index (wrapped), a grid for two, leading axes as rows."""
    options = scene.get("options") or {}
    items, side = options.get("num_items") or options.get("num_classes"), options.get("size")
    axes = zip(*(part for part, _ in marks), strict=True)
    shape = options.get("shape") or ([side, side] if side else [items] if items else [None])
    if None in shape:  # examples are of different sizes: as large as what was found
        shape = [1 + max(axis) for axis in axes] or [1]
    total, columns = math.prod(shape), shape[-1] if len(shape) > 1 else min(20, shape[0])
    cell = 22 if len(shape) == 1 else max(5, min(22, 150 / columns))
    inner, corner = cell - (4 if cell > 10 else 1), ' rx="3"' if cell > 10 else ""

    def at(index: int) -> tuple[float, float]:
        return round(index % columns * cell + 2, 1), round(index // columns * cell + 2, 1)

    def box(index: int, kind: str) -> str:
        x, y = at(index)
        size = f'width="{inner:.3g}" height="{inner:.3g}"'
        return f'<rect class="{kind}" x="{x:g}" y="{y:g}" {size}{corner}/>'

    parts = [box(index, "cell") for index in range(min(total, MOST))]
    for part, named in marks:
        index = 0
        for size, k in zip(shape, part, strict=True):
            index = index * size + k
        (x, y), a, b = at(index), 0.3 * inner, 0.4 * inner
        cross = f"M{x + a:.4g} {y + a:.4g}l{b:.3g} {b:.3g}m0-{b:.3g}l-{b:.3g} {b:.3g}"
        drawn = f'{box(index, "chosen")}<path class="cross" d="{cross}"/>'
        parts.append(_group(named, drawn))
    return _svg("cells", columns * cell + 4, math.ceil(total / columns) * cell + 4, parts)


def draw_chain(scene: Record, example: int, marks: Marks) -> str:
    """States below each other at every position, and a line for each step from one to the next."""
    del example
    states, positions = _sizes(marks, (scene.get("options") or {}).get("num_states"))
    step, rise = 34, 20
    parts = [
        f'<circle class="dot faint" cx="{t * step + 8:g}" cy="{k * rise + 10:g}" r="2.4"/>'
        for t in range(positions + 1)
        for k in range(states)
    ]
    for (t, before, after), named in marks:
        x, y, to = t * step + 8, before * rise + 10, after * rise + 10
        ends = "".join(
            f'<circle class="knot" cx="{cx:g}" cy="{cy:g}" r="4"/>'
            for cx, cy in ((x, y), (x + step, to))
        )
        line = f'<line class="edge" x1="{x:g}" y1="{y:g}" x2="{x + step:g}" y2="{to:g}"/>'
        parts.append(_group(named, line + ends))
    return _svg("chain", positions * step + 16, states * rise, parts)


def draw_segments(scene: Record, example: int, marks: Marks) -> str:
    """Bars over the positions, one row for each state."""
    del example
    states, _ = _sizes(marks, (scene.get("options") or {}).get("num_states"))
    positions = 1 + max((last for (last, _, _), _ in marks), default=0)
    cell, rise = 22, 20
    parts = [
        f'<rect class="cell" x="{t * cell + 2}" y="{k * rise + 2}" width="{cell - 4}" height="14"/>'
        for t in range(positions)
        for k in range(states)
    ]
    for (last, longer, state), named in marks:
        x, width = (last - longer) * cell + 2, (longer + 1) * cell - 4
        place = f'x="{x}" y="{state * rise + 2}" width="{width}" height="14"'
        parts.append(_group(named, f'<rect class="chosen" {place} rx="3"/>'))
    return _svg("cells", positions * cell + 4, states * rise, parts)


def draw_spans(scene: Record, example: int, marks: Marks) -> str:
    """Brackets above the words that each of them spans, the longer the higher."""
    drawing = scene.get("drawing") or {}
    last = max((span[1] for span, _ in marks), default=0)
    given = (drawing.get("words") or drawing.get("labels") or {example: None})[example]
    words = [str(word) for word in given or range(1, last + 2)]
    widths = [max(26, 7 * len(word) + 9) for word in words]
    starts = [sum(widths[:k]) for k in range(len(widths) + 1)]
    rise, base = 11, 11 * min(12, last) + 16
    parts = []
    for (first, end, *_), named in sorted(marks, key=lambda mark: mark[0][0] - mark[0][1]):
        high = base - rise * min(12, end - first)
        x1, x2 = starts[first] + 4, starts[end + 1] - 4
        line = f"M{x1:g} {high + 5:g}V{high:g}H{x2:g}V{high + 5:g}"
        parts.append(_group(named, f'<path class="edge" d="{line}"/>'))
    for k, word in enumerate(words):
        x, safe = starts[k] + widths[k] / 2, html.escape(word)
        parts.append(f'<text class="word" x="{x:g}" y="{base + 18:g}">{safe}</text>')
    return _svg("arc", starts[-1], base + 24, parts)


def _sizes(marks: Marks, states: Any) -> tuple[int, int]:
    """How many states are drawn, and how many positions before the last."""
    found = [part for part, _ in marks]
    most = 1 + max((k for part in found for k in part[-2:]), default=0)
    positions = 1 + max((part[0] for part in found), default=0)
    return min(states if isinstance(states, int) else most, MOST), positions


SHAPES = {
    "SpanningTree": Shape(draw_graph, "edge", "tree", stacked=False),
    "ProjectiveTree": Shape(draw_arcs, "arc", "tree"),
    "NonProjectiveTree": Shape(draw_arcs, "arc", "tree"),
    "KSubset": Shape(draw_cells, "item", "subset"),
    "Categorical": Shape(draw_cells, "class", "category"),
    "Permutation": Shape(draw_cells, "place", "permutation", stacked=False),
    "LinearChain": Shape(draw_chain, "step", "sequence"),
    "SemiMarkov": Shape(draw_segments, "segment", "segmentation"),
    "Alignment": Shape(draw_cells, "cell", "alignment", stacked=False),
    "ConstituencyTree": Shape(draw_spans, "span", "tree"),
    "GridPath": Shape(draw_cells, "cell", "path", stacked=False),
    "MonotonePath": Shape(draw_cells, "cell", "path", stacked=False),
}


def _noun(scene: Record) -> str:
    return SHAPES.get(scene["structure"], Shape(draw_cells)).noun


def _group(attributes: str, drawn: str) -> str:
    return f"<g {attributes}>{drawn}</g>" if attributes else ""


def _svg(kind: str, width: float, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg class="structure {kind}" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" aria-hidden="true">{"".join(parts)}</svg>'
    )


def _trails(paths: Sequence[Any], place: Callable[[Any], tuple[float, float]]) -> list[str]:
    """All paths, one drawing per step of time: the older, the fainter."""
    steps = len(paths[0]) - 1
    drawn = []
    for step in range(steps):
        pieces = []
        for path in paths:
            (x1, y1), (x2, y2) = place(path[step]), place(path[step + 1])
            pieces.append(f"M{x1:g} {y1:g}L{x2:g} {y2:g}")
        opacity = round(0.12 + 0.7 * (step + 1) / steps, 2)
        drawn.append(f'<path class="trail" opacity="{opacity}" d="{"".join(pieces)}"/>')
    return drawn


def _placed(paths: Sequence[Any]) -> Callable[[Any], tuple[float, float]]:
    """From positions to pixels, with all of the paths inside."""
    points = [point for path in paths for point in path]
    low = [min(point[axis] for point in points) for axis in (0, 1)]
    high = [max(point[axis] for point in points) for axis in (0, 1)]
    factor = (SIZE - 2 * PAD) / (max(h - lo for h, lo in zip(high, low, strict=True)) or 1)

    def place(point: Sequence[float]) -> tuple[float, float]:
        x, y = (
            round(SIZE / 2 + (point[axis] - (low[axis] + high[axis]) / 2) * factor, 1)
            for axis in (0, 1)
        )
        return x, y

    return place
