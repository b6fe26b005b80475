"""Recipes: resolved and checked before anything is built."""

import tomllib

import pytest
import torch

import nestruct
from nestruct.checks import check_value
from nestruct.training import Recipe, build, read_recipe, recipe_names, recipe_text
from nestruct.training.recipes.parts import OPTIMIZERS, SCHEDULERS
from nestruct.training.recipes.recipe import parse_value


def tables(*overrides: str):
    return read_recipe("graph-layout-tiny", overrides)


@pytest.mark.parametrize("name", recipe_names())
def test_shipped_recipes_resolve_and_say_what_they_are(name):
    recipe = Recipe.from_tables(read_recipe(name, ["device=cpu"]))
    assert recipe.title
    assert recipe.recipe == name
    again = Recipe.from_tables(recipe.to_config())
    assert again == recipe


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("estimator.sgma=1", "estimator: the option 'sgma' is not known; did you mean 'sigma'?"),
        ("estimator.sigma=wide", "estimator.sigma must be a number, got 'wide'."),
        ("estimator.sigma=-1", "NES: sigma must be positive, got -1.0."),
        ("estimator.population_size=7", "make it 8 or say mirrored=False"),
        ("estimator.mirrored=1", "estimator.mirrored must be true or false, got 1."),
        ("estimator.shaping=rank", "must be one of 'standard_score', 'centered_rank', 'clipped'"),
        ("estimator.name=nes", "The estimator 'nes' is not known; did you mean 'NES'?"),
        ("sigma=0.1", "sigma is an option of a table: say estimator.sigma=0.1."),
        ("data.num_node=3", "did you mean 'num_nodes'?"),
        ("data.num_nodes=1", "num_nodes"),
        ("model.structure=forest", "structure must be one of"),
        ("optimizer.lr=-1", "[optimizer] Adam: Invalid learning rate: -1.0"),
        ("optimizer.name=Addam", "The optimizer 'Addam' is not known; did you mean 'Adam'?"),
        ("training.max_steps=many", "training.max_steps must be a whole number, got 'many'."),
        ("training.max_steps=none", "training.max_steps must be a whole number, got 'none'."),
        (
            "trainig.max_steps=1",
            "A recipe's table 'trainig' is not known; did you mean 'training'?",
        ),
        ("sede=1", "A recipe's key 'sede' is not known; did you mean 'seed'?"),
        ("seed=x", "seed must be a whole number, got 'x'."),
        ("device=tpu", "device must be auto, cpu, cuda or cuda:N, got 'tpu'."),
        ("sigma", "An override is key=value, like estimator.sigma=0.1; got 'sigma'."),
        ("scheduler.name=none scheduler.T_max=3", "The table [scheduler] has no name"),
        ("scheduler.T_max=0", "CosineAnnealingLR cannot take a step with these options"),
        ("optimizer.capturable=true", "Adam cannot take a step with these options"),
        ("optimizer.betas=[0.9]", "[optimizer] Adam"),
        ("estimator=5", "estimator is a table: set its options, like estimator.OPTION=5."),
    ],
)
def test_mistakes_get_one_sentence(override, message):
    with pytest.raises(nestruct.InputError) as error:
        build(Recipe.from_tables(tables(*override.split())))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_gpu_is_said():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(nestruct.InputError, match="finds no GPU here; say device=cpu"):
        Recipe.from_tables(tables("device=cuda"))


def test_overrides():
    recipe = Recipe.from_tables(
        tables("estimator.sigma=1", "seed=7", "training.patience=3", "title=A title")
    )
    assert recipe.estimator.options["sigma"] == 1.0
    assert (recipe.seed, recipe.training.patience, recipe.title) == (7, 3, "A title")


def test_another_name_drops_the_options_of_the_one_before():
    recipe = Recipe.from_tables(tables("optimizer.name=SGD", "optimizer.lr=0.5"))
    assert recipe.optimizer.name == "SGD"
    assert recipe.optimizer.options["lr"] == 0.5
    switched = Recipe.from_tables(tables("estimator.name=Enumeration"))
    assert "sigma" not in switched.estimator.options


