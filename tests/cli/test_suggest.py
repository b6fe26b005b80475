"""``nestruct suggest``: what it found in words, and as words of the next command."""

import pytest
from toys import run_command as run

from nestruct.training import read_recipe

SMALL = ["categorical-tiny", "data.side=4", "data.num_train=64", "model.hidden_size=4"]


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (["estimator.population_size=20"], ["sigma"]),
        (["estimator.name=ScoreNES", "estimator.num_pairs=5"], ["sigma", "num_pairs"]),
        (["estimator.name=Enumeration"], []),
    ],
    ids=["NES", "ScoreNES", "Enumeration"],
)
def test_the_last_line_trains_with_what_was_found(words, keys, capsys):
    assert run("suggest", *SMALL, *words, "--batch-size", 32) == 0
    out = capsys.readouterr().out
    assert "on categorical-tiny, 32 examples" in out
    assert "Learning rate" in out
    assert ("in units of" in out) == ("sigma" in keys)
    last = out.splitlines()[-1]
    said = last.removeprefix("Train with it: nestruct train ").removesuffix(" --run DIR").split()
    assert said[: len(SMALL) + len(words)] == [*SMALL, *words]
    tables = read_recipe(said[0], said[1:])
    assert 1e-4 < tables["optimizer"]["lr"] < 1
    found = {word.partition("=")[0] for word in said[len(SMALL) + len(words) :]}
    assert found == {"optimizer.lr", *(f"estimator.{key}" for key in keys)}


def test_a_bad_batch_size_is_refused(capsys):
    assert run("suggest", *SMALL, "--batch-size", 0) == 1
    assert capsys.readouterr().err.endswith("--batch-size must be at least 1, got 0.\n")
