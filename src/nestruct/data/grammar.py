"""A generated treebank with a known grammar, for tests and recipes that need no download.

Clauses of a verb, its subject and object, adverbs, and prepositional phrases that hang from the
verb or from the noun before them: which, their preposition decides. Every word's head follows from
the kinds of the words around it, so a parser can reach all of them. All trees are projective.

The target differs from the source in its words (a part of each kind is not in the source) and in
its sentences, which are longer.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import torch

from nestruct.checks import check_count
from nestruct.data.domains import Domains, Texts
from nestruct.data.treebank import Sentence, sentence_of
from nestruct.errors import InputError
from nestruct.noise import derive_seed

_SIZES = {"det": 4, "adj": 30, "noun": 80, "verb": 40, "adv": 15, "of": 3, "in": 5}
_SPLITS = ("train", "dev", "target_train", "target_test")


@dataclass(frozen=True, kw_only=True)
class Grammar(Domains):
    """Generated sentences of a source and a target domain, with their trees.

    Args:
        num_train: Sentences of the source to train on.
        num_dev: Sentences of the source to select by.
        num_target: Sentences of the target to train on, and as many to test.
        shift: The share of the target's words that the source does not have.
        vector_size: Dimensions of the words' fixed vectors: random, near for words of one kind.

    Example:
        >>> from nestruct.data import Grammar
        >>> sentence = Grammar(num_train=5).texts.train[0]
        >>> len(sentence.forms) == len(sentence.heads)
        True
    """

    num_train: int = 400
    num_dev: int = 100
    num_target: int = 200
    shift: float = 0.3
    vector_size: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("num_train", "num_dev", "num_target", "vector_size"):
            check_count("Grammar", name, getattr(self, name), 1)
        if not 0 <= self.shift <= 1:
            raise InputError(f"Grammar: shift must be from 0 to 1, got {self.shift!r}.")

    def _read(self) -> Texts:
        counts = (self.num_train, self.num_dev, self.num_target, self.num_target)
        parts = []
        for number, (name, count) in enumerate(zip(_SPLITS, counts, strict=True)):
            writer = _Writer(derive_seed(self.seed, number), "target" in name, self.shift)
            parts.append([writer.sentence() for _ in range(count)])
        return Texts(*parts)

    def _read_vectors(self, forms: set[str]) -> tuple[list[str], Any]:
        """The vector of its kind for each word, and something of its own."""
        generator = torch.Generator().manual_seed(derive_seed(self.seed, len(_SPLITS)))
        kinds = torch.randn(len(_SIZES), self.vector_size, generator=generator)
        words = [(form, kind) for kind, name in enumerate(_SIZES) for form in _lexicon(name)]
        own = torch.randn(len(words), self.vector_size, generator=generator)
        return [w for w, _ in words], kinds[[k for _, k in words]] + 0.5 * own


def _lexicon(kind: str) -> list[str]:
    """Made-up words: syllables that no other word has, and an ending for the kind."""
    starts = itertools.product("bdfgklmnprst", "aeiou", ("", "l", "n", "r"))
    return [f"{''.join(start)}{kind}" for start in itertools.islice(starts, _SIZES[kind])]


class _Writer:
    """Draws sentences."""

    def __init__(self, seed: int, is_target: bool, shift: float) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.is_target = is_target
        self.words = {}
        for kind in _SIZES:
            words = _lexicon(kind)
            own = int(shift * len(words)) if len(words) > 5 else 0  # at the end of each kind
            self.words[kind] = words if is_target else words[: len(words) - own]

    def sentence(self) -> Sentence:
        """One sentence."""
        self.forms: list[str] = []
        self.heads: list[int] = []
        self.labels: list[str] = []
        subject = self._noun_phrase("nsubj")
        adverb = self._word("adv", "advmod") if self._chance(0.3) else None
        verb = self._word("verb", "root")
        below = [subject, adverb]
        if self._chance(0.7):
            below.append(self._noun_phrase("obj"))
        while self._chance(0.5 if self.is_target else 0.3):
            below.append(self._phrase("in", "obl"))
        below.append(self._add(".", "punct"))
        for word in below:
            if word is not None:
                self.heads[word - 1] = verb
        return sentence_of(self.forms, self.heads, self.labels)

    def _noun_phrase(self, label: str, before: int | None = None) -> int:
        first = len(self.forms) + 1 if before is None else before
        self._word("det", "det")
        while self._chance(0.3):
            self._word("adj", "amod")
        noun = self._word("noun", label)
        for word in range(first, noun):
            self.heads[word - 1] = noun
        if self._chance(0.25):
            self.heads[self._phrase("of", "nmod") - 1] = noun
        return noun

    def _phrase(self, kind: str, label: str) -> int:
        return self._noun_phrase(label, before=self._word(kind, "case"))

    def _word(self, kind: str, label: str) -> int:
        words = self.words[kind]
        return self._add(words[int(torch.randint(len(words), (), generator=self.generator))], label)

    def _add(self, form: str, label: str) -> int:
        self.forms.append(form)
        self.heads.append(0)
        self.labels.append(label)
        return len(self.forms)

    def _chance(self, p: float) -> bool:
        return bool(torch.rand((), generator=self.generator) < p)