def test_the_order_of_overrides_does_not_matter():
    words = ["scheduler.step_size=10", "scheduler.name=StepLR"]
    assert Recipe.from_tables(tables(*words)).scheduler.options["step_size"] == 10
    assert Recipe.from_tables(tables("scheduler.name=none")).scheduler is None


def test_none_is_none_unless_it_is_a_choice():
    words = ["training.patience=none", "estimator.shaping=none", "estimator.pair_batch_size=none"]
    recipe = Recipe.from_tables(tables(*words, "estimator.minibatch=shared"))
    assert recipe.training.patience is None
    assert recipe.estimator.options["shaping"] == "none"
    assert recipe.estimator.options["pair_batch_size"] is None
    assert Recipe.from_tables(recipe.to_config()) == recipe


def test_values_are_toml_or_words():
    assert parse_value("1e-3") == 1e-3
    assert parse_value(".5e-1") == 0.05
    assert parse_value("1.") == 1.0
    assert parse_value(".") == "."
    assert parse_value('"3"') == "3"
    assert parse_value("1\nx = 2") == "1\nx = 2"  # one value, whatever is in it


def test_schedules_are_told_how_long_training_is():
    recipe = Recipe.from_tables(tables("scheduler.name=CosineAnnealingLR", "training.max_steps=9"))
    assert recipe.scheduler.options["T_max"] == 9
    recipe = Recipe.from_tables(
        tables("scheduler.name=OneCycleLR", "scheduler.max_lr=1", "training.max_steps=9")
    )
    assert recipe.scheduler.options["total_steps"] == 9


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_optimizer_that_a_recipe_can_name_can_be_built(name):
    overrides = [f"optimizer.name={name}", "optimizer.lr=0.01"]
    optimizer = build(Recipe.from_tables(tables(*overrides))).optimizer
    assert type(optimizer).__name__ == name


@pytest.mark.parametrize("name", sorted(SCHEDULERS))
@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.*:UserWarning")
def test_every_scheduler_that_a_recipe_can_name_can_be_built(name):
    needs = {
        "CosineAnnealingWarmRestarts": {"T_0": 3},
        "CyclicLR": {"base_lr": 0.1, "max_lr": 1.0, "cycle_momentum": "false"},
        "ExponentialLR": {"gamma": 0.9},
        "MultiStepLR": {"milestones": [1, 2]},
        "OneCycleLR": {"max_lr": 1.0},
        "StepLR": {"step_size": 3},
    }
    more = [f"scheduler.{key}={value}" for key, value in needs.get(name, {}).items()]
    experiment = build(Recipe.from_tables(tables(f"scheduler.name={name}", *more)))
    assert type(experiment.scheduler).__name__ == name


def test_the_seed_alone_decides_the_first_parameters():
    def first(seed):
        torch.manual_seed(seed)  # of no consequence
        return next(build(Recipe.from_tables(tables(f"seed={seed % 2}"))).model.parameters())

    assert torch.equal(first(0), first(2))
    assert not torch.equal(first(0), first(1))


