"""Where a gradient comes from: one file each, all with ``backward(model, batch, seed=, step=)``.

``backward`` sets ``.grad`` of the parameters it estimates and returns a `StepReport`; any optimizer
then takes its step.
"""

from nestruct.estimators.aimle import AIMLE
from nestruct.estimators.backpropagation import Backpropagation, Terms
from nestruct.estimators.base import Estimator, StepReport, summarise
from nestruct.estimators.blackbox_differentiation import BlackboxDifferentiation
from nestruct.estimators.check import check_gradient
from nestruct.estimators.check_layer import check_layer
from nestruct.estimators.dpp import DPP
from nestruct.estimators.enumeration import Enumeration
from nestruct.estimators.exact_marginals import ExactMarginals
from nestruct.estimators.identity import Identity
from nestruct.estimators.imle import IMLE
from nestruct.estimators.nes import NES
from nestruct.estimators.nvil import NVIL
from nestruct.estimators.perturbed_optimizer import PerturbedOptimizer
from nestruct.estimators.reinforce import Reinforce
from nestruct.estimators.score_nes import ScoreNES
from nestruct.estimators.smoothing import smoothing_gap
from nestruct.estimators.snes import SNES
from nestruct.estimators.solver_gradient import SolverGradient, with_gradient
from nestruct.estimators.sparse_map import SparseMAP
from nestruct.estimators.sst import SST
from nestruct.estimators.straight_through import StraightThrough
from nestruct.estimators.structure_nes import StructureNES
from nestruct.estimators.suggestion import Suggestion, suggest
from nestruct.estimators.supervised import Supervised

__all__ = [
    "AIMLE",
    "DPP",
    "IMLE",
    "NES",
    "NVIL",
    "SNES",
    "SST",
    "Backpropagation",
    "BlackboxDifferentiation",
    "Enumeration",
    "Estimator",
    "ExactMarginals",
    "Identity",
    "PerturbedOptimizer",
    "Reinforce",
    "ScoreNES",
    "SolverGradient",
    "SparseMAP",
    "StepReport",
    "StraightThrough",
    "StructureNES",
    "Suggestion",
    "Supervised",
    "Terms",
    "check_gradient",
    "check_layer",
    "smoothing_gap",
    "suggest",
    "summarise",
    "with_gradient",
]
