"""The structures that runs found as they learnt, drawn once, for the page's script to play.

A drawing has every part that was ever found or true. ``data-seen`` of a part has a 1 for each
evaluation that found it: the script shows an evaluation by giving parts their classes. Without a
script, the page shows what the model that was kept finds.
"""

import base64
import html
import struct
import zlib
from collections.abc import Sequence

from nestruct.reports.curves import thin
from nestruct.reports.groups import Group
from nestruct.reports.names import goes_on
from nestruct.reports.runs import Record, Run
from nestruct.reports.shapes import Shape, draw_arcs, draw_cells, drawing, panel, shape_of

# Most runs; then, of one run and of all together, most evaluations, examples, and evaluations that
# show the model itself.
PLAYERS = 16
FRAMES, ALL_FRAMES = 60, 600
EXAMPLES, ALL_EXAMPLES = 12, 48
MODELS, ALL_MODELS = 12, 32
LONG = 11  # arcs: a sentence with more gets the page's whole width


def players(groups: Sequence[Group]) -> str:
    """One player for each run that noted structures, the first one shown; empty where none did."""
    with_frames = ([run for run in group.runs if run.scene and run.frames] for group in groups)
    runs = [
        (k, group, run)
        for group, members in zip(groups, with_frames, strict=True)
        for k, run in enumerate(members)
    ]
    if len(runs) > PLAYERS:  # one run of each group, then the second ones
        runs.sort(key=lambda item: item[0])
    left_out, num_runs = len(runs) - PLAYERS, min(len(runs), PLAYERS)
    drawn: list[str] = []
    for _, group, run in runs[:PLAYERS]:
        name = run.path.name if run.seed is None else f"seed {run.seed}"
        with drawing(run):
            drawn.append(_player(run, f"{group.label}: {name}", num_runs, hidden=bool(drawn)))
    if left_out > 0:
        drawn.append(f'<p class="note">{left_out} other runs have structures too.</p>')
    return "".join(drawn)


def _player(run: Run, name: str, num_runs: int, *, hidden: bool) -> str:
    scene = run.scene or {}
    steps = [frame["step"] for frame in run.frames]
    best = steps.index(run.best_step) if run.best_step in steps else len(steps) - 1
    kept = thin(len(steps), _share(FRAMES, ALL_FRAMES, num_runs, least=8), keep=best)
    frames, learned = [run.frames[k] for k in kept], kept.index(best)
    truth, shape = scene.get("true"), shape_of(scene)
    most = _share(EXAMPLES, ALL_EXAMPLES, num_runs, least=2)
    first = "start" if goes_on(run) else "untrained"
    first = first if steps[0] == 0 else f"step {steps[0]}"
    images = (scene.get("drawing") or {}).get("images") or []
    cards = []
    for k in range(min(most, len(frames[0]["map"]))):
        maps = [frame["map"][k] for frame in frames]
        panels = panel(scene, k, "true", None, name="true", frames=maps) if truth else ""
        panels += panel(scene, k, first, maps[0], name="untrained", frames=maps)
        panels += panel(
            scene, k, "learned", maps[learned], name="learned", frames=maps, played=True
        )
        image = _image(images[k], 1, "image", f"example {k + 1}") if k < len(images) else ""
        cards.append(
            f'<div class="card" data-example="{k}"><h3>example {k + 1}</h3><div class="example">'
            f'{image}<div class="panels">{panels}</div></div></div>'
        )
    long = shape.draw is draw_arcs and any(len(parts) > LONG for parts in frames[0]["map"])
    kinds = {"stacked": shape.stacked, "pictured": bool(images), "broad": long}
    kind = " ".join(["cards", *(word for word, has in kinds.items() if has)])
    noun = shape.noun if shape.noun == "category" else "structure"
    return (
        f'<div class="player" data-name="{html.escape(name)}" data-learned="{learned}" '
        f'data-steps="{" ".join(str(frame["step"]) for frame in frames)}"{" hidden" * hidden}>'
        f'<p class="note">{_note(scene, first, shape)}</p>{_legend(shape) if truth else ""}'
        f"{_models(frames, learned, num_runs, noun)}"
        f'<div class="{kind}">{"".join(cards)}</div></div>'
    )


