"""Latent spaces, one file each: argmax, legality, counting, listing; nothing about networks.

``solvers/`` holds the batched kernels behind argmax, ``relaxations/`` the differentiable sums
behind the Gibbs laws.
"""

from nestruct.structures.alignment import Alignment
from nestruct.structures.base import (
    Countable,
    Enumerable,
    Gibbs,
    GibbsStructure,
    KBest,
    Relaxable,
    Samplable,
    SizedStructure,
    Structure,
)
from nestruct.structures.black_box import BlackBox
from nestruct.structures.categorical import Categorical
from nestruct.structures.constituency_tree import ConstituencyTree
from nestruct.structures.draws import Draws
from nestruct.structures.dynamic_programme import DynamicProgramme
from nestruct.structures.edge_swap import swap_edges
from nestruct.structures.grid_path import GridPath
from nestruct.structures.k_best import KBestStructure, kbest, max_marginals
from nestruct.structures.k_subset import KSubset
from nestruct.structures.linear_chain import LinearChain
from nestruct.structures.non_projective_tree import NonProjectiveTree
from nestruct.structures.permutation import Permutation
from nestruct.structures.perturb_and_map import log_top_k_chance, perturb_and_map_law
from nestruct.structures.projective_tree import ProjectiveTree
from nestruct.structures.recurrence import Recurrence
from nestruct.structures.relaxations.sparse_map import sparse_map
from nestruct.structures.rows import nan_rows
from nestruct.structures.semi_markov import SemiMarkov
from nestruct.structures.spanning_tree import SpanningTree

__all__ = [
    "Alignment",
    "BlackBox",
    "Categorical",
    "ConstituencyTree",
    "Countable",
    "Draws",
    "DynamicProgramme",
    "Enumerable",
    "Gibbs",
    "GibbsStructure",
    "GridPath",
    "KBest",
    "KBestStructure",
    "KSubset",
    "LinearChain",
    "NonProjectiveTree",
    "Permutation",
    "ProjectiveTree",
    "Recurrence",
    "Relaxable",
    "Samplable",
    "SemiMarkov",
    "SizedStructure",
    "SpanningTree",
    "Structure",
    "kbest",
    "log_top_k_chance",
    "max_marginals",
    "nan_rows",
    "perturb_and_map_law",
    "sparse_map",
    "swap_edges",
]
