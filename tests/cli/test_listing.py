"""``nestruct list``: names, and the options of each."""

import pytest
import strangers_code
from toys import run_command as run

from nestruct.data.registry import DATASETS
from nestruct.estimators.registry import ESTIMATORS
from nestruct.models.registry import MODELS
from nestruct.structures.registry import STRUCTURES
from nestruct.training.recipes.parts import LISTED, PARTS


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(strangers_code.PARTS)
    with strangers_code.forgotten(tmp_path):
        yield tmp_path


def listed(*words, capsys):
    assert run("list", *words) == 0
    return capsys.readouterr().out


def test_everything_that_recipes_can_name_is_listed_in_a_line(capsys):
    text = listed(capsys=capsys)
    for name in (*ESTIMATORS, *MODELS, *DATASETS):
        assert f"\n  {name} " in text
    assert len(text.splitlines()) == len([*ESTIMATORS, *MODELS, *DATASETS, *STRUCTURES]) + 4 + 3
    alone = listed("structures", capsys=capsys).splitlines()
    assert [line.split()[0] for line in alone] == list(PARTS["structure"])
    assert all(len(line.split()) > 4 for line in alone)  # each says what it is


@pytest.mark.parametrize(
    ("plural", "name"), [(plural, name) for plural, key in LISTED.items() for name in PARTS[key]]
)
def test_a_name_has_all_options_with_types_and_defaults(plural, name, capsys):
    text = listed(plural, name, capsys=capsys)
    part = PARTS[LISTED[plural]][name]
    for option, parameter in part.parameters().items():
        (line,) = [line for line in text.splitlines() if line.startswith(f"  {option}: ")]
        needed = parameter.default is parameter.empty
        assert ("needed" in line) if needed else ("default " in line)
    assert all(given not in part.parameters() for given in part.given)


def test_what_options_say_of_themselves(capsys):
    text = listed("estimators", "SNES", capsys=capsys)  # most of it is said by NES
    assert "Kind: gradient-free." in text
    assert (
        "  mode: one of 'auto', 'vmap', 'loop'; default auto\n      ``vmap``, ``loop``, or" in text
    )
    assert (
        "  sigma: a number; default 0.1\n      The standard deviation of the perturbation at"
        in text
    )
    assert "  population_size: a whole number; needed\n      N, the number of members" in text
    assert "  mirrored: true or false; default true\n" in text


def test_what_lies_outside_of_the_package(folder, capsys):
    text = listed("models", "own:Vae", capsys=capsys)
    assert text.startswith("own:Vae: A small VAE.\nFrom: own, sha256 ")
    assert "  num_inputs: needed (the data set's attribute of that name, unless said)" in text
    assert "  hidden: a whole number; default 3\n" in text
    text = listed("datasets", "own:Bits", capsys=capsys)
    assert "  num_train: a whole number; default 12\n      How many.\n" in text
    assert "BlackBox(first, (3,))" in listed("structures", "own:one_of_three", capsys=capsys)
    assert "Any number of classes." in listed("structures", "own:one_of", capsys=capsys)


def test_installed_packages_are_listed_without_being_imported(folder, monkeypatch, capsys):
    entries = {"nestruct.data": {"other-bits": "other:Bits"}}
    strangers_code.write_package(folder / "site", "other", entries)
    monkeypatch.syspath_prepend(str(folder / "site"))
    assert "other-bits     (other:Bits, other 1.5)\n" in listed("datasets", capsys=capsys)
    assert run("doctor") == 0
    assert "other-bits among the datasets, by other 1.5\n" in capsys.readouterr().out
    assert not (folder / "site" / "imported.txt").exists()
    assert "From: other, other 1.5." in listed("datasets", "other-bits", capsys=capsys)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["estimators", "NVLI"], "did you mean 'NVIL'? `nestruct list estimators` shows all;"),
        (
            ["datasets", "zzz"],
            "graph-layout, images, listops, patterns, shortest-path, terrain, treebanks.",
        ),
        (["models", "os:system"], "The model 'os:system' is not a torch module"),
    ],
)
def test_names_that_are_none(words, message, folder, capsys):
    assert run("list", *words) == 1
    assert message in capsys.readouterr().err
