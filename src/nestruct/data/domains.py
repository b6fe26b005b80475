"""Two treebanks of one language: a source with trees to learn from, a target to adapt to.

The setting of the paper's Table 2. Treebanks are read from the folder that the environment variable
``NESTRUCT_DATA`` names, as ``ud/<name>/<split>.conllu`` or with UD's own file names,
``ud/<name>/<name>-ud-<split>.conllu``, each plain or with ``.gz``; word vectors from ``emb/``.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from nestruct.checks import check_choice, check_count
from nestruct.data.embeddings import read_embeddings
from nestruct.data.sentences import Sentences, Vocabulary, collate, normalise
from nestruct.data.treebank import Sentence, read_treebank
from nestruct.errors import InputError
from nestruct.noise import Purpose, derive_seed
from nestruct.untrusted import check_regular

TREEBANKS = ("gl_ctg", "gl_treegal", "id_csui", "id_gsd", "ru_gsd", "ru_taiga")  # of Table 2
LANGUAGES = ("gl", "id", "ru")  # of them
_UD = "github.com/UniversalDependencies"
_UNSET = "$NESTRUCT_DATA"  # what is shown in the place of the folder where none is named
_VECTORS = "fasttext.cc/docs/en/crawl-vectors.html"


@dataclass(frozen=True)
class Texts:
    """The sentences of a source and a target; a split that is not there is empty."""

    train: Sequence[Sentence]
    dev: Sequence[Sentence]
    target_train: Sequence[Sentence]
    target_test: Sequence[Sentence]


@dataclass(frozen=True, kw_only=True)
class Domains(ABC):
    """Where texts come from is for a subclass to say; what is made of them is here.

    ``train`` is the source's, with trees, or the target's, without any. ``validation`` is the
    source's dev, ``test`` the target's test.

    Args:
        train_on: ``source`` or ``target``.
        words: Whose words the vocabulary has: ``train``, those of both train splits (and only the
            source's have vectors that are trained); or ``all``, the authors' choice: dev and test
            too, each with a trained vector.
        max_words: Longer sentences are left out of training; none when None. Evaluation has all.
        seed: Of the split, where the source has no dev, and of made-up vectors.
    """

    train_on: Literal["source", "target"] = "source"
    words: Literal["train", "all"] = "train"
    max_words: int | None = 100
    seed: int = 0

    def __post_init__(self) -> None:
        owner = type(self).__name__
        check_choice(f"{owner}: train_on", self.train_on, ("source", "target"))
        check_choice(f"{owner}: words", self.words, ("train", "all"))
        if self.max_words is not None:
            check_count(owner, "max_words", self.max_words, 1)
        check_count(owner, "seed", self.seed, 0)

    @property
    def hidden(self) -> tuple[str, ...]:
        """Splits whose trees are not told."""
        return ("train",) if self.train_on == "target" else ()

    @abstractmethod
    def _read(self) -> Texts:
        """The sentences."""

    @abstractmethod
    def _read_vectors(self, forms: set[str]) -> tuple[list[str], Any]:
        """Words with vectors from outside, and those ``[words, size]``."""

    @cached_property
    def texts(self) -> Texts:
        """All sentences, read once."""
        return self._read()

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Words and labels."""
        texts = self.texts
        labels = [label for sentence in texts.train for label in sentence.labels]
        forms = [[sentence.forms for sentence in part] for part in vars(texts).values()]
        train, dev, target_train, target_test = forms
        if self.words == "all":
            train, target_train = [*train, *dev, *target_train, *target_test], []
        return Vocabulary.of(train, target_train, labels, self._outside[0])

    @cached_property
    def vectors(self) -> Float[Tensor, "words size"]:
        """A fixed vector for each word of the vocabulary, float16.

        Those from outside where there are any; others are made up, random and of the same size, so
        that words are told apart. That of unknown words is zero.
        """
        known, vectors = self._outside
        words = self.vocabulary.words
        scale = float((vectors**2).mean() ** 0.5) if len(known) else 1.0
        generator = torch.Generator().manual_seed(derive_seed(self.seed, Purpose.MADE_UP_VECTORS))
        table = scale * torch.randn(len(words), vectors.shape[1], generator=generator)
        places = {word: place for place, word in enumerate(words)}
        rows = torch.tensor([places[word] for word in known], dtype=torch.long)
        table[rows] = torch.as_tensor(vectors, dtype=table.dtype)
        table[0] = 0
        return table.half()

    def splits(self) -> dict[str, Sentences]:
        """``train``, ``validation`` and, where there is one, ``test``."""
        texts, vocabulary = self.texts, self.vocabulary
        labelled = self.train_on == "source"
        train = [
            sentence
            for sentence in (texts.train if labelled else texts.target_train)
            if self.max_words is None or len(sentence) <= self.max_words
        ]
        if not train:
            raise InputError(
                f"{type(self).__name__}: the {self.train_on} has no sentence to train on"
                + (f" of at most {self.max_words} words." if self.max_words else ".")
            )
        splits = {
            "train": collate(train, vocabulary, trees=labelled),
            "validation": collate(texts.dev, vocabulary, trees=True),
        }
        if texts.target_test:
            splits["test"] = collate(texts.target_test, vocabulary, trees=True)
        return splits

    def drawing(self, batch: Sentences) -> dict[str, list[list[str]]]:
        """What a report needs to draw trees: words as they are known, and their true relations.

        Where words must not be shown, relations stand in their place.
        """
        vocabulary = self.vocabulary
        names = {"words": vocabulary.words, "labels": (*vocabulary.labels, "unknown")}  # -1 is that
        lengths = batch.lengths.tolist()
        return {
            key: [
                [known[number] for number in row[1 : n + 1]]
                for row, n in zip(getattr(batch, key).tolist(), lengths, strict=True)
            ]
            for key, known in names.items()
        }

    def _split(self, train: list[Sentence]) -> tuple[list[Sentence], list[Sentence]]:
        """Train and dev of a treebank that has no dev: a tenth of train, drawn with the seed."""
        generator = torch.Generator().manual_seed(derive_seed(self.seed, Purpose.TREEBANK_SPLIT))
        order = torch.randperm(len(train), generator=generator).tolist()
        num_dev = max(1, len(train) // 10)
        dev = sorted(order[:num_dev])
        return [train[k] for k in sorted(order[num_dev:])], [train[k] for k in dev]

    @cached_property
    def _outside(self) -> tuple[list[str], Any]:
        texts = vars(self.texts).values()
        forms = {normalise(f) for part in texts for sentence in part for f in sentence.forms}
        return self._read_vectors(forms)


@dataclass(frozen=True, kw_only=True)
class Treebanks(Domains):
    """Universal Dependencies treebanks.

    Args:
        source: The treebank with trees, like ``gl_ctg``; a name with a slash is a folder.
        target: The treebank to adapt to, whose train file needs no trees; without one (None, or
            ``none``) the source's own test is the test.
        embeddings: Word vectors: a file's name in ``emb/`` (or a path with a slash); ``auto``, the
            file there that starts with the source's language (``cc.gl.`` or ``gl_``); ``none``:
            made-up ones of 300 dimensions.
        skip_bad: Whether malformed sentences are left out, with a warning, instead of an error.

    Example:
        >>> data = Treebanks(source="gl_treegal", target="gl_ctg")
        >>> len(data.splits()["validation"])  # doctest: +SKIP
        60
    """

    source: str
    target: str | None = None
    embeddings: str = "auto"
    skip_bad: bool = False

    def _read(self) -> Texts:
        train = self._sentences(self.source, "train", required=True)
        dev = self._sentences(self.source, "dev")
        if not dev:
            if len(train) < 2:
                raise InputError(
                    f"Treebanks: {self.source} has {len(train)} sentence(s) to train on and no "
                    "dev; give a treebank with more."
                )
            train, dev = self._split(train)
        adapts = self.target not in (None, "none")
        target = self.target if self.target is not None and adapts else self.source
        target_train = []
        if adapts:  # trees that are never looked at may be broken, or not there
            target_train = self._sentences(target, "train", required=True, trees=False)
        if self.train_on == "target" and not adapts:
            raise InputError("Treebanks: train_on is 'target', so say which: data.target=NAME.")
        return Texts(train, dev, target_train, self._sentences(target, "test"))

    def find(self, split: str) -> Path | None:
        """The source's file of a split; None where it is missing."""
        return _find(self.source, split)

    def remedy(self, *splits: str) -> str:
        """What to do where the source's files of some splits are missing: the end of a sentence."""
        return _remedy(self.source, *splits)

    def _sentences(
        self, name: str, split: str, *, required: bool = False, trees: bool = True
    ) -> list[Sentence]:
        path = _find(name, split)
        if path is None:
            if required:
                raise _missing(_folder(name) / f"{split}.conllu.gz", _remedy(name, split))
            return []
        try:
            check_regular(path)
        except (OSError, ValueError) as error:
            raise InputError(f"Treebanks: {path} cannot be read: {error}.") from None
        sentences = read_treebank(path, trees=trees, skip_bad=self.skip_bad)
        if required and not sentences:
            raise InputError(f"Treebanks: {path} has no sentences.")
        return sentences

    def _read_vectors(self, forms: set[str]) -> tuple[list[str], Any]:
        if self.embeddings == "none":
            return [], torch.zeros(0, 300)
        path = self.find_vectors()
        if path is None:
            raise _missing(_root("emb") / self._vectors_name, self.vectors_remedy())
        return read_embeddings(path, forms)

    def find_vectors(self) -> Path | None:
        """The file of word vectors; None where it is missing."""
        if "/" in self.embeddings:
            return Path(self.embeddings)
        if self.embeddings != "auto":
            path = _root("emb") / self.embeddings
            return path if path.exists() else None
        return find_vectors(self._language)

    def vectors_remedy(self) -> str:
        """What to do where the word vectors are missing, as the end of a sentence."""
        return (
            f"get {self._vectors_name} from {_VECTORS} and put it into {_root('emb')}, or say "
            "data.embeddings=none"
        )

    @property
    def _language(self) -> str:
        return Path(self.source).name.partition("_")[0]

    @property
    def _vectors_name(self) -> str:
        return f"cc.{self._language}.300.vec.gz" if self.embeddings == "auto" else self.embeddings


def find_vectors(language: str) -> Path | None:
    """The word vectors of a language in the folder ``emb`` of ``NESTRUCT_DATA``, or None.

    Args:
        language: Like ``gl``: the name of the file starts with ``cc.gl.`` or ``gl_``.
    """
    folder = _root("emb")
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    starts = (f"cc.{language}.", f"{language}_")
    return next((f for s in starts for f in files if f.name.startswith(s)), None)


def _find(name: str, split: str) -> Path | None:
    """A treebank's file of a split."""
    folder = _folder(name)
    if folder.is_file():
        raise InputError(f"Treebanks: {folder} is a file; give the folder that it is in.")
    stems = (split, f"{folder.name}-ud-{split}")
    paths = [folder / f"{stem}.conllu{end}" for stem in stems for end in ("", ".gz")]
    return next((path for path in paths if path.exists()), None)


def _remedy(name: str, *splits: str) -> str:
    folder = _folder(name)
    if _is_own(name):
        return f"put train.conllu or train.conllu.gz (and dev, test) into {name}"
    files = " and ".join(f"{folder.name}-ud-{split}.conllu" for split in splits)
    return f"get {files} from {_UD} and put {'it' if len(splits) == 1 else 'them'} into {folder}"


def _is_own(name: str) -> bool:
    """Whether it is a folder of the user's, not the name of a treebank."""
    return "/" in name


def _folder(name: str) -> Path:
    return Path(name) if _is_own(name) else _root("ud") / name


def _root(below: str) -> Path:
    return Path(os.environ.get("NESTRUCT_DATA") or _UNSET) / below


def _missing(path: Path, remedy: str) -> InputError:
    what = f"{path} is missing"
    if path.parts[0] == _UNSET:
        what = "the environment variable NESTRUCT_DATA is not set"
        remedy = f"set it to a folder, and {remedy}"
    return InputError(f"Treebanks: {what}; {remedy}.")
