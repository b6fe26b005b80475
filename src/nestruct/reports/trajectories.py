"""Particles as drawings that need no script: their paths, the true tree, and the recovered ones."""

import html
from collections.abc import Sequence
from statistics import median_low
from typing import Any

from nestruct.reports.groups import Group
from nestruct.reports.published import method_name, short_names, structure_name
from nestruct.reports.runs import Record, Run
from nestruct.reports.summary import structure_noun

SIZE, PAD = 150, 14
EXAMPLES = ((2, 6), (9, 4), (99, 2))  # up to so many methods: so many examples
PANELS = 9  # methods of each latent space beside the truth
Part = Sequence[int]


def trajectories(groups: Sequence[Group]) -> str:
    """For a few examples: paths with the true tree, then the tree that each method recovered.

    Of each group the run in the middle is drawn (median F1 on validation), at the step whose model
    was kept. Empty where no run has particles.
    """
    shown = [(group, middle_run(group)) for group in groups]
    drawn = [(group, run) for group, run in shown if run is not None and num_nodes(run)]
    if not drawn:
        return ""
    scene = drawn[0][1].scene or {}
    same = [
        (group, run)
        for group, run in drawn
        if run.scene and run.scene["drawing"] == scene["drawing"]
    ]
    noun = structure_noun([run for _, run in same])
    noun = noun if noun == "tree" else "edges"
    spaces = dict.fromkeys(structure_name(run) for _, run in same)
    panels = [
        pair
        for space in spaces
        for pair in _fewer([pair for pair in same if structure_name(pair[1]) == space])
    ]
    names = short_names([run for _, run in panels], [group.label for group, _ in panels])
    found = [(name, run) for name, (_, run) in zip(names, panels, strict=True)]
    examples = next(several for most, several in EXAMPLES if len(found) <= most)
    cards = [_card(k, scene, found) for k in range(min(examples, len(scene["true"])))]
    left_out = len(groups) - len(panels)
    words = (
        f"Lines fade back in time, dots are where the particles end. First the true {noun}, which "
        f"no method was shown, then what each method recovered: right edges in blue, wrong ones "
        f"dashed, missed ones thin."
    )
    if any(len(group.runs) > 1 for group, _ in same):
        words += " Of several seeds, the one in the middle."
    if left_out:
        words += f" {left_out} of {len(groups)} groups have no drawing here."
    wide = " wide" if len(same) > 2 else ""
    return f'<p class="note">{words}</p><div class="cards{wide}">{"".join(cards)}</div>'


def _fewer(pairs: list[tuple[Group, Run]]) -> list[tuple[Group, Run]]:
    """Where there are too many to draw, the best of each method first."""
    if len(pairs) <= PANELS:
        return pairs
    best: dict[str | None, tuple[Group, Run]] = {}
    for pair in sorted(pairs, key=lambda pair: -(pair[1].value("best", "f1_map") or 0.0)):
        best.setdefault(method_name(pair[1]), pair)
    chosen = [pair for pair in pairs if pair in best.values()]
    rest = [pair for pair in pairs if pair not in chosen][: max(0, PANELS - len(chosen))]
    return [pair for pair in pairs if pair in chosen[:PANELS] or pair in rest]


def middle_run(group: Group) -> Run | None:
    """Of the runs that noted their structures, the one with the median F1."""
    runs = [run for run in group.runs if run.scene and run.frames]
    if not runs:
        return None
    scores = [run.value("best", "f1_map") or 0.0 for run in runs]
    return runs[scores.index(median_low(scores))]


def num_nodes(run: Run) -> int:
    """How many particles a run's structures connect; 0 where they are not edges between any."""
    scene = run.scene or {}
    paths = (scene.get("drawing") or {}).get("paths")
    if not paths or not scene.get("true"):
        return 0
    nodes = len(paths[0])
    options = scene.get("options") or {}
    if scene["structure"] == "SpanningTree":
        return nodes
    return nodes if options.get("num_items") == nodes * (nodes - 1) // 2 else 0


def edge_nodes(edge: int, nodes: int) -> tuple[int, int]:
    """The two ends of an undirected edge, numbered in triu order.

    Example:
        >>> [edge_nodes(edge, 4) for edge in range(6)]
        [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    """
    first = 0
    while edge >= nodes - 1 - first:
        edge -= nodes - 1 - first
        first += 1
    return first, first + 1 + edge


def _card(example: int, scene: Record, shown: Sequence[tuple[str, Run]]) -> str:
    paths = scene["drawing"]["paths"][example]
    place = _placed(paths)
    true = [tuple(part) for part in scene["true"][example]]
    panels = [_panel("true", "", [(part, "true") for part in true], paths, place, trails=True)]
    for k, (name, run) in enumerate(shown):
        if k and structure_name(run) != structure_name(shown[k - 1][1]):
            panels.append('<div class="break"></div>')
        found = [tuple(part) for part in _kept(run)["map"][example]]
        marks = [(part, "missed") for part in true if part not in found]
        marks += [(part, "right" if part in true else "wrong") for part in found]
        right = sum(part in true for part in found)
        said = f"{right} of {len(true)} edges"
        panels.append(_panel(name, said, marks, paths, place))
    head = f'<h3>example {example + 1}</h3><div class="panels">'
    return f'<div class="card" data-example="{example}">{head}{"".join(panels)}</div></div>'


def _kept(run: Run) -> Record:
    """The frame of the model that was kept, else the last."""
    return next((f for f in run.frames if f["step"] == run.best_step), run.frames[-1])


def _panel(
    title: str,
    said: str,
    marks: Sequence[tuple[Part, str]],
    paths: Sequence[Any],
    place: Any,
    *,
    trails: bool = False,
) -> str:
    ends = [place(path[-1]) for path in paths]
    parts = _trails(paths, place) if trails else []
    for part, mark in marks:
        (x1, y1), (x2, y2) = (ends[k] for k in edge_nodes(part[0], len(paths)))
        parts.append(f'<line class="edge {mark}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>')
    parts += [f'<circle class="dot" cx="{x}" cy="{y}" r="4.2"/>' for x, y in ends]
    label = html.escape(f"{title} {said}".strip())
    return (
        f'<figure data-panel="{"true" if trails else "recovered"}"><svg class="structure graph" '
        f'viewBox="0 0 {SIZE} {SIZE}" width="{SIZE}" height="{SIZE}" role="img" '
        f'aria-label="{label}">{"".join(parts)}</svg>'
        f"<figcaption><b>{html.escape(title)}</b><br>{said}</figcaption></figure>"
    )


def _trails(paths: Sequence[Any], place: Any) -> list[str]:
    """All paths, one drawing per step of time: the older, the fainter."""
    steps = len(paths[0]) - 1
    drawn = []
    for step in range(steps):
        pieces = []
        for path in paths:
            (x1, y1), (x2, y2) = place(path[step]), place(path[step + 1])
            pieces.append(f"M{x1} {y1}L{x2} {y2}")
        opacity = round(0.12 + 0.7 * (step + 1) / steps, 2)
        drawn.append(f'<path class="trail" opacity="{opacity}" d="{"".join(pieces)}"/>')
    return drawn


def _placed(paths: Sequence[Any]) -> Any:
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
