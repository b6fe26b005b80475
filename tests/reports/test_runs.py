"""Run folders: what is read, what counts as one group, and what each mistake says."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from nestruct import InputError
from nestruct.reports import group_runs, read_groups, read_run
from nestruct.reports.runs import metric_names
from nestruct.training.run.checkpoint import Checkpoint, write_checkpoint
from nestruct.wording import flatten

CONFIG = """recipe = "tiny"
title = "{title}"
seed = {seed}
device = "{device}"

[estimator]
name = "NES"
sigma = {sigma}

[training]
max_steps = {max_steps}
metric = "{metric}"
maximize = {maximize}
"""


def write_run(
    folder: Path,
    *,
    title: str = "Small trees",
    seed: int = 0,
    device: str = "cpu",
    sigma: float = 0.1,
    max_steps: int = 40,
    metric: str = "loss",
    maximize: str = "false",
    steps: int = 40,
    tested: bool = True,
    scene: dict[str, Any] | None = None,
    frames: list[dict[str, Any]] | None = None,
) -> Path:
    """A run folder as training leaves it: the loss falls, F1 rises and is higher by the seed."""
    folder.mkdir(parents=True)
    fields = locals()
    (folder / "config.toml").write_text(CONFIG.format_map(fields), encoding="utf-8")
    records: list[dict[str, Any]] = []
    for step in range(steps + 1):
        timing = {"seconds": 2.0 * step, "evaluations_per_second": 50.0, "solver_share": 0.25}
        timing["solver_seconds_per_step"] = 0.012
        if step:
            loss = {"loss": 10 - step / 8, "loss_std": 1.5, "grad_norm": 1 / step, "failed": 0}
            train = {"step": step, "split": "train", "evaluations": 100 * step, "solved": 80 * step}
            records.append(train | loss | {"timing": timing})
        if step % 10 == 0:
            scores = {"loss": 11 - step / 8, "f1_map": 0.4 + step / 100 + seed / 100}
            valid = {"step": step, "split": "validation", "evaluations": 100 * step}
            records.append(valid | scores | {"timing": {"seconds": 2.0 * step}})
    if tested:
        test = {"step": steps, "split": "test", "best_step": steps - 10, "loss": 6.5}
        records.append(test | {"f1_map": 0.7 + seed / 100})
    write_lines(folder / "metrics.jsonl", records)
    environment = {"nestruct": "0.1", "device": device, "git": {"commit": "abc"}}
    (folder / "environment.json").write_text(json.dumps(environment), encoding="utf-8")
    if scene is not None:
        write_lines(folder / "structures.jsonl", [scene, *(frames or [])])
    return folder


def write_lines(file: Path, objects: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(o) + "\n" for o in objects), encoding="utf-8")


def test_a_run_is_read_whole(tmp_path):
    scene = {"format": 1, "structure": "KSubset", "options": {}, "true": None}
    frames = [{"step": 0, "map": [[[1]]]}, {"step": 10, "map": [[[2]]]}]
    run = read_run(write_run(tmp_path / "run", seed=3, scene=scene, frames=frames))
    assert (run.seed, run.last_step, run.max_steps, run.state) == (3, 40, 40, "finished")
    assert [r["step"] for r in run.validation] == [0, 10, 20, 30, 40]
    assert len(run.records["train"]) == 40
    assert run.best_step == 30
    moments = {when: run.value(when, "f1_map") for when in ("first", "best", "last", "test")}
    assert moments == pytest.approx({"first": 0.43, "best": 0.73, "last": 0.83, "test": 0.73})
    assert run.value("last", "no such metric") is None
    assert max(run.timings("seconds")) == 80
    assert run.environment["git"] == {"commit": "abc"}
    assert run.scene == scene
    assert run.frames == frames
    assert run.config_text.startswith("recipe")


def test_only_config_and_metrics_are_needed(tmp_path):
    (tmp_path / "config.toml").write_text("")
    (tmp_path / "metrics.jsonl").write_text("")
    run = read_run(tmp_path)
    assert (run.records, run.environment, run.scene, run.seed) == ({}, {}, None, None)
    assert run.state == "unfinished at step 0"
    assert group_runs([run])[0].label == tmp_path.name


def test_an_unfinished_run_says_where_it_stopped(tmp_path):
    run = read_run(write_run(tmp_path / "run", steps=20, max_steps=1200, tested=False))
    assert run.state == "unfinished at step 20 of 1,200"
    assert read_run(write_run(tmp_path / "full", tested=False)).finished


@pytest.mark.parametrize(
    ("loop", "finished"),
    [
        ({"reason": None, "step": 40}, False),  # killed in its test
        ({"reason": "finished", "step": 40}, True),
        ({"reason": "finished", "step": 20}, False),  # asked to go on for longer
        ({"reason": "stopped early", "step": 20}, True),
        (None, True),  # its checkpoints were not kept
    ],
)
@pytest.mark.parametrize("name", ["last", "last.previous"])
def test_the_last_checkpoint_says_whether_a_run_ended(tmp_path, name, loop, finished):
    folder = write_run(tmp_path / "run")
    if loop is not None:
        checkpoint = Checkpoint(model={}, optimizer={}, estimator={}, loop=loop)
        write_checkpoint(folder / "checkpoints", name, checkpoint)
    run = read_run(folder)
    assert run.finished == finished
    assert run.state == ("finished" if finished else "unfinished at step 40 of 40")


@pytest.mark.parametrize(
    ("metric", "maximize", "step"),
    [("loss", "false", 40), ("loss", "true", 0), ("no", "false", None)],
)
def test_without_a_test_line_the_best_step_follows_the_metric(tmp_path, metric, maximize, step):
    folder = write_run(tmp_path / "run", metric=metric, maximize=maximize, tested=False)
    assert read_run(folder).best_step == step


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path):
    file = write_run(tmp_path / "run", tested=False) / "metrics.jsonl"
    whole = file.read_bytes()
    for cut in (b'{"step": 41, "spl', b'{"step": 41, "split": "caf\xc3', b"41"):
        file.write_bytes(whole + cut)
        assert read_run(file.parent).last_step == 40
    file.write_bytes(whole + b'{"step": 41, "split": "train", "loss": 1.0}')
    assert read_run(file.parent).last_step == 41


def test_a_line_written_again_after_a_resume_counts_once(tmp_path):
    file = write_run(tmp_path / "run", tested=False) / "metrics.jsonl"
    again = {"step": 30, "split": "validation", "loss": 99.0}
    with file.open("a") as stream:
        stream.write(json.dumps(again) + "\n")
    run = read_run(file.parent)
    assert [r["step"] for r in run.validation] == [0, 10, 20, 30, 40]
    assert run.validation[3]["loss"] == 99.0


def test_values_that_are_no_numbers_are_no_metrics(tmp_path):
    folder = write_run(tmp_path / "run", tested=False)
    text = (
        '{"step": 0, "split": "validation", "loss": NaN, "a": null, "b": true, "c": "x", "d": 1}\n'
    )
    (folder / "metrics.jsonl").write_text(text)
    run = read_run(folder)
    assert run.value("first", "loss") is None
    assert metric_names(run.validation) == ["d"]
    assert metric_names([{"x": math.inf, "y": 10**400, "step": 1, "evaluations": 3}]) == []


def test_runs_that_differ_in_seed_and_device_are_one_group(tmp_path):
    folders = [
        write_run(tmp_path / "a", seed=0),
        write_run(tmp_path / "b", sigma=0.3),
        write_run(tmp_path / "c", seed=1, device="cuda"),
    ]
    groups = group_runs([read_run(folder) for folder in folders])
    assert [[run.path.name for run in group.runs] for group in groups] == [["a", "c"], ["b"]]
    assert [group.label for group in groups] == ["sigma 0.1", "sigma 0.3"]


def test_a_group_is_named_by_its_title_and_by_what_differs(tmp_path):
    folders = [
        write_run(tmp_path / "a", title="One"),
        write_run(tmp_path / "b", title="Two", sigma=0.1 + 0.2),
        write_run(tmp_path / "c", title="Two", sigma=0.5),
    ]
    groups = group_runs([read_run(folder) for folder in folders])
    assert [group.label for group in groups] == ["One", "Two, sigma 0.3", "Two, sigma 0.5"]


def test_an_option_is_compared_where_all_runs_tell_it(tmp_path):
    folders = [write_run(tmp_path / name, title="T", sigma=k) for k, name in enumerate("abc")]
    for folder, gap in zip(folders[1:], (0, 8), strict=True):
        config = (folder / "config.toml").read_text()
        (folder / "config.toml").write_text(f"{config}smoothing_gap = {gap}\n")
    labels = [g.label for g in group_runs([read_run(folder) for folder in folders[:2]])]
    assert labels == ["sigma 0", "sigma 1"]
    labels = [g.label for g in group_runs([read_run(folder) for folder in folders[::2]])]
    assert labels == ["sigma 0", "sigma 2"]
    labels = [g.label for g in group_runs([read_run(folder) for folder in folders[1:]])]
    assert labels == ["sigma 1, smoothing_gap 0", "sigma 2, smoothing_gap 8"]


def test_runs_that_differ_in_nothing_else_are_told_by_what_only_one_has(tmp_path):
    folders = [write_run(tmp_path / name, title="T") for name in "ab"]
    config = (folders[1] / "config.toml").read_text()
    (folders[1] / "config.toml").write_text(f"{config}smoothing_gap = 8\n")
    labels = [g.label for g in group_runs([read_run(folder) for folder in folders])]
    assert labels == ["T", "smoothing_gap 8"]


def test_a_recipe_whose_title_was_mended_is_the_same(tmp_path):
    folders = [write_run(tmp_path / name, title=name, seed=k) for k, name in enumerate("ab")]
    (group,) = group_runs([read_run(folder) for folder in folders])
    assert (group.label, len(group.runs)) == ("a", 2)
    text = (folders[1] / "config.toml").read_text()
    (folders[1] / "config.toml").write_text(text.replace('recipe = "tiny"', 'recipe = "other"'))
    assert len(group_runs([read_run(folder) for folder in folders])) == 2


def test_two_groups_never_share_a_label(tmp_path):
    more = "[a]\nx = 1\n"
    for name, config in {
        "a": 'title = "T"',
        "b": f'title = "T"\n{more}',
        "c": 'title = "x 1"',
    }.items():
        write_run(tmp_path / name)
        (tmp_path / name / "config.toml").write_text(config)
    labels = [g.label for g in group_runs([read_run(tmp_path / name) for name in "abc"])]
    assert len(set(labels)) == 3


def test_nested_tables_become_dotted_keys():
    assert flatten({"a": {"b": {"c": 1}}, "d": [2]}) == {"a.b.c": 1, "d": [2]}


BROKEN = {
    "config.toml": [("seed = \n", r"config\.toml cannot be read: .*line 1")],
    "environment.json": [
        ("{\n,}", r"environment\.json is not JSON: .*line 2"),
        ("[]", "one JSON object"),
    ],
    "metrics.jsonl": [
        (
            '{"step": 0, "split": "train"}\n{"st\n{"step": 2}\n',
            r"metrics\.jsonl, line 2, is broken",
        ),
        (
            '{"step": 0, "split": "train"}\n[1]\n',
            r"metrics\.jsonl, line 2, is broken: a JSON object",
        ),
        ('{"step": 0, "split": "train"}\n{"step": 1.5, "split": "train"}\n', "line 2: .*'step'"),
        ('{"step": 0}\n', "line 1: .*'split'"),
        ('{"step": 0, "split": "train", "timing": 3}\n', "line 1: 'timing'"),
    ],
    "structures.jsonl": [
        ('{"format": 2, "structure": "KSubset"}\n', "line 1: format 2 .*update nestruct"),
        ('{"format": 1, "structure": "KSubset"}\n{"step": 0}\n', "line 2: .*'map'"),
    ],
}


@pytest.mark.parametrize(
    ("name", "text", "message"), [(n, *case) for n, cases in BROKEN.items() for case in cases]
)
def test_a_broken_file_is_named_with_its_line(tmp_path, name, text, message):
    folder = write_run(tmp_path / "run")
    (folder / name).write_text(text)
    with pytest.raises(InputError, match=message):
        read_run(folder)


@pytest.mark.parametrize("name", ["metrics.jsonl", "details.json", "config.toml"])
def test_a_file_that_is_nested_too_deeply_is_refused(tmp_path, name):
    folder = write_run(tmp_path / "run")
    deep = "[" * 100_000 + "]" * 100_000
    (folder / name).write_text(f"a = {deep}" if name == "config.toml" else f'{{"a": {deep}}}\n')
    with pytest.raises(InputError, match="nested too deeply"):
        read_groups([folder])


def test_what_is_no_run_folder_is_said_to_be_none(tmp_path):
    with pytest.raises(InputError, match="not a folder"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"no config\.toml"):
        read_run(tmp_path)
    (tmp_path / "config.toml").write_text("")
    with pytest.raises(InputError, match=r"no metrics\.jsonl"):
        read_run(tmp_path)
    (tmp_path / "config.toml").write_bytes(b"\xff")
    with pytest.raises(InputError, match=r"config\.toml cannot be read: .*utf-8"):
        read_run(tmp_path)
