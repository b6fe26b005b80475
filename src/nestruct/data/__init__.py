"""Data: readers, generators, splits, and what a batch is. Nothing about models or structures."""

from nestruct.data.batch import batch_size, device_of, map_tensors, select_rows, to_device
from nestruct.data.catalogue import CATALOGUE
from nestruct.data.graph_layout import GraphLayout
from nestruct.data.images import Images
from nestruct.data.minibatches import Minibatches
from nestruct.data.patterns import Patterns

__all__ = [
    "CATALOGUE",
    "GraphLayout",
    "Images",
    "Minibatches",
    "Patterns",
    "batch_size",
    "device_of",
    "map_tensors",
    "select_rows",
    "to_device",
]
