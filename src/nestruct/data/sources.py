"""Data that are read as they are needed: Datasets, Hugging Face datasets, DataLoaders.

Of a Dataset we choose the examples of a step, so a resumed run sees what it would have seen. The
order of a DataLoader is its own.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from nestruct.data.batch import batch_size, device_of, to_device
from nestruct.data.convert import as_batch, check_same_on_all_ranks, concatenate, describe
from nestruct.data.hooks import HasMinibatches, HasSelectRows, HasTo
from nestruct.data.minibatches import Minibatches
from nestruct.errors import InputError, first_line
from nestruct.noise import Purpose, derive_seed, forked_generators

_CPU = torch.device("cpu")
_END = object()


def read_data(data: Any, dtype: torch.dtype | None = None) -> Any:
    """What a user gives as data: as a batch, as `Rows`, or as a `Loader`.

    Args:
        data: A batch, numpy arrays, a Dataset, a DataLoader, a Hugging Face dataset. A function of
            the step stays as it is.
        dtype: What numpy's floating-point numbers become.
    """
    if isinstance(data, HasSelectRows | HasMinibatches):
        return data  # a type of its own
    if isinstance(data, TensorDataset):
        return tuple(data.tensors)
    if isinstance(data, IterableDataset) or _is_stream(data):
        raise InputError(
            f"{type(data).__name__} is a stream of examples, which does not say how large a batch "
            "is: give it in a torch DataLoader."
        )
    if isinstance(data, Dataset) or _is_table(data):
        return Rows(data, dtype=dtype)
    if isinstance(data, DataLoader) or _is_iterable(data):
        return Loader(data, dtype=dtype)
    return data if callable(data) else as_batch(data, dtype=dtype, name="the data")


def read_whole(
    data: Any, *, dtype: torch.dtype | None, device: torch.device | None, share: bool
) -> Any:
    """Held-out examples as one batch on a device, or, where they have several shapes, `Pieces`.

    Args:
        data: As that of `read_data`.
        dtype: What numpy's floating-point numbers become.
        device: Where to put it; where it is when None. A type that moves itself is left there.
        share: Whether processes share the examples; then each of them must call it.
    """
    found, place = read_data(data, dtype), device or _CPU
    if isinstance(found, Loader):
        whole = found.to(place).whole()
        if share:
            for piece in whole.pieces if isinstance(whole, Pieces) else [whole]:
                check_same_on_all_ranks(piece, place)
        return whole
    if isinstance(found, Rows):
        return found.to(place).whole()
    if inspect.isroutine(found):
        raise InputError(
            "Held-out examples are no function of the step: give them all, or a DataLoader."
        )
    return found if device is None or isinstance(found, HasTo) else to_device(found, device)


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Examples that a Dataset is asked for: torch's, or a table of the `datasets` package.

    Args:
        dataset: ``dataset[i]`` is an example; a table's ``dataset[[i, j]]`` is a batch of columns.
        dtype: What numpy's floating-point numbers become.
        device: Where batches go.
    """

    dataset: Any
    dtype: torch.dtype | None = None
    device: torch.device = _CPU

    def __len__(self) -> int:
        return len(self.dataset)

    def select_rows(self, index: Tensor) -> Any:
        """The examples at ``index``, as a batch of tensors."""
        places = index.tolist()
        batch = self._columns(places) if _is_table(self.dataset) else self._collated(places)
        return to_device(batch, self.device)

    def to(self, device: torch.device) -> "Rows":
        """The same, with batches on a device."""
        return dataclasses.replace(self, device=device)

    def minibatches(self, size: int | None, seed: int) -> Minibatches:
        """Minibatches in our order; all examples are read once where a step sees all of them."""
        everything = size is None or size >= len(self)
        return Minibatches(self.whole() if everything and len(self) else self, size=size, seed=seed)

    def whole(self) -> Any:
        """All examples as one batch."""
        if not len(self):
            raise InputError(f"There are no examples: the {type(self.dataset).__name__} is empty.")
        return self.select_rows(torch.arange(len(self)))

    def _columns(self, places: list[int]) -> Any:
        plain = (self.dataset.format or {}).get("type") is None
        table = self.dataset.with_format("numpy") if plain else self.dataset
        return as_batch(table[places], dtype=self.dtype, name="the dataset")

    def _collated(self, places: list[int]) -> Any:
        several = getattr(self.dataset, "__getitems__", None)  # as torch's DataLoader asks
        items = several(places) if several else [self.dataset[place] for place in places]
        try:
            batch = default_collate(items)
        except (RuntimeError, TypeError) as error:
            raise InputError(
                f"The examples of {type(self.dataset).__name__} cannot be put together as a batch "
                f"({first_line(error).rstrip('.')}): give it in a torch DataLoader with a "
                "collate_fn."
            ) from error
        return as_batch(batch, name="the batch")


