"""Encoders and decoders, plain modules; ``structured.py`` is the seam that estimators rely on."""

from nestruct.models.categorical import CategoricalVAE
from nestruct.models.mlp import mlp
from nestruct.models.parser import ParserVAE
from nestruct.models.relational import RelationalVAE
from nestruct.models.structured import StructuredModel, StructuredVAE, hard_structures

__all__ = [
    "CategoricalVAE",
    "ParserVAE",
    "RelationalVAE",
    "StructuredModel",
    "StructuredVAE",
    "hard_structures",
    "mlp",
]
