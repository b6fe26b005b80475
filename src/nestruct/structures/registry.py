"""The structures nestruct ships, by name.

A new structure is one file and one line here; the contract tests then cover it.
"""

from typing import Any, NamedTuple

from nestruct.structures.alignment import Alignment
from nestruct.structures.base import Structure
from nestruct.structures.categorical import Categorical
from nestruct.structures.constituency_tree import ConstituencyTree
from nestruct.structures.grid_path import GridPath
from nestruct.structures.k_subset import KSubset
from nestruct.structures.linear_chain import LinearChain
from nestruct.structures.non_projective_tree import NonProjectiveTree
from nestruct.structures.permutation import Permutation
from nestruct.structures.projective_tree import ProjectiveTree
from nestruct.structures.semi_markov import SemiMarkov
from nestruct.structures.spanning_tree import SpanningTree


class RegisteredStructure(NamedTuple):
    """A structure's class, and options of instances small enough to list, for tests."""

    structure: type[Structure]
    small: tuple[dict[str, Any], ...]


ROOT_RULES = ({"single_root": True}, {"single_root": False})

STRUCTURES = {
    "categorical": RegisteredStructure(Categorical, ({"num_classes": 1}, {"num_classes": 5})),
    "k_subset": RegisteredStructure(
        KSubset, tuple({"num_items": n, "k": k} for n, k in [(1, 1), (4, 0), (5, 2), (4, 4)])
    ),
    "spanning_tree": RegisteredStructure(
        SpanningTree, tuple({"num_nodes": n} for n in (1, 2, 3, 4, 5))
    ),
    "projective_tree": RegisteredStructure(ProjectiveTree, ROOT_RULES),
    "non_projective_tree": RegisteredStructure(NonProjectiveTree, ROOT_RULES),
    "linear_chain": RegisteredStructure(LinearChain, ({"num_states": 1}, {"num_states": 3})),
    "semi_markov": RegisteredStructure(SemiMarkov, ({"num_states": 2, "max_length": 2},)),
    "alignment": RegisteredStructure(Alignment, ({},)),
    "constituency_tree": RegisteredStructure(ConstituencyTree, ({}, {"num_labels": 2})),
    "permutation": RegisteredStructure(Permutation, tuple({"size": n} for n in (1, 2, 4))),
    "grid_path": RegisteredStructure(
        GridPath,
        tuple(
            {"height": h, "width": w, "moves": moves, "scores": scores}
            for h, w, moves, scores in [
                (1, 1, "monotone", "cells"),
                (3, 4, "monotone", "cells"),
                (3, 3, "monotone", "edges"),
                (4, 3, "four", "cells"),
                (2, 4, "four", "edges"),
                (3, 3, "eight", "cells"),
                (2, 3, "eight", "edges"),
            ]
        ),
    ),
}
