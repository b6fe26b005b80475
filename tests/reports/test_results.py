"""The run files in ``results``: each is small and can be read, as reports need it."""

import re
from pathlib import Path

import pytest

from nestruct.reports import paper_tables, read_groups, read_run
from nestruct.reports.trajectories import trajectories

RESULTS = Path(__file__).parents[2] / "results"


def test_every_file_is_small():
    large = [path for path in RESULTS.rglob("*") if path.is_file() and path.stat().st_size > 1e6]
    assert large == []


@pytest.mark.parametrize("folder", sorted(path.name for path in RESULTS.iterdir() if path.is_dir()))
def test_every_run_can_be_read(folder):
    configs = sorted((RESULTS / folder).rglob("config.toml"))
    assert configs
    for config in configs:
        assert read_run(config.parent).validation


def test_the_page_of_table_1_draws_every_method():
    groups = read_groups(runs_in("graph-layout"))
    names = [group.label for group in groups]
    assert "REINFORCE (multi-sample), spanning tree, num_samples 2" in names
    note = " ".join(paper_tables(groups)[0].notes)
    assert "by that rule: REINFORCE (batch), spanning tree 39.6;" in note  # 1.0 as it is
    drawn = re.findall(r"<b>(.*?)</b>", trajectories(groups))
    assert {"StructureNES, spanning tree", "SST, spanning tree", "NVIL, spanning tree"} < set(drawn)


def runs_in(folder):
    """The runs directly in a folder: deeper ones are of searches."""
    return [path.parent for path in sorted((RESULTS / folder).glob("*/config.toml"))]


def labels(*folders):
    """What the runs in each folder are called, by folder and run."""
    groups = read_groups(run for folder in folders for run in runs_in(folder))
    return {"/".join(g.runs[0].path.parts[-2:]): g.label for g in groups}


def test_images_are_named_by_method_data_and_what_differs():
    found = labels("categorical")
    assert found["categorical/fashion-reinforce"] == "Reinforce, fashion-mnist"
    assert found["categorical/kmnist-gsm"] == "SST, kmnist, anneal_rate 1e-05"
    assert found["categorical/kmnist-gsm-r4"] == "SST, kmnist, anneal_rate 0.0001"
    size = "NES, fashion-mnist, hidden_size 64, population_size"
    assert found["categorical/table3-nes-64-n20"] == f"{size} 20"
    assert found["categorical/table3-nes-64-n40"] == f"{size} 40"  # its title has instructions
    assert len(set(found.values())) == len(found)


def test_what_a_few_differences_do_not_tell_apart_gets_more():
    found = labels("categorical/search")
    assert found["search/h16-3e-3-30"].endswith("standard_score, lr 0.003, max_steps 11700")
    assert not any(re.search(r"\(\d+\)$", label) for label in found.values())


def test_parsers_are_named_by_method_treebanks_and_trees():
    found = labels("parsing/gl_ctg-gl_treegal", "parsing/id_gsd-id_csui", "parsing/id_csui-id_gsd")
    # Only the newer ones have training.smoothing_gap, which is 0.
    for run, treebanks in (
        ("gl_ctg-gl_treegal/parser", "GL_CTG to GL_TREEGAL"),
        ("id_csui-id_gsd/parser", "ID_CSUI to ID_GSD"),
    ):
        assert found[run] == f"source only, {treebanks}, projective"
    crossing = found["id_gsd-id_csui/structure-nes-non-projective-lr1e-4"]
    assert crossing == "StructureNES, ID_GSD to ID_CSUI, non-projective, lr 0.0001"
    assert found["id_gsd-id_csui/decoder"].startswith("Supervised (decoder), ID_GSD to ID_CSUI")
