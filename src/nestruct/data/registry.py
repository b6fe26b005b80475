"""Every data set that a recipe can name. A new one is a line here.

What the command line says about data sets and where they come from is in `catalogue`.
"""

from nestruct.data.domains import Treebanks
from nestruct.data.grammar import Grammar
from nestruct.data.graph_layout import GraphLayout
from nestruct.data.images import Images
from nestruct.data.listops import ListOps
from nestruct.data.patterns import Patterns
from nestruct.data.shortest_path import ShortestPaths
from nestruct.data.terrain import Terrain

DATASETS: dict[str, type] = {
    "grammar": Grammar,
    "graph-layout": GraphLayout,
    "images": Images,
    "listops": ListOps,
    "patterns": Patterns,
    "shortest-path": ShortestPaths,
    "terrain": Terrain,
    "treebanks": Treebanks,
}
