"""Data: readers, generators, splits, and what a batch is. Nothing about models or structures."""

from nestruct.data.batch import batch_size, select_rows

__all__ = ["batch_size", "select_rows"]