class Loader:
    """Batches that something gives which can be iterated over: a DataLoader.

    Args:
        source: What is iterated over.
        dtype: What numpy's floating-point numbers become.
        device: Where batches go.
    """

    def __init__(
        self, source: Iterable[Any], *, dtype: torch.dtype | None, device: torch.device = _CPU
    ) -> None:
        self.source, self.dtype, self.device = source, dtype, device
        self.kind = type(source).__name__
        if isinstance(source, Iterator):
            raise InputError(
                f"A {self.kind} can be read once only: give what can be read again, such as a "
                "torch DataLoader, or a function of the step."
            )
        self._structure: str | None = None

    def to(self, device: torch.device) -> "Loader":
        """The same, with batches on a device."""
        return Loader(self.source, dtype=self.dtype, device=device)

    def minibatches(self, size: int | None, seed: int) -> Callable[[int], Any]:
        """The batches as they come; their size is not ours to choose."""
        if size is not None:
            raise InputError(
                f"batch_size is {size}, but the {self.kind} says how large its batches are: leave "
                "batch_size out."
            )
        return Passes(self, seed)

    def whole(self) -> Any:
        """One pass as one batch, or as `Pieces` where shapes differ.

        A loader that shuffles by torch's own generator has the same order every time: an example's
        draws belong to its place.
        """
        with forked_generators():
            torch.manual_seed(derive_seed(0, Purpose.ORDER))
            batches = [to_device(self.read(batch), self.device) for batch in self.source]
        if not batches:
            raise self.empty()
        one = None if isinstance(batches[0], HasSelectRows) else concatenate(batches)
        return Pieces(batches) if one is None else one

    def read(self, found: Any) -> Any:
        """One of its batches as tensors, of the same structure as those before."""
        batch = as_batch(found, dtype=self.dtype)
        batch_size(batch)  # its tensors agree on it
        structure = describe(batch)
        if self._structure not in (None, structure):
            raise InputError(
                f"The {self.kind} gives batches of different structure, first {self._structure}, "
                f"then {structure}: make them alike in its dataset or collate_fn."
            )
        self._structure = structure
        return batch

    def empty(self) -> InputError:
        """What to raise where a pass gives no batch."""
        before = "" if self._structure is None else ", begun again,"
        return InputError(
            f"The {self.kind}{before} gives no batch: give it examples, no drop_last that drops "
            "them all, and a dataset that can be read more than once."
        )


class Passes:
    """A step's batch from a `Loader`, which begins again at its end.

    Torch's own generator is seeded by (seed, step) for each batch, so a loader that shuffles by it
    has the same order in all processes and in two runs of one seed.

    Args:
        loader: What gives batches.
        seed: The run's seed.
    """

    def __init__(self, loader: Loader, seed: int) -> None:
        self.loader, self.seed = loader, seed
        self._step = -1
        self._batch: Any = None
        self._batches: Iterator[Any] | None = None

    @property
    def steps_per_epoch(self) -> int | None:
        """Batches in one pass; None where the loader does not know."""
        try:
            length = len(self.loader.source) if isinstance(self.loader.source, Sized) else None
        except (TypeError, NotImplementedError):  # of a stream
            return None
        if length == 0:
            raise self.loader.empty()
        return length

    def __call__(self, step: int) -> Any:
        """The batch of a step; the next one, whichever it is."""
        if step != self._step:
            if step != self._step + 1:  # a resumed run: what was looked at is not trained on
                self._batches = None
            batch = self.loader.read(self._next(step))
            check_same_on_all_ranks(batch, self.loader.device)
            self._step, self._batch = step, to_device(batch, self.loader.device)
        return self._batch

    def _next(self, step: int) -> Any:
        with forked_generators():
            torch.manual_seed(derive_seed(self.seed, Purpose.ORDER, step))
            found = _END if self._batches is None else next(self._batches, _END)
            if found is _END:
                self._batches = iter(self.loader.source)
                found = next(self._batches, _END)
        if found is _END:
            raise self.loader.empty()
        return found


class Pieces:
    """Held-out batches whose examples have several shapes, so that they cannot be one batch.

    Args:
        pieces: The batches.
    """

    def __init__(self, pieces: Sequence[Any]) -> None:
        self.pieces = pieces
        self.sizes = [batch_size(piece) for piece in pieces]

    def __len__(self) -> int:
        return sum(self.sizes)

    def select_rows(self, index: Tensor) -> Any:
        """Not possible; only `slices` are."""
        raise InputError("Held-out batches of several shapes are evaluated as they are only.")

    def slices(self, size: int) -> Iterator[tuple[Tensor, Any]]:
        """The batches as they came, of whichever size."""
        first = 0
        for count, piece in zip(self.sizes, self.pieces, strict=True):
            yield torch.arange(first, first + count, device=device_of(piece)), piece
            first += count


def _is_table(data: Any) -> bool:
    """Whether it is a dataset of the `datasets` package, or one that has the same methods."""
    methods = ("with_format", "column_names", "format", "__getitem__", "__len__")
    return not isinstance(data, dict) and all(hasattr(data, name) for name in methods)


def _is_stream(data: Any) -> bool:
    """Whether it is a dataset of the `datasets` package that has no rows, only an order."""
    return hasattr(data, "with_format") and not isinstance(data, dict) and not _is_table(data)


def _is_iterable(data: Any) -> bool:
    """Whether it gives batches one after the other, and is no batch itself."""
    batches = (Tensor, np.ndarray, np.generic, dict, list, tuple, str, bytes, HasSelectRows)
    is_batch = isinstance(data, batches) or dataclasses.is_dataclass(data) or callable(data)
    is_frame = hasattr(data, "to_numpy")  # goes over its columns' names
    return isinstance(data, Iterable) and not is_batch and not is_frame
