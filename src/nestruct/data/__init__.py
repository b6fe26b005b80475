"""Data: readers, generators, splits, and what a batch is. Nothing about models or structures."""

from nestruct.data.batch import batch_size, device_of, map_tensors, select_rows, to_device
from nestruct.data.graph_layout import GraphLayout
from nestruct.data.minibatches import Minibatches

__all__ = [
    "GraphLayout",
    "Minibatches",
    "batch_size",
    "device_of",
    "map_tensors",
    "select_rows",
    "to_device",
]
