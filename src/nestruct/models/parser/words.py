"""Words in, trees out: a trained parser on sentences of plain words, without files."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from nestruct.checks import check_count
from nestruct.data.embeddings import read_embeddings
from nestruct.data.sentences import UNKNOWN, Vocabulary, normalise
from nestruct.data.text import check_token, from_tokens
from nestruct.data.treebank import Sentence
from nestruct.errors import InputError
from nestruct.models.parser.files import with_trees
from nestruct.models.parser.text_tree import draw_tree

if TYPE_CHECKING:
    from nestruct.models.parser import ParserVAE

_RESERVED = 2  # the unknown word and the root: no vector from outside
_CLOSE = 0.01  # of a vector's size: what rounding of a file may come to


@dataclass(frozen=True)
class ParsedSentence:
    """A sentence and its dependency tree; ``print`` draws it.

    Attributes:
        words: Its words.
        heads: The number of each word's head, from 1 on; 0 for the root.
        labels: The relation of each word to its head.
        unknown: The words that the parser knows nothing of, neither from its training nor from word
            vectors: it guesses by their neighbours.
    """

    words: tuple[str, ...]
    heads: tuple[int, ...]
    labels: tuple[str, ...]
    unknown: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.words)

    def __str__(self) -> str:
        return draw_tree(self.words, self.heads, self.labels)

    def to_conllu(self, number: int = 1) -> str:
        """The sentence in CoNLL-U, with a blank line at its end.

        Args:
            number: Its ``sent_id``.
        """
        plain = from_tokens(list(self.words), number, " ".join(self.words))
        return bytes(plain.with_tree(self.heads, self.labels)).decode()


def parse_words(model: "ParserVAE", sentences: Any, max_words: int) -> Any:
    """A `ParsedSentence` of a sentence of words, or a list of them of a list of sentences."""
    check_count("parse", "max_words", max_words, 1)
    alone = _is_list(sentences) and len(sentences) > 0 and isinstance(sentences[0], str)
    every = [sentences] if alone else sentences
    if not _is_list(every):
        raise InputError(
            "parse takes a sentence as a list of words, or a list of such sentences; got "
            f"{sentences!r:.60}{_advice(sentences)}."
        )
    plain = [
        _check(words, f"sentence {k}" if not alone else "the sentence", max_words)
        for k, words in enumerate(every, 1)
    ]
    parsed = [describe(model, sentence) for sentence in with_trees(model, plain)]
    return parsed[0] if alone else parsed


def describe(model: "ParserVAE", sentence: Sentence) -> ParsedSentence:
    """A parsed sentence of a file without what else the file has."""
    unknown = tuple(word for word in sentence.forms if model.vocabulary.index(word) == UNKNOWN)
    return ParsedSentence(sentence.forms, sentence.heads, sentence.labels, unknown)


def read_vectors(model: "ParserVAE", file: str | Path, words: Iterable[str] | None) -> int:
    """Lets a parser know more words by their vectors; how many they are.

    Args:
        model: Changed in place: its vocabulary and its vectors grow.
        file: The word vectors that it was trained with.
        words: Which of its words are wanted; all when None.
    """
    vocabulary, own = model.vocabulary, model.vectors
    places = {word: place for place, word in enumerate(vocabulary.words)}
    wanted = None if words is None else {normalise(word) for word in words} | set(places)
    found, vectors = read_embeddings(file, wanted)
    table = torch.as_tensor(vectors)
    shared = [k for k, word in enumerate(found) if places.get(word, 0) >= _RESERVED]
    if table.shape[1] != own.shape[1]:
        raise InputError(
            f"{file} has vectors of {table.shape[1]} numbers, and the parser was trained with "
            f"{own.shape[1]}: give the file that it was trained with."
        )
    mine = own[[places[found[k]] for k in shared]].detach().cpu().float()
    size = float(mine.square().mean().sqrt()) if shared else 0.0
    if not shared or (table[shared].half().float() - mine).abs().max() > _CLOSE * size:
        raise InputError(
            f"{file} has other vectors than those that the parser was trained with"
            + ("" if shared else " (none for any word that it knows)")
            + ": give the file that it was trained with."
        )
    new = [k for k, word in enumerate(found) if word not in places and normalise(word) == word]
    known = (*vocabulary.words, *(found[k] for k in new))
    model.vocabulary = Vocabulary(
        known, vocabulary.counts, vocabulary.num_outputs, vocabulary.labels
    )
    more = table[new].to(own)
    model.vectors = nn.Parameter(torch.cat([own.detach(), more]), requires_grad=False)
    return len(new)


def _check(words: Any, what: str, max_words: int) -> Sentence:
    if not _is_list(words) or not all(isinstance(word, str) for word in words):
        raise InputError(
            f"parse: {what} must be a list of words, got {words!r:.60}{_advice(words)}."
        )
    if not words:
        raise InputError(f"parse: {what} has no words: leave it out.")
    if len(words) > max_words:
        raise InputError(
            f"parse: {what} has {len(words):,} words, more than {max_words:,} (max_words): "
            "memory grows with the square of that. Cut it into sentences, or allow more."
        )
    for k, word in enumerate(words, 1):
        if reason := check_token(word):
            raise InputError(f"parse: {what}, word {k}: {reason}.")
    return from_tokens(list(words), 1, " ".join(words))


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _advice(value: Any) -> str:
    return ": nestruct.data.tokenise makes words of a text" if isinstance(value, str) else ""
