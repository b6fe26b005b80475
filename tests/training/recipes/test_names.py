"""Names that are not ours: who may be imported, from where, and what is said where it fails."""

import hashlib
import sys
from importlib import metadata

import networkx
import pytest
import strangers_code
import torch

import nestruct
from nestruct.training import Recipe, build, evaluate_run, train
from nestruct.training.recipes import names, typed_names
from nestruct.training.recipes.parts import find_part
from nestruct.training.run.folder import RunFolder


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty current folder with ``own.py`` in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(strangers_code.PARTS)
    with strangers_code.forgotten(tmp_path):
        yield tmp_path


def tables(**more):
    return {
        "device": "cpu",
        "data": {"name": "own:Bits"},
        "structure": {"name": "own:one_of"},
        "model": {"name": "own:Vae"},
        "estimator": {"name": "own:MyNES", "sigma": 0.1, "population_size": 4, "mode": "vmap"},
        "optimizer": {"name": "Adam"},
        "training": {"max_steps": 2},
    } | more


def refusal(key, name, trust=True):
    with pytest.raises(nestruct.InputError) as error:
        find_part(key, name, trust=trust)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    "name",
    ["own:MyNES", "os:system", "own:missing", "os.path:join", "\uff4fwn:MyNES", "ow\u0144:x"],
)
@pytest.mark.parametrize("trust", [False, [], ["other:MyNES"]])
def test_nothing_is_imported_without_trust(name, trust, folder):
    before, path = set(sys.modules), sys.path[:]
    said = refusal("estimator", name, trust)
    assert "say --trust (in Python trust=True)" in said
    assert f"the module {name.partition(':')[0]}" in said
    assert set(sys.modules) == before
    assert sys.path == path
    assert not (folder / "imported.txt").exists()


@pytest.mark.parametrize(
    "name",
    [
        *("./own.py:MyNES", "/tmp/own:MyNES", "../own:MyNES", ".own:MyNES", "own.:MyNES", ":MyNES"),
        *("own:", "own:MyNES:x", "own:My NES", "own\0:MyNES", "own:\u202eMyNES", "own:x()", "1:2"),
    ],
)
def test_what_is_no_module_and_class_is_never_imported(name, folder):
    for trust in (True, False):
        assert "is not written as module:Class" in refusal("model", name, trust)
    assert not (folder / "imported.txt").exists()


def test_all_parts_may_be_somebodys_own(folder):
    experiment = build(Recipe.from_tables(tables(), trust=True))
    assert type(experiment.data).__name__ == "Bits"
    assert isinstance(experiment.model.structure, nestruct.Categorical)
    assert isinstance(experiment.estimator, nestruct.NES)
    code = Recipe.from_tables(tables(), trust=True).to_config()["code"]
    digest = hashlib.sha256((folder / "own.py").read_bytes()).hexdigest()
    same = {"module": "own", "version": f"sha256 {digest}"}
    assert code == dict.fromkeys(("data", "structure", "model", "estimator"), same)


def test_a_function_may_make_a_part():
    made = {"data": {"name": "own:bits_of", "num_train": 5}, "model": {"name": "own:vae_of"}}
    made |= {"estimator": {"name": "own:nes_of", "sigma": 1}}
    recipe = Recipe.from_tables(tables(**made), trust=True)
    experiment = build(recipe)
    assert len(experiment.data.splits()["train"]) == 5
    assert experiment.model.loss(torch.ones(2, 4), nestruct.Noise(seed=0)).shape == (2,)
    assert experiment.estimator.sigma == 1.0
    assert recipe.to_config()["model"] == {"name": "own:vae_of", "hidden": 2}


def test_names_that_are_listed_are_trusted_alone():
    trust = typed_names(["data.name=own:Bits", "model.structure=own:one_of_three", "seed=1"])
    assert trust == {"own:Bits", "own:one_of_three"}
    with pytest.raises(nestruct.InputError, match="The model 'own:Vae' would run the code"):
        Recipe.from_tables(
            tables(structure={"name": "k-subset", "num_items": 4, "k": 2}), trust=trust
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"estimator": {"name": "own:MyNES", "sgima": 1}},
            "'sgima' is not known; did you mean 'sig",
        ),
        ({"data": {"name": "own:Bits", "num_train": "x"}}, "data.num_train must be a whole number"),
        ({"model": {"name": "own:Vae", "hidden": 2.5}}, "model.hidden must be a whole number"),
        (
            {"data": {"name": "patterns"}, "model": {"name": "own:Vae", "num_inputs": 0}},
            "own:Vae: ",
        ),
        ({"data": {"name": "grammar"}}, "model.num_inputs is missing: the recipe must give it, or"),
        ({"structure": {"name": "own:nothing"}}, "'own:nothing' made None, which is not a Structu"),
        (
            {"structure": {"name": "own:broken"}},
            "IndexError: list index out of range (own.py, line",
        ),
        ({"model": {"name": "categorical"}}, "This model takes no structure: leave out the table"),
        (
            {"model": {"name": "own:Vae", "structure": "own:one_of"}},
            "[structure] and model.structure say the same",
        ),
    ],
)
def test_mistakes_in_a_recipe_with_own_parts(change, message):
    with pytest.raises(nestruct.InputError) as error:
        build(Recipe.from_tables(tables(**change), trust=True))
    assert message in str(error.value)


def test_a_model_that_needs_a_structure_says_so():
    without = tables()
    del without["structure"]
    with pytest.raises(
        nestruct.InputError, match=r"needs a structure: name one in the table \[str"
    ):
        Recipe.from_tables(without, trust=True)
    named = without | {"model": {"name": "own:Vae", "structure": "own:one_of_three"}}
    recipe = Recipe.from_tables(named, trust=True)
    assert recipe.to_config()["structure"] == {"name": "own:one_of_three"}
    assert isinstance(build(recipe).model.structure, nestruct.BlackBox)


