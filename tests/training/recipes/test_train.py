"""What a recipe that is shipped learns, in a run short enough for a test."""

from nestruct.training import Recipe, read_recipe, train


def test_categorical_tiny_learns(tmp_path):
    """In 150 of its 2,000 steps NES takes six nats off the loss of 136, on unseen images too."""
    words = ["device=cpu", "training.max_steps=150", "training.eval_interval=150"]
    recipe = Recipe.from_tables(read_recipe("categorical-tiny", words))
    result = train(recipe, tmp_path / "run", progress=False)
    assert 134 < result.initial["loss"] < 139
    assert result.best["loss"] < result.initial["loss"] - 5
    assert result.test["loss"] < result.initial["loss"] - 5
    assert result.best["loss_mode"] < result.best["loss"]  # categories are told apart
