"""Train models with a discrete structure inside, from forward passes alone."""

from nestruct._version import __version__
from nestruct.data import select_rows
from nestruct.errors import InputError, NestructError
from nestruct.estimators import (
    NES,
    NVIL,
    SNES,
    SST,
    Enumeration,
    Reinforce,
    ScoreNES,
    StepReport,
    StructureNES,
    check_gradient,
    smoothing_gap,
)
from nestruct.models import StructuredModel, StructuredVAE
from nestruct.noise import Noise
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
from nestruct.training import FitResult, evaluate, fit, load

__all__ = [
    "NES",
    "NVIL",
    "SNES",
    "SST",
    "BlackBox",
    "Categorical",
    "Countable",
    "Enumerable",
    "Enumeration",
    "FitResult",
    "Gibbs",
    "InputError",
    "KSubset",
    "NestructError",
    "Noise",
    "NonProjectiveTree",
    "Permutation",
    "ProjectiveTree",
    "Reinforce",
    "Relaxable",
    "Samplable",
    "ScoreNES",
    "SpanningTree",
    "StepReport",
    "Structure",
    "StructureNES",
    "StructuredModel",
    "StructuredVAE",
    "__version__",
    "check_gradient",
    "evaluate",
    "fit",
    "load",
    "nan_rows",
    "perturb_and_map_law",
    "select_rows",
    "smoothing_gap",
]
