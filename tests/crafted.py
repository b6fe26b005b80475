"""Run folders as a malicious stranger would make them: every checksum is right.

A case is a name, the run that it is made from, and a function that edits a copy of it. Whatever
lies beside the copy (`lay_out`) is what no command may touch.
"""

import hashlib
import json
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import crafted_files
import crafted_states
from crafted_states import DEEP, HTML, LAST, Case, edit_state, goes_on, put, write_all


def cases() -> list[Case]:
    """All of them, no two with the same name."""
    found = [
        *crafted_states.cases(),
        *_links(),
        *_kinds(),
        *_configs(),
        *_logs(),
        *_values(),
    ]
    assert len({case.name for case in found}) == len(found)
    return found


FILES = ("config.toml", "metrics.jsonl", "structures.jsonl", "environment.json", "details.json")
FOLDERS = ("checkpoints", LAST, "checkpoints/best", "checkpoints/last.previous", "tensorboard")
WRITING = (".lock", "checkpoints/.writing", "checkpoints/.writing2", ".config.toml.1.writing")


def lay_out(folder: Path, runs: Path, case: Case) -> None:
    """A crafted run, and what lies beside it and is somebody's own."""
    (folder / "tmp").mkdir(parents=True)
    (folder / "outside" / "last").mkdir(parents=True)
    (folder / "outside" / "last" / "state.json").write_text("mine")
    (folder / "outside" / "thesis.txt").write_text("my thesis\n" * 50)
    (folder / "outside" / "config.toml").write_text("mine = 1\n")
    shutil.copytree(runs / "nes", folder / "outside" / "run")
    shutil.copytree(runs / case.base, folder / "run")
    crafted_files.plant_code(folder)
    case.edit(folder / "run")


