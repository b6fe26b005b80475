"""Every model that a recipe can name. A new one is a line here."""

from dataclasses import dataclass

from torch import nn

from nestruct.models.appendix import AppendixVAE
from nestruct.models.categorical import CategoricalVAE
from nestruct.models.listops import ListOpsModel
from nestruct.models.parser import ParserVAE
from nestruct.models.path_costs import PathCosts
from nestruct.models.relational import RelationalVAE
from nestruct.models.subset_vae import SubsetVAE
from nestruct.models.terrain import TerrainPaths


@dataclass(frozen=True)
class RecipeModel:
    """A model as recipes know it.

    Args:
        make: Its class.
        given: Arguments that the data set decides: its attributes of the same names.
    """

    make: type[nn.Module]
    given: tuple[str, ...]


MODELS = {
    "categorical": RecipeModel(CategoricalVAE, given=("num_inputs",)),
    "categorical-appendix": RecipeModel(AppendixVAE, given=("num_inputs",)),
    "listops": RecipeModel(ListOpsModel, given=("num_tokens", "num_values")),
    "parser": RecipeModel(ParserVAE, given=("vocabulary", "vectors")),
    "path-costs": RecipeModel(PathCosts, given=("num_features", "height", "width")),
    "relational": RecipeModel(RelationalVAE, given=("num_nodes", "num_times")),
    "subsets": RecipeModel(SubsetVAE, given=("num_inputs",)),
    "terrain": RecipeModel(TerrainPaths, given=("height", "width", "tile_size")),
}
