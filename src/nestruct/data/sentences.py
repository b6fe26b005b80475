"""Sentences as tensors: a vocabulary, batches of padded sentences, minibatches of like lengths."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nestruct.data.batch import map_tensors, select_rows
from nestruct.data.minibatches import Minibatches
from nestruct.data.treebank import Sentence, is_punctuation
from nestruct.errors import InputError

UNKNOWN, ROOT = 0, 1  # the first two words of every vocabulary
_RESERVED = ("<unknown>", "<root>")
_STEP = 4  # widths of minibatches are multiples of it: so there are few, to be captured on a GPU
_MAX_CELLS = 1 << 18  # arcs of the sentences that are evaluated at a time


def normalise(form: str) -> str:
    """What a word is looked up by: lower case, and ``NUM`` for whatever starts with a digit.

    The authors' rule, so ``2nd``, ``3D`` and ``1990s`` are all ``NUM``.

    Example:
        >>> normalise("Galicia"), normalise("1990s"), normalise("covid-19")
        ('galicia', 'NUM', 'covid-19')
    """
    return "NUM" if "0" <= form[:1] <= "9" else form.lower()


@dataclass(frozen=True)
class Vocabulary:
    """The words and labels that a parser knows. Words come in three groups, one after the other.

    Args:
        words: All words, normalised; ``<unknown>`` and ``<root>`` first.
        counts: How often each of the first group occurs in the labelled text.
        num_outputs: How many of the words, from the first on, a decoder can write: the first group
            and the second, words of the unlabelled text only. The rest are known by their vectors.
        labels: Relations.

    Example:
        >>> vocabulary = Vocabulary.of([["A", "dog", "a"]], [["Cats"]], ["det", "root"])
        >>> vocabulary.index("DOG"), vocabulary.index("cats"), vocabulary.index("mouse")
        (3, 4, 0)
        >>> vocabulary.num_embedded, vocabulary.num_outputs
        (4, 5)
    """

    words: tuple[str, ...]
    counts: tuple[int, ...]
    num_outputs: int
    labels: tuple[str, ...]

    @classmethod
    def of(
        cls,
        labelled: Iterable[Sequence[str]],
        unlabelled: Iterable[Sequence[str]],
        labels: Iterable[str],
        with_vectors: Iterable[str] = (),
    ) -> "Vocabulary":
        """From the forms of sentences; frequent words first, ties in alphabetical order."""
        counter = Counter(normalise(form) for forms in labelled for form in forms)
        ranked = sorted(counter, key=lambda word: (-counter[word], word))
        known = dict.fromkeys([*_RESERVED, *ranked])
        num_embedded = len(known)
        known |= dict.fromkeys(sorted({normalise(form) for forms in unlabelled for form in forms}))
        num_outputs = len(known)
        known |= dict.fromkeys(with_vectors)
        words = tuple(known)
        counts = tuple(counter[word] for word in words[:num_embedded])
        return cls(words, counts, num_outputs, tuple(sorted(set(labels))))

    def __post_init__(self) -> None:
        places = {word: place for place, word in enumerate(self.words)}
        object.__setattr__(self, "_places", places)

    @property
    def num_embedded(self) -> int:
        """Words of the first group, which have a vector that is trained."""
        return len(self.counts)

    def index(self, form: str) -> int:
        """The number of a word; that of ``<unknown>`` where it is not known."""
        return self._places.get(normalise(form), UNKNOWN)  # type: ignore[attr-defined]

    def to_state(self) -> dict[str, Any]:
        """Plain lists, which a checkpoint can keep."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Vocabulary":
        """From what `to_state` gave.

        Raises:
            InputError: It is none that `to_state` can have given.
        """
        kinds = {"words": str, "counts": int, "labels": str}
        try:
            values = {name: tuple(state[name]) for name in kinds}
            num_outputs = state["num_outputs"]
            words, counts = values["words"], values["counts"]
            right = (
                all(type(v) is kind for name, kind in kinds.items() for v in values[name])
                and len(set(words)) == len(words)
                and type(num_outputs) is int
                and 2 <= len(counts) <= num_outputs <= len(words)
                and min(counts) >= 0
            )
        except (TypeError, KeyError):
            right = False
        if not right:
            raise InputError("The vocabulary is none that a parser can have; train it again.")
        return cls(values["words"], values["counts"], num_outputs, values["labels"])


