"""Packs what is worth keeping of runs: the small files, and no word of a treebank.

    python benchmarks/keep_runs.py RUNS results/NAME-runs.tar.xz [--logs]

Every run folder below RUNS that was tested goes into the archive: ``config.toml``,
``environment.json``, ``metrics.jsonl``, ``details.json``, and of ``structures.jsonl`` the first
evaluation and the one whose model was kept (none of it with ``--logs``). Of a run that a search
tried, ``metrics.jsonl`` keeps the evaluations only. The licences of treebanks
do not let their sentences be passed on with these files: words are left out, and trees are drawn
over relations.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from nestruct.reports import read_run
from nestruct.reports.archives import pack_runs
from nestruct.training.recipes.plan import TRY

FILES = ("config.toml", "environment.json", "metrics.jsonl", "details.json", "attachment.json")
PRIVATE = "treebanks"  # the data whose words stay where they are


def keep(run: Path, target: Path, *, logs: bool = False) -> bool:
    """Copies one run, or its logs alone; whether it was tested."""
    found = read_run(run)
    if "test" not in found.records:
        return False
    target.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        if (run / name).is_file():
            (target / name).write_bytes((run / name).read_bytes())
    if run.name.startswith(TRY):
        path = target / "metrics.jsonl"
        records = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(x for x in records if json.loads(x)["split"] != "train"), "utf-8")
    if found.scene is not None and found.frames and not logs:
        scene = dict(found.scene)
        if found.option("data.name") == PRIVATE:
            drawing = scene.get("drawing") or {}
            scene["drawing"] = {key: value for key, value in drawing.items() if key != "words"}
        best = [frame for frame in found.frames[1:] if frame["step"] == found.best_step]
        lines = [scene, found.frames[0], *best]
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        (target / "structures.jsonl").write_text(text, encoding="utf-8")
    return True


def main() -> None:
    names = [word for word in sys.argv[1:] if word != "--logs"]
    if len(names) != 2:
        sys.exit(__doc__)
    source, archive = map(Path, names)
    runs = sorted(config.parent for config in source.rglob("config.toml"))
    with TemporaryDirectory() as folder:
        places = {run: Path(folder) / run.relative_to(source) for run in runs}
        kept = [
            place for run, place in places.items() if keep(run, place, logs="--logs" in sys.argv)
        ]
        pack_runs(kept, archive)
    print(f"{len(kept)} of {len(runs)} runs are in {archive}.")


if __name__ == "__main__":
    main()
