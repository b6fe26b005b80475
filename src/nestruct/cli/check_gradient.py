"""``nestruct check-gradient``: is an estimator's gradient right on a recipe's model?"""

from typing import Annotated

import torch
from tyro.conf import arg

from nestruct import estimators
from nestruct.cli.arguments import Overrides, RecipeName, Trust
from nestruct.data import batch_size as num_examples
from nestruct.data import select_rows, to_device
from nestruct.errors import InputError
from nestruct.training import Recipe, build, read_recipe
from nestruct.training.recipes import read_splits, typed_names


def check_gradient(
    recipe: RecipeName,
    overrides: Overrides = (),
    /,
    *,
    num_trials: Annotated[int, arg(metavar="N")] = 200,
    batch_size: Annotated[int, arg(metavar="N")] = 8,
    sigma: Annotated[float | None, arg(metavar="X", help_behavior_hint="")] = None,
    trust: Trust = False,
) -> int:
    """Compare the mean gradient of a recipe's estimator with an independent truth.

    The model is the untrained one. For small models: the truth takes 20,000 pairs of evaluations.
    The exit status is 0 where the check passes, or where the method aims at something else by
    design (a relaxation, a regression) and its mean points the right way. It is 1 where the check
    fails or is undecided: nothing is seen to be wrong, but fewer than ten trials, a deviation
    expected by chance above the truth's norm, or a scale that is not known to a half could hide it.

    Args:
        recipe: A name that `nestruct recipes` lists, or a TOML file of your own.
        overrides: Changes to the recipe, like estimator.shaping=none.
        num_trials: Independent estimates to average.
        batch_size: Examples, the first of the training set.
        sigma: The smoothing of the truth, for estimators without a sigma of their own.
    """
    for name, value, least in (("--num-trials", num_trials, 2), ("--batch-size", batch_size, 1)):
        if value < least:
            raise InputError(f"{name} must be at least {least}, got {value}.")
    resolved = Recipe.from_tables(
        read_recipe(recipe, overrides), trust=trust or typed_names(overrides)
    )
    experiment = build(resolved)
    data = read_splits(resolved, experiment.data)["train"]
    rows = torch.arange(min(batch_size, num_examples(data)))
    batch = to_device(select_rows(data, rows), torch.device(resolved.device))
    print(f"{num_trials} gradients of {resolved.estimator.name} against the truth ...", flush=True)
    experiment.model.eval()  # batch normalisation would move while it is looked at
    found = estimators.check_gradient(
        experiment.model,
        experiment.estimator,
        batch,
        num_trials=num_trials,
        sigma=sigma,
        seed=resolved.seed,
    )
    # A method that aims at something else agrees with the truth in its direction at most.
    good = found.passed or (found.biased_by_design and found.cosine > 0)
    verdict = "passed" if found.passed else "FAILED"
    if found.biased_by_design and good:
        verdict = "biased by design, which is no mistake: judge it by its cosine"
    if found.undecided:
        verdict = "undecided: chance could hide a mistake; use more trials or a smaller model"
    print(f"{resolved.estimator.name} on {resolved.recipe}: {verdict}")
    print(f"  cosine to the truth {found.cosine:.4f}")
    print(f"  bias {found.bias:.4f} of the truth's norm ({found.noise:.4f} expected by chance)")
    print(f"  scale {found.scale:.4f} +- {found.scale_error:.4f} (1 is right for raw losses)")
    print(f"  variance of one estimate {found.variance:.4g}")
    for law, variance in found.law_variances.items():
        print(f"  variance with gumbel={law} {variance:.4g}")
    return 0 if good else 1
