"""The networks of the parsing VAE: a graph-based parser, and a language model that reads a tree.

Parser: E. Kiperwasser and Y. Goldberg, "Simple and Accurate Dependency Parsing Using Bidirectional
LSTM Feature Representations", 2016. Decoder: C. Corro and I. Titov, "Differentiable
Perturb-and-Parse", 2018, as in the paper's Section 4.2.
"""

import functools

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nestruct.models.lstm import LSTM

# Computed at once where nothing is differentiated: what a cache holds, and what a launch is worth.
_MAX_LOGITS = {"cpu": 1 << 22, "cuda": 1 << 28}
_KEPT_LOGITS = 1 << 28  # for the way back; where there are more, they are computed a second time


class ArcParser(nn.Module):
    """Scores of arcs and of their labels.

    Args:
        num_words: Words that have a vector of their own; any other has that of the first.
        vector_size: Numbers of a word's fixed vector, from outside.
        num_labels: Relations.
        word_size: Numbers of a word's trained vector.
        lstm_size: Hidden units of each direction of the two LSTM layers.
        mlp_size: Hidden units of the scorers.
    """

    def __init__(
        self,
        num_words: int,
        vector_size: int,
        num_labels: int,
        *,
        word_size: int,
        lstm_size: int,
        mlp_size: int,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(num_words, word_size)
        self.lstm = LSTM(word_size + vector_size, lstm_size, num_layers=2, bidirectional=True)
        self.arc = PairScorer(2 * lstm_size, mlp_size, 1)
        self.label = PairScorer(2 * lstm_size, mlp_size, num_labels)
        bound = (3 / word_size) ** 0.5
        nn.init.uniform_(self.words.weight, -bound, bound)

    def features(
        self,
        words: Int[Tensor, "batch tokens"],
        vectors: Float[Tensor, "batch tokens vector"],
        lengths: Int[Tensor, " batch"],
    ) -> Float[Tensor, "batch tokens features"]:
        """What each place is in its sentence; ``lengths`` are words, without the root."""
        own = self.words(torch.where(words < self.words.num_embeddings, words, 0))
        return self.lstm(torch.cat([own, vectors], -1), lengths + 1)


class PairScorer(nn.Module):
    """``W tanh(H head + D dependent + b)`` for pairs of places.

    Args:
        num_features: Of a place.
        hidden_size: Hidden units.
        num_outputs: Scores of a pair; one alone has no bias, which no argmax would see.
    """

    def __init__(self, num_features: int, hidden_size: int, num_outputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(num_features, hidden_size, bias=False)
        self.dependent = nn.Linear(num_features, hidden_size)
        self.output = nn.Linear(hidden_size, num_outputs, bias=num_outputs > 1)
        for layer in (self.head, self.dependent, self.output):
            nn.init.xavier_uniform_(layer.weight)

    def all_pairs(
        self, features: Float[Tensor, "batch tokens features"]
    ) -> Float[Tensor, "batch tokens tokens"]:
        """The score of every pair, heads x dependents."""
        head, dependent = self.head(features)[:, :, None], self.dependent(features)[:, None]
        return self.output((head + dependent).tanh())[..., 0]

    def at_heads(
        self, features: Float[Tensor, "batch tokens features"], heads: Int[Tensor, "batch tokens"]
    ) -> Float[Tensor, "batch tokens outputs"]:
        """The scores of each place with its head."""
        head = self.head(features)
        head = head.gather(1, heads[..., None].expand_as(head))
        return self.output((head + self.dependent(features)).tanh())


class TreeLanguageModel(nn.Module):
    """Words one after the other, each from those before it and its arcs to them.

    An LSTM reads the words. What predicts word i is ``tanh(S h[i-1] + sum of H h[j] + sum of D
    h[j])``: the first sum is over its head, the second over its dependents, where they stand
    earlier; ``h[j]`` is the LSTM's state after word j, and the root is the word before the first.

    Args:
        num_words: Words it can write; any other counts as the first of them.
        vector_size: Numbers of a word's fixed vector.
        hidden_size: Of the LSTM and of the combination.
        lag: The authors' code instead: word i is predicted from the arcs of word i - 1, so those
            of the last word are never looked at.
    """

    def __init__(
        self, num_words: int, vector_size: int, *, hidden_size: int, lag: bool = False
    ) -> None:
        super().__init__()
        self.lag = lag
        self.lstm = LSTM(vector_size, hidden_size)
        self.current = nn.Linear(hidden_size, hidden_size)
        self.head = nn.Linear(hidden_size, hidden_size)
        self.dependent = nn.Linear(hidden_size, hidden_size)
        self.output = nn.Linear(hidden_size, num_words)
        for layer in (self.current, self.head, self.dependent, self.output):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def terms(
        self, vectors: Float[Tensor, "batch tokens vector"], lengths: Int[Tensor, " batch"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What each place contributes as the last word, as a head, as a dependent."""
        states = self.lstm(vectors, lengths + 1)
        return self.current(states), self.head(states), self.dependent(states)

    def forward(
        self,
        words: Int[Tensor, "batch tokens"],
        vectors: Float[Tensor, "batch tokens vector"],
        lengths: Int[Tensor, " batch"],
        is_word: Bool[Tensor, "batch tokens"],
        z: Float[Tensor, "*lead batch tokens tokens"],
    ) -> Float[Tensor, "*lead batch"]:
        """The log-probability of each sentence; linear terms in ``z``, which may be relaxed."""
        current, head, dependent = self.terms(vectors, lengths)
        heads = z.triu(1).mT @ head
        dependents = z.tril(-1) @ dependent
        arcs = heads + dependents
        arcs = arcs[..., :-1, :] if self.lag else arcs[..., 1:, :]
        hidden = (current[:, :-1] + arcs).tanh()
        target = self.targets(words)[:, 1:].expand(hidden.shape[:-1])
        values = self.log_probability(hidden.flatten(0, -2), target.flatten())
        return torch.where(is_word[:, 1:], values.view(target.shape), 0.0).sum(-1)

    def targets(self, words: Int[Tensor, "batch tokens"]) -> Int[Tensor, "batch tokens"]:
        """The numbers of words among those it can write."""
        return torch.where(words < self.output.out_features, words, 0)

    def log_probability(
        self, hidden: Float[Tensor, "rows hidden"], target: Int[Tensor, " rows"], among: int = 0
    ) -> Float[Tensor, " rows"]:
        """Of one word in each row; in pieces, as words are many.

        Args:
            hidden: What predicts each word.
            target: Its number.
            among: How many rows there are in all, where these are some of them.
        """
        learns = hidden.requires_grad or self.output.weight.requires_grad
        differentiated = torch.is_grad_enabled() and learns
        kept = max(len(hidden), among) * self.output.out_features <= _KEPT_LOGITS
        # A checkpoint cannot be taken inside of torch.func.
        if differentiated and (kept or torch._C._functorch.is_functorch_wrapped_tensor(hidden)):
            return self._log_probability(hidden, target)
        size = max(1, _MAX_LOGITS[hidden.device.type] // self.output.out_features)
        pieces = zip(hidden.split(size), target.split(size), strict=True)
        if not differentiated:
            return torch.cat([self._log_probability(*piece) for piece in pieces])
        twice = functools.partial(
            checkpoint, self._log_probability, use_reentrant=False, preserve_rng_state=False
        )
        return torch.cat([twice(*piece) for piece in pieces])

    def _log_probability(
        self, hidden: Float[Tensor, "rows hidden"], target: Int[Tensor, " rows"]
    ) -> Float[Tensor, " rows"]:
        # With fewer passes over the logits than logsumexp takes: on a GPU they are what costs.
        return -nn.functional.cross_entropy(self.output(hidden), target, reduction="none")