@pytest.mark.parametrize(
    ("key", "name", "message"),
    [
        ("estimator", "own:Vae", "is not an Estimator: derive it from nestruct.estimators.Estim"),
        ("estimator", "os:system", "The estimator 'os:system' is not an Estimator"),
        ("model", "own:Bits", "The model 'own:Bits' is not a torch module"),
        ("data", "own:Vae", "The data set 'own:Vae' is not a data set: give it a method splits()"),
        ("structure", "own:MyNES", "The structure 'own:MyNES' is not a Structure"),
        ("estimator", "own:MyNSE", "in own 'MyNSE' is not known; did you mean 'MyNES'?"),
        ("estimator", "own:MyNES.Vae", "in own 'Vae' is not known"),
        ("estimator", "keyword:NES", "keyword has no NES, nor anything that could be one."),
        ("data", "absent:Data", "there is no module absent, neither in the current folder nor"),
        ("data", "own.sub:Data", "there is no module own.sub"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_sentence(key, name, message):
    assert message in refusal(key, name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\nimport no_such_module", "No module named 'no_such_module' (bad.py, line 2)"),
        ("x = 1\n\n1 / 0", "ZeroDivisionError: division by zero (bad.py, line 3)"),
        ("def f(:", "SyntaxError: invalid syntax (bad.py, line 1)"),
        ("import sys\nsys.exit(3)", "SystemExit: 3 (bad.py, line 2)"),
        ("import nestruct\n\nnestruct.NES(sigma=-1, population_size=4)", "(bad.py, line 3)"),
    ],
)
def test_a_mistake_in_the_module_is_shown_with_its_line(text, message, folder):
    (folder / "bad.py").write_text(text)
    said = refusal("model", "bad:Vae")
    assert said.startswith("The model 'bad:Vae': bad cannot be imported: ")
    assert message in said


ENTRIES = {
    "nestruct.estimators": {"other-nes": "other:MyNES", "none": "other:Missing"},
    "nestruct.data": {"other-bits": "other:Bits"},
}


def test_installed_packages_add_names_and_only_the_one_that_is_named_is_loaded(folder, monkeypatch):
    place = folder / "site"
    strangers_code.write_package(place, "other", ENTRIES)
    monkeypatch.syspath_prepend(str(place))
    assert set(names.entry_points("estimator")) == {"other-nes", "none"}
    assert "did you mean 'other-nes'?" in refusal("estimator", "othernes", trust=False)
    assert not (place / "imported.txt").exists()
    assert "would run the code of the module other" in refusal("estimator", "other-nes", False)
    assert not (place / "imported.txt").exists()
    part = find_part("estimator", "other-nes", trust=["other-nes"])
    assert part.make.__name__ == "MyNES"
    assert part.origin == {"module": "other", "version": "other 1.5"}
    assert "in other 'Missing' is not known" in refusal("estimator", "none")


def test_a_module_of_an_installed_package_has_its_version():
    assert names._version(networkx, None) == f"networkx {metadata.version('networkx')}"


@pytest.mark.parametrize("given", ["None", "[1]", "{'test': 1}"])
def test_a_data_set_must_have_examples_to_train_on(given, folder):
    (folder / "data.py").write_text(
        f"class Empty:\n    num_inputs = 4\n    splits = lambda s: {given}"
    )
    recipe = Recipe.from_tables(tables(data={"name": "data:Empty"}), trust=True)
    with pytest.raises(
        nestruct.InputError, match="data:Empty must give a dictionary with train in"
    ):
        train(recipe, folder / "run", progress=False)
    assert not (folder / "run").exists()


@pytest.fixture
def run(folder):
    train(Recipe.from_tables(tables(), trust=True), folder / "run", progress=False)
    return folder / "run"


def test_a_run_finds_its_code_again(run, caplog):
    with pytest.raises(nestruct.InputError, match="trust=True"):
        nestruct.load(run)
    with pytest.raises(nestruct.InputError, match="trust=True"):
        evaluate_run(run)
    model = nestruct.load(run, trust=True)
    assert model.infer(torch.ones(2, 4)).shape == (2, 3)
    evaluate_run(run, trust=True)
    assert caplog.text == ""


def test_changed_code_is_said_once_and_the_run_goes_on(run, folder, caplog):
    with (folder / "own.py").open("a") as file:
        file.write("# mended\n")
    strangers_code.forget(folder)
    evaluate_run(run, trust=True)
    assert caplog.text.count("own is not as it was when this run was made (own, sha256 ") == 1
    recipe = Recipe.from_tables(nestruct.training.read_config(run), trust=True)
    assert train(recipe, run, resume=True, progress=False).step == 2


def test_missing_code_is_said_with_where_it_came_from(run, folder):
    (folder / "own.py").unlink()
    strangers_code.forget(folder)
    message = r"there is no module own, .* When the run was made, it came from own, sha256 \w{13}\."
    with pytest.raises(nestruct.InputError, match=message):
        nestruct.load(run, trust=True)
    model = nestruct.StructuredVAE(
        nestruct.models.mlp(4, 3, 3), nestruct.models.mlp(3, 3, 4), nestruct.Categorical(3)
    )
    assert nestruct.load(run, model) is model  # built by hand, nothing is imported


def test_how_to_go_on_says_that_trust_is_needed(folder):
    for config, end in (({"code": {}}, "run --trust"), ({}, "run")):
        held = RunFolder(folder / "run", {"recipe": "own"} | config)
        assert held.how.endswith(end)
        held.close()
