"""Combinations of values, from what ``nestruct sweep`` and plans take: ``KEY=A,B,C``."""

import itertools
import re
from collections.abc import Sequence

from nestruct.errors import InputError


def grid(settings: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """Every combination, as overrides; and the keys that vary.

    Example:
        >>> grid(["estimator.sigma=0.01,0.1", "seed=0,1"])[0][:2]
        [['estimator.sigma=0.01', 'seed=0'], ['estimator.sigma=0.01', 'seed=1']]
    """
    axes = []
    for setting in settings:
        key, equals, values = setting.partition("=")
        choices = re.split(r",(?![^\[]*\])", values)  # not at the commas within brackets
        if not equals or not all(choices):
            raise InputError(f"Say what to vary as KEY=A,B,C, like seed=0,1,2; got {setting!r}.")
        axes.append([f"{key}={value}" for value in choices])
    if not axes:
        raise InputError("Say what to vary, like estimator.sigma=0.01,0.1 seed=0,1,2.")
    varied = [axis[0].partition("=")[0] for axis in axes if len(axis) > 1 or len(axes) == 1]
    return [list(choice) for choice in itertools.product(*axes)], varied