def test_recipe_files(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("title = ")
    with pytest.raises(nestruct.InputError, match=r"mine\.toml cannot be read"):
        read_recipe(str(file))
    with pytest.raises(nestruct.InputError, match="No such file"):
        read_recipe(str(tmp_path / "other.toml"))
    file.write_text('title = "x"')
    with pytest.raises(nestruct.InputError, match=r"The recipe has no table \[data\]"):
        Recipe.from_tables(read_recipe(str(file)))
    file.write_text("data = 3\nmodel = 3\nestimator = 3\noptimizer = 3\ntraining = 3")
    with pytest.raises(nestruct.InputError, match=r"training must be a table"):
        Recipe.from_tables(read_recipe(str(file)))


@pytest.fixture
def write(tmp_path):
    """Writes recipe files into one folder; gives the path of the last one."""

    def write_files(**texts: str) -> str:
        for name, text in texts.items():
            (tmp_path / f"{name}.toml").write_text(text, encoding="utf-8")
        return str(tmp_path / f"{name}.toml")

    return write_files


def test_a_base_says_what_a_recipe_does_not(write):
    mine = write(mine='base = "graph-layout-tiny"\nseed = 4\n[estimator]\nsigma = 0.5')
    found, base = read_recipe(mine), tables()
    assert found == {
        **base,
        "recipe": "mine",
        "seed": 4,
        "estimator": {**base["estimator"], "sigma": 0.5},
    }
    resolved = Recipe.from_tables(found | {"device": "cpu"}).to_config()
    assert "base" not in resolved
    assert resolved["estimator"]["population_size"] == base["estimator"]["population_size"]


def test_another_name_drops_what_the_base_said_of_that_table(write):
    mine = write(
        mine="""
        base = "graph-layout-tiny"
        [estimator]
        name = "StructureNES"
        [optimizer]
        name = "Adam"
        [scheduler]
        name = "none"
        """
    )
    found = read_recipe(mine)
    assert found["estimator"] == {"name": "StructureNES"}
    assert found["optimizer"] == tables()["optimizer"]
    assert "scheduler" not in found


def test_a_base_is_looked_for_beside_the_file(write, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path.parent)
    bottom = 'base = "graph-layout-tiny"\nrecipe = "bottom"\nseed = 1'
    top = write(bottom=bottom, middle='base = "./bottom.toml"\nseed = 2', top='base="middle.toml"')
    found = read_recipe(top, ["training.max_steps=3"])
    assert (found["recipe"], found["seed"], found["training"]["max_steps"]) == ("top", 2, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('base = "graph-layout-tinny"', "did you mean 'graph-layout-tiny'?"),
        ('base = "other.toml"', "other.toml cannot be read: No such file"),
        ('base = "mine.toml"', "leads back to it: "),
        ('base = "a.toml"', "leads back to it: "),
        ("base = 3", "base is the name of a recipe that comes with nestruct, or a file's path"),
        ('base = "/mine.toml"', "relative to this one; got '/mine.toml'"),
        ('base = "graph-layout-tiny"\ndata = 3', "data must be a table"),
    ],
)
def test_a_base_that_cannot_be_had_gets_one_sentence(write, text, message):
    mine = write(a='base = "./b.toml"', b='base = "a.toml"', mine=text)
    with pytest.raises(nestruct.InputError) as error:
        Recipe.from_tables(read_recipe(mine))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_only_so_many_recipes_are_one_upon_the_other(write):
    first = {"r0": 'base = "graph-layout-tiny"'}
    chain = first | {f"r{k}": f'base = "r{k - 1}.toml"' for k in range(1, 8)}
    longer = chain | {"r8": 'base = "r7.toml"'}
    assert read_recipe(write(**dict(list(chain.items())[:7])))["recipe"] == "r6"
    with pytest.raises(nestruct.InputError, match="More than 8 recipes are one upon the other"):
        read_recipe(write(**longer))


def test_the_configuration_of_a_run_has_no_base():
    with pytest.raises(nestruct.InputError, match="A recipe's key 'base' is not known"):
        Recipe.from_tables(tables() | {"base": "graph-layout-5"})


@pytest.mark.parametrize("name", recipe_names())
def test_shipped_recipes_say_what_their_titles_speak_of(name):
    """Reports read the file itself: a title is true of a run with its estimator and structure."""
    own, found = tomllib.loads(recipe_text(name)), read_recipe(name)
    assert own["estimator"]["name"] == found["estimator"]["name"]
    assert own.get("model", {}).get("structure") == found["model"].get("structure")


def test_values_against_annotations():
    assert check_value("x", 1, float) == 1.0
    assert type(check_value("x", 1, float)) is float
    assert type(check_value("x", 1, int | float)) is int
    assert check_value("x", [1, 2], tuple[float, float]) == [1, 2]
    assert check_value("x", "a", str | None) == "a"
    for value, hint in [(True, int), (True, float), ("a", list[str]), (1, str), ([1], int)]:
        with pytest.raises(nestruct.InputError, match="x must be"):
            check_value("x", value, hint)
