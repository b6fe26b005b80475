"""Train models with a discrete structure inside, from forward passes alone."""

from nestruct._version import __version__
from nestruct.errors import InputError, NestructError
from nestruct.structures import (
    BlackBox,
    Categorical,
    Countable,
    Enumerable,
    Gibbs,
    KSubset,
    NonProjectiveTree,
    Permutation,
    ProjectiveTree,
    Relaxable,
    Samplable,
    SpanningTree,
    Structure,
    nan_rows,
    perturb_and_map_law,
)

__all__ = [
    "BlackBox",
    "Categorical",
    "Countable",
    "Enumerable",
    "Gibbs",
    "InputError",
    "KSubset",
    "NestructError",
    "NonProjectiveTree",
    "Permutation",
    "ProjectiveTree",
    "Relaxable",
    "Samplable",
    "SpanningTree",
    "Structure",
    "__version__",
    "nan_rows",
    "perturb_and_map_law",
]
