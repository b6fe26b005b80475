"""Every estimator that a recipe can name. A new one is a line here."""

from nestruct.estimators.aimle import AIMLE
from nestruct.estimators.blackbox_differentiation import BlackboxDifferentiation
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
from nestruct.estimators.snes import SNES
from nestruct.estimators.sparse_map import SparseMAP
from nestruct.estimators.sst import SST
from nestruct.estimators.straight_through import StraightThrough
from nestruct.estimators.structure_nes import StructureNES
from nestruct.estimators.supervised import Supervised

ESTIMATORS: dict[str, type] = {
    estimator.__name__: estimator
    for estimator in (
        *(AIMLE, BlackboxDifferentiation, DPP, Enumeration, ExactMarginals, Identity, IMLE, NES),
        *(NVIL, PerturbedOptimizer, Reinforce, ScoreNES, SNES, SparseMAP, SST, StraightThrough),
        *(StructureNES, Supervised),
    )
}