def contents(folder: Path) -> dict[str, tuple]:
    """Everything in a folder: kind, time of the last change, content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        stat = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (stat.st_mode, stat.st_mtime_ns, content)
    return found


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def _links():
    """Links in place of files and folders."""
    for name in (*FILES, *FOLDERS, *WRITING, f"{LAST}/state.json", f"{LAST}/model.safetensors"):
        targets = {
            "a file": "outside/thesis.txt",
            "a folder": "outside",
            "a run": f"outside/run/{name}",
            "nowhere": "outside/new",
            "itself": f"run/{name}",
        }
        for what, target in targets.items():

            def edit(run: Path, name=name, target=target) -> None:
                edit_state(run, goes_on)
                _remove(run / name)
                (run / name).symlink_to(run.parent / target)

            yield Case(f"{name} a link to {what}", "nes", edit)

    def hard(run: Path) -> None:
        edit_state(
            run,
            lambda state: (goes_on(state), state["loop"]["lines"].update({"metrics.jsonl": 0})),
        )
        (run / "metrics.jsonl").unlink()
        os.link(run.parent / "outside" / "thesis.txt", run / "metrics.jsonl")

    yield Case("metrics.jsonl a hard link", "nes", hard)


def _kinds():
    """Pipes, folders and files with holes in place of files, and files in place of folders."""

    def sparse(path: Path, size: int = 2**40) -> None:
        with path.open("wb") as file:
            file.truncate(size)

    for name in (*FILES, ".lock", f"{LAST}/state.json", f"{LAST}/model.safetensors"):
        for what, make in {"a pipe": os.mkfifo, "a folder": Path.mkdir, "1 TB": sparse}.items():
            if name == ".lock" and what == "1 TB":
                continue

            def edit(run: Path, name=name, make=make) -> None:
                edit_state(run, goes_on)
                _remove(run / name)
                make(run / name)

            yield Case(f"{name} {what}", "nes", edit)
    for name in FOLDERS:
        for what, make in {"a pipe": os.mkfifo, "a file": Path.touch}.items():

            def edit(run: Path, name=name, make=make) -> None:
                edit_state(run, goes_on)
                _remove(run / name)
                make(run / name)

            yield Case(f"{name} {what}", "nes", edit)


def set_config(run: Path, text: str) -> None:
    """Another configuration, which the checkpoints know."""
    write_all(run, "config.toml", text)
    edit_state(run, lambda state: state.update(config=text), "checkpoints/")


def set_metrics(run: Path, text: str) -> None:
    """Another log, which the checkpoints know."""
    write_all(run, "metrics.jsonl", text)
    content = text.encode()
    lines, digest = content.count(b"\n"), hashlib.sha256(content).hexdigest()

    def change(state: dict) -> None:
        goes_on(state)
        state["loop"]["lines"]["metrics.jsonl"] = lines
        state["loop"].setdefault("digests", {})["metrics.jsonl"] = digest

    edit_state(run, change, "checkpoints/")


def _configs():
    """Configurations."""

    def replace(name: str, *lines: str, base: str = "nes") -> Case:
        """Other values of some options, `table.option = value`."""

        def edit(run: Path) -> None:
            edit_state(run, goes_on)
            text, table = [], ""
            wanted = dict(line.split(" = ", 1) for line in lines)
            for line in (run / "config.toml").read_text().splitlines():
                table = f"{line[1:-1]}." if line.startswith("[") and line[1:2].isalpha() else table
                key = table + line.partition(" = ")[0]
                text.append(
                    f"{line.partition(' = ')[0]} = {wanted[key]}" if key in wanted else line
                )
            set_config(run, "\n".join(text) + "\n")

        return Case(f"config: {name}", base, edit)

    junk = ['"x"', "-1", "0", "1.5", "true", "[]", "{}", "nan", "inf", "9223372036854775807"]
    keys = [
        *("recipe", "title", "seed", "device", "data.name", "data.num_test", "data.num_nodes"),
        *("data.num_times", "data.seed", "model.name", "model.structure", "model.hidden_size"),
        *("model.variance", "model.kl_weight", "model.divergence", "model.batch_norm"),
        *("model.rollout_curriculum", "model.num_rollout_steps", "estimator.name"),
        *("estimator.sigma", "estimator.population_size", "estimator.mode", "optimizer.name"),
        *("optimizer.lr", "optimizer.betas", "optimizer.fused", "scheduler.name"),
        *("scheduler.T_max", "scheduler.last_epoch", "training.max_steps", "training.metric"),
        *("training.eval_batch_size", "training.batch_size", "training.checkpoint_seconds"),
        *("training.matmul_precision", "training.num_starts", "training.smoothing_gap"),
    ]
    for place, key in enumerate(keys):
        for number in range(2):
            value = junk[(place * 3 + number * 5) % len(junk)]
            yield replace(f"{key} {value}", f"{key} = {value}")
    for name, line in {
        "a callable": 'model.name = "os:system"',
        "a module beside it": 'model.name = "evil:Evil"',
        "a module as estimator": 'estimator.name = "evil:Evil"',
        "a module as structure": 'model.structure = "evil:Evil"',
        "a path": 'data.name = "./evil.py:Evil"',
        "a wide module": 'data.name = "\uff45vil:Evil"',
        "an entry point beside it": 'estimator.name = "evil-entry"',
        "a folder as data": 'data.name = "../../outside"',
        "device meta": 'device = "meta"',
        "device cuda:10**9": 'device = "cuda:1000000000"',
        "10**12 hidden units": "model.hidden_size = 1000000000000",
        "10**15 examples": "data.num_test = 1000000000000000",
        "10**12 nodes": "data.num_nodes = 1000000000000",
        "5,000 digits": f"seed = {'9' * 5000}",
        "30 digits": f"optimizer.lr = {'9' * 30}",
        "200,000 brackets": f"seed = {DEEP}",
        "20,000 dots": f"seed = 1\n{'a.' * 20_000}a = 1",
        "1 MB": f'title = "{"a" * 2**20}"',
        "HTML": f'title = "{HTML[:-1].replace(chr(27), "")}"',
    }.items():
        yield replace(name, line)
    for name, text in {
        "empty": "",
        "no TOML": "[[[",
        "binary": "\0\1\2",
        "tables are words": 'recipe = "x"\ndata = "x"\nmodel = 1\ntraining = []\n',
        "arrays of tables": 'recipe = "x"\n[[data]]\n[[model]]\n[[training]]\n',
    }.items():
        yield Case(f"config.toml {name}", "nes", partial(set_config, text=text))
    for name, vectors in {"a pipe": "pipe", "zeros": "/dev/zero", "NUL": r"/a\u0000b"}.items():

        def edit(run: Path, vectors=vectors) -> None:
            os.mkfifo(run / "pipe")
            (run / "train.conllu").write_text("1\ta\t_\t_\t_\t_\t0\troot\t_\t_\n\n" * 20)
            where = run / vectors if vectors == "pipe" else vectors
            text = (run / "config.toml").read_text()
            start, end = text.index("[data]"), text.index("[model]")
            data = f'[data]\nname = "treebanks"\nsource = "{run}"\nembeddings = "{where}"\n'
            set_config(run, text[:start] + data + text[end:])

        yield Case(f"word vectors {name}", "parser", edit)


def _logs():
    """Lines of the logs."""
    texts = {
        "200,000 brackets": DEEP + "\n",
        "a list": "[]\n",
        "no step": '{"split": "train"}\n',
        "step a word": '{"step": "x", "split": "train"}\n',
        "step 2**63": '{"step": 9223372036854775808, "split": "train"}\n',
        "step 10**18": '{"step": 1000000000000000000, "split": "validation", "loss": 1}\n',
        "step true": '{"step": true, "split": "train"}\n',
        "step negative": '{"step": -5, "split": "validation", "loss": 1}\n',
        "split a list": '{"step": 1, "split": []}\n',
        "timing a list": '{"step": 1, "split": "train", "timing": []}\n',
        "timing of words": '{"step": 1, "split": "train", "timing": {"seconds": "x"}}\n',
        "5,000 digits": '{"step": 1, "split": "train", "loss": %s}\n' % ("9" * 5000),
        "1e400": '{"step": 1, "split": "validation", "loss": 1e400}\n',
        "1e308": '{"step": 1, "split": "validation", "loss": 1e308, "x": -1e308}\n' * 3,
        "metric a table": '{"step": 1, "split": "validation", "loss": {"a": 1}}\n',
        "metric a list": '{"step": 1, "split": "test", "loss": [1], "best_step": "x"}\n',
        "counts of words": '{"step": 1, "split": "train", "evaluations": "x", "decoded": "y"}\n',
        "best_step 1e308": '{"step": 1, "split": "test", "loss": 1, "best_step": 1e308}\n',
        "HTML": json.dumps({"step": 1, "split": HTML, HTML: 1.0, "loss": 2}) + "\n",
        "a formula": '{"step": 1, "split": "validation", "=1+1": 1, "loss": 2}\n',
        "20,000 metrics": json.dumps(
            {"step": 1, "split": "validation", "loss": 1} | {f"m{i}": i for i in range(20_000)}
        )
        + "\n",
        "3,000 splits": "".join(
            f'{{"step": 1, "split": "s{i}", "loss": 1}}\n' for i in range(3000)
        ),
        "binary": "\0\1\2\n",
        "NaN": '{"step": NaN, "split": "train"}\n',
    }
    for name, text in texts.items():
        yield Case(f"metrics.jsonl {name}", "nes", partial(set_metrics, text=text))


def _values():
    """Every value of the other files that a report reads, in turn, as something else."""
    junk = ["x", -1, None, [], {}, 1e308, 10**17, True, [[["a"]]], {"a": {"b": []}}, HTML, [None]]
    number = 0
    for base, name, line in [
        ("nes", "structures.jsonl", 0),
        ("nes", "structures.jsonl", 1),
        ("parser", "structures.jsonl", 0),
        ("parser", "structures.jsonl", 1),
        ("parser", "details.json", 0),
        ("nes", "environment.json", 0),
    ]:
        for place in range(40):
            number += 1
            edit = partial(_edit_value, name=name, line=line, place=place, value=junk[number % 12])
            yield Case(f"{base} {name} line {line} value {place}", base, edit)


def _edit_value(run: Path, name: str, line: int, place: int, value: Any) -> None:
    text = (run / name).read_text()
    lines = text.splitlines() if name.endswith(".jsonl") else [text]
    tree = json.loads(lines[line])
    paths = _paths(tree)
    put(tree, paths[place * 7 % len(paths)], value)
    lines[line] = json.dumps(tree)
    (run / name).write_text("\n".join(lines) + "\n")


def _paths(tree: Any, above: tuple = ()) -> list[tuple]:
    """All places in a tree; of a list the first two, and of those no more than a few levels."""
    if len(above) > 5:
        return []
    items = list(tree.items()) if isinstance(tree, dict) else list(enumerate(tree))[:2]
    found = []
    for key, value in items:
        found.append((*above, key))
        if isinstance(value, dict | list):
            found += _paths(value, (*above, key))
    return found
