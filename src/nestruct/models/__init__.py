"""Encoders and decoders, plain modules; ``structured.py`` is the seam that estimators rely on."""

from nestruct.models.appendix import AppendixVAE
from nestruct.models.categorical import CategoricalVAE
from nestruct.models.listops import ListOpsModel
from nestruct.models.mlp import mlp
from nestruct.models.parser import ParsedSentence, ParserVAE
from nestruct.models.path_costs import PathCosts
from nestruct.models.relational import RelationalVAE
from nestruct.models.structured import StructuredModel, hard_structures
from nestruct.models.subset_vae import SubsetVAE
from nestruct.models.terrain import TerrainPaths
from nestruct.models.vae import StructuredVAE

__all__ = [
    "AppendixVAE",
    "CategoricalVAE",
    "ListOpsModel",
    "ParsedSentence",
    "ParserVAE",
    "PathCosts",
    "RelationalVAE",
    "StructuredModel",
    "StructuredVAE",
    "SubsetVAE",
    "TerrainPaths",
    "hard_structures",
    "mlp",
]