def _note(scene: Record, first: str, shape: Shape) -> str:
    who = "model that training starts from" if first == "start" else "untrained model"
    truth = "The truth, what" if scene.get("true") else "What"
    words = (
        f"{truth} the {who} finds, and what it finds after training: the most likely {shape.noun} "
        "of each example."
    )
    if (scene.get("drawing") or {}).get("paths"):
        words += " Dots are where the particles end; with the truth, lines fade back in time."
    return words


def _legend(shape: Shape) -> str:
    texts = {"right": "right {}", "wrong": "wrong {} (dashed)", "missed": "missed {} (thin)"}
    drawn = '<line class="edge" x1="2" x2="28" y1="6" y2="6"/>'
    if shape.draw is draw_cells:
        drawn = '<rect class="chosen" x="9" y="1" width="10" height="10" rx="2"/>'
    spans = [
        f'<span><svg class="swatch" viewBox="0 0 30 12" aria-hidden="true"><g class="part {kind}">'
        f"{drawn}</g></svg>{text.format(shape.unit)}</span>"
        for kind, text in texts.items()
    ]
    return f'<div class="legend">{"".join(spans)}</div>'


def _models(frames: Sequence[Record], learned: int, num_runs: int, noun: str) -> str:
    """What the model showed of itself: first, best, last and between, or only at the best step."""
    shown = [k for k, frame in enumerate(frames) if frame.get("model")]
    if not shown:
        return ""
    limit = min(MODELS, ALL_MODELS // num_runs)
    keep = shown.index(learned) if learned in shown else len(shown) - 1
    kept = [shown[k] for k in thin(len(shown), limit, keep=keep)] if limit > 2 else [shown[keep]]
    return "".join(
        f'<div class="model" data-frame="{k}"{" hidden" * (k != shown[keep])}>'
        f"{_model(frames[k], noun)}</div>"
        for k in kept
    )


def _model(frame: Record, noun: str) -> str:
    at, model, maps = f"step {frame['step']:,}", frame["model"], frame["map"]
    prototypes = []
    for k, rows in enumerate(model.get("prototypes") or []):
        members = sum(any(part[0] == k for part in parts) for parts in maps)
        said = f"{members or 'no'} example{'s' * (members > 1)}"
        image = _image(rows, 15, "prototype", f"what {noun} {k} decodes to at {at}")
        caption = f"<figcaption><b>{noun} {k}</b><br>{said}</figcaption>"
        unused = "" if members else ' class="unused"'
        prototypes.append(f"<figure{unused}>{image}{caption}</figure>")
    samples = [
        f"<figure>{_image(rows, 15, 'sample', f'sample {k + 1} at {at}')}</figure>"
        for k, rows in enumerate(model.get("samples") or [])
    ]
    return _images(
        f"What each {noun} decodes to",
        f"The probability of each pixel at {at}, and how many of the {len(maps)} examples have "
        f"that {noun} there.",
        prototypes,
    ) + _images(
        "Samples from the model",
        f"At {at}: a {noun} at random, then each pixel at random. All steps share the same draws.",
        samples,
    )


def _images(title: str, note: str, figures: Sequence[str]) -> str:
    if not figures:
        return ""
    head = f'<h3>{title}</h3><p class="note">{note}</p>'
    return f'{head}<div class="images">{"".join(figures)}</div>'


def _image(rows: Sequence[str], full: int, figure: str, label: str) -> str:
    """Rows of digits from 0 (paper) to full (ink) as a picture, a pixel each."""
    width, height = len(rows[0]), len(rows)
    grey = [bytes(255 - 255 * int(digit, 16) // full for digit in row) for row in rows]
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in grey), 9)
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
    )
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return (
        f'<img class="image" data-figure="{figure}" alt="{label}" width="{width}" '
        f'height="{height}" src="{source}">'
    )


def _share(most: int, altogether: int, num_runs: int, *, least: int) -> int:
    return max(least, min(most, altogether // num_runs))
