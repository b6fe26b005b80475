"""What each method recovered, beside the truth: particles, their paths, and trees between them."""

from collections.abc import Sequence
from statistics import median_low

from nestruct.reports.groups import Group
from nestruct.reports.names import method_name, short_names, structure_name
from nestruct.reports.runs import Record, Run
from nestruct.reports.shapes import drawing, nodes_of, panel, structure_noun

EXAMPLES = ((2, 6), (9, 4), (99, 2))  # up to so many methods: so many examples
PANELS = 9  # methods of each latent space beside the truth


def trajectories(groups: Sequence[Group]) -> str:
    """For a few examples: paths with the true tree, then the tree that each method recovered.

    Of each group the run in the middle is drawn (median F1 on validation), at the step whose model
    was kept. Empty where no run has particles.
    """
    shown = [(group, middle_run(group)) for group in groups]
    drawn = [(group, run) for group, run in shown if run is not None and nodes_of(run.scene or {})]
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


def _card(example: int, scene: Record, shown: Sequence[tuple[str, Run]]) -> str:
    panels = [panel(scene, example, "true", None)]
    for k, (name, run) in enumerate(shown):
        if k and structure_name(run) != structure_name(shown[k - 1][1]):
            panels.append('<div class="break"></div>')
        with drawing(run):
            panels.append(panel(scene, example, name, _kept(run)["map"][example]))
    head = f'<h3>example {example + 1}</h3><div class="panels">'
    return f'<div class="card" data-example="{example}">{head}{"".join(panels)}</div></div>'


def _kept(run: Run) -> Record:
    """The frame of the model that was kept, else the last."""
    return next((f for f in run.frames if f["step"] == run.best_step), run.frames[-1])
