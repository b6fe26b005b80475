"""Data: readers, generators, splits, and what a batch is. Nothing about models."""

from nestruct.data.batch import (
    batch_size,
    device_of,
    map_tensors,
    select_rows,
    slices,
    to_device,
)
from nestruct.data.catalogue import CATALOGUE
from nestruct.data.convert import as_batch, check_same_on_all_ranks
from nestruct.data.domains import Treebanks, find_vectors
from nestruct.data.grammar import Grammar
from nestruct.data.graph_layout import GraphLayout
from nestruct.data.images import Images
from nestruct.data.listops import Expressions, ListOps
from nestruct.data.minibatches import Minibatches, make_minibatches
from nestruct.data.patterns import Patterns
from nestruct.data.sentences import Buckets, Sentences, Vocabulary
from nestruct.data.shortest_path import ShortestPaths
from nestruct.data.sources import Loader, Pieces, Rows, read_data, read_whole
from nestruct.data.terrain import Terrain
from nestruct.data.text import TextReader, tokenise

__all__ = [
    "CATALOGUE",
    "Buckets",
    "Expressions",
    "Grammar",
    "GraphLayout",
    "Images",
    "ListOps",
    "Loader",
    "Minibatches",
    "Patterns",
    "Pieces",
    "Rows",
    "Sentences",
    "ShortestPaths",
    "Terrain",
    "TextReader",
    "Treebanks",
    "Vocabulary",
    "as_batch",
    "batch_size",
    "check_same_on_all_ranks",
    "device_of",
    "find_vectors",
    "make_minibatches",
    "map_tensors",
    "read_data",
    "read_whole",
    "select_rows",
    "slices",
    "to_device",
    "tokenise",
]