@dataclass(frozen=True)
class Sentences:
    """A batch of sentences; place 0 is the root, places beyond ``lengths`` are padding.

    Args:
        words: Numbers of the vocabulary.
        heads: The head of each word; 0 at the root, in padding and where it is not told.
        labels: The number of each word's relation, -1 where the vocabulary does not have it; 0 at
            the root, in padding and where it is not told.
        scored: Which words count in scores without punctuation.
        lengths: Words of each sentence.
    """

    words: Int[Tensor, "batch tokens"]
    heads: Int[Tensor, "batch tokens"]
    labels: Int[Tensor, "batch tokens"]
    scored: Bool[Tensor, "batch tokens"]
    lengths: Int[Tensor, " batch"]

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def z(self) -> Float[Tensor, "batch tokens tokens"]:
        """The trees: 1 at (head, dependent)."""
        place = torch.arange(self.words.shape[1], device=self.words.device)
        return ((self.heads[:, None] == place[:, None]) & self.is_word[:, None]).float()

    @property
    def is_word(self) -> Bool[Tensor, "batch tokens"]:
        """Which places are words: neither the root nor padding."""
        place = torch.arange(self.words.shape[1], device=self.words.device)
        return (place > 0) & (place <= self.lengths[:, None])

    def cut(self, width: int) -> "Sentences":
        """Padded to another width, in words."""
        extra = width + 1 - self.words.shape[1]

        def change(tensor: Tensor) -> Tensor:
            if tensor.dim() == 1:
                return tensor
            return torch.nn.functional.pad(tensor, (0, extra))

        return map_tensors(self, change)

    def slices(self, size: int) -> Iterator[tuple[Int[Tensor, " rows"], "Sentences"]]:
        """All sentences once, at most ``size`` at a time, each time padded to the longest.

        Those of like length together, and few of the long ones at a time: memory grows with the
        square of the length.
        """
        order = self.lengths.argsort(descending=True)
        start, lengths = 0, self.lengths[order].tolist()
        while start < len(order):
            width = max(lengths[start], 1)
            rows = order[start : start + max(1, min(size, _MAX_CELLS // width**2))]
            yield rows, select_rows(self, rows).cut(width)
            start += len(rows)

    def minibatches(self, size: int | None, seed: int) -> "Buckets":
        """What `nestruct.fit` trains with."""
        return Buckets(self, size=size, seed=seed)


def collate(sentences: Sequence[Sentence], vocabulary: Vocabulary, *, trees: bool) -> Sentences:
    """Sentences as one batch.

    Args:
        sentences: With words each.
        vocabulary: Numbers the words and labels.
        trees: Whether heads and labels are told.
    """
    width = 1 + max(map(len, sentences), default=0)
    words = torch.full((len(sentences), width), UNKNOWN)
    words[:, 0] = ROOT
    heads, labels = torch.zeros_like(words), torch.zeros_like(words)
    scored = torch.zeros(len(sentences), width, dtype=torch.bool)
    numbers = {label: number for number, label in enumerate(vocabulary.labels)}
    for row, sentence in enumerate(sentences):
        here = slice(1, len(sentence) + 1)
        words[row, here] = torch.tensor([vocabulary.index(form) for form in sentence.forms])
        scored[row, here] = torch.tensor([not is_punctuation(form) for form in sentence.forms])
        if trees:
            heads[row, here] = torch.tensor(sentence.heads)
            labels[row, here] = torch.tensor([numbers.get(x, -1) for x in sentence.labels])
    lengths = torch.tensor([len(sentence) for sentence in sentences], dtype=torch.long)
    return Sentences(words, heads, labels, scored, lengths)


class Buckets(Minibatches):
    """Minibatches of sentences of like length, in another order in every epoch.

    What is left over at the end of an epoch is dropped, another part in each, so that every
    minibatch has the same number of sentences. Each is padded to its longest, and that to a
    multiple of four.

    Args:
        data: All sentences.
        size: Sentences per minibatch; all of them when None.
        seed: Decides the order.

    Example:
        >>> from nestruct.data.treebank import sentence_of
        >>> forms = [["a"] * length for length in (3, 1, 9, 8)]
        >>> sentences = [sentence_of(f, range(len(f)), ["dep"] * len(f)) for f in forms]
        >>> vocabulary = Vocabulary.of(forms, [], ["dep"])
        >>> batches = Buckets(collate(sentences, vocabulary, trees=True), size=2, seed=0)
        >>> sorted(batches(step).words.shape for step in range(2))
        [torch.Size([2, 5]), torch.Size([2, 13])]
    """

    def __init__(self, data: Sentences, *, size: int | None = None, seed: int = 0) -> None:
        super().__init__(data, size=size, seed=seed)
        self._lengths = data.lengths.cpu()
        self._width_of: list[int] = []  # of each minibatch of the present epoch

    def __call__(self, step: int) -> Sentences:
        """The minibatch of a step."""
        rows = self._rows_of(step)
        return select_rows(self.data, rows).cut(self._width_of[step % self.steps_per_epoch])

    def _order_of(self, epoch: int) -> Int[Tensor, " examples"]:
        order = super()._order_of(epoch)[: self.steps_per_epoch * self.size]
        order = order[self._lengths[order].argsort(stable=True)].view(-1, self.size)
        order = order[self._shuffle(self.steps_per_epoch, epoch, 1)]
        longest = self._lengths[order].amax(1).tolist()
        self._width_of = [max(1, -(-length // _STEP)) * _STEP for length in longest]
        return order.flatten()
