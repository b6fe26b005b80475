"""Expressions evaluated over a latent tree: ListOps as M. Paulus et al. have it.

"Gradient Estimation with Stochastic Softmax Tricks", 2020: two LSTMs read the tokens and score
every arc from a token to another; an arborescence below the first token is drawn from the scores; a
graph network sends messages along its arcs, from dependents to heads, and the root's state tells
the value. Only values are taught. The true trees serve to measure with.
"""

from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from nestruct.checks import check_choice, check_count
from nestruct.data.listops import Expressions
from nestruct.errors import InputError
from nestruct.models.lstm import LSTM, read
from nestruct.models.mlp import mlp
from nestruct.models.structured import StructuredModel
from nestruct.noise import Noise
from nestruct.objective import DIVERGENCES, check_divergence
from nestruct.structures import NonProjectiveTree, ProjectiveTree
from nestruct.structures.dependency_tree import DependencyTree

_STRUCTURES: dict[str, type[DependencyTree]] = {
    "non-projective": NonProjectiveTree,
    "projective": ProjectiveTree,
}
_TREES = ("latent", "given", "none")


class ListOpsModel(StructuredModel):
    """The value of an expression, from its tokens.

    Args:
        num_tokens: Different tokens.
        num_values: Different values.
        tree: ``latent``: drawn from the scores of the encoder. ``given``: the true tree. ``none``:
            an LSTM reads the tokens, and its last states tell the value.
        structure: ``non-projective``: all arborescences, as published; or ``projective``, which the
            true trees are.
        hidden_size: Numbers of a token's state, in encoder and decoder.
        num_rounds: How many times messages are sent: as many as lists are inside of each other.
        divergence: One of `nestruct.objective.DIVERGENCES`, added to the loss of a latent tree.

    Example:
        >>> import nestruct
        >>> from nestruct.data import ListOps
        >>> from nestruct.models import ListOpsModel
        >>> batch = ListOps(max_length=12, num_train=3).splits()["train"]
        >>> model = ListOpsModel(14, 10, hidden_size=8)
        >>> model.infer(batch).sum((1, 2)) == batch.lengths - 1  # one head for each but the first
        tensor([True, True, True])
    """

    structure: DependencyTree

    def __init__(
        self,
        num_tokens: int,
        num_values: int,
        *,
        tree: Literal["latent", "given", "none"] = "latent",
        structure: str = "non-projective",
        hidden_size: int = 64,
        num_rounds: int = 5,
        divergence: str = "none",
    ) -> None:
        super().__init__()
        owner = "ListOpsModel"
        counts = {"num_tokens": num_tokens, "num_values": num_values}
        counts |= {"hidden_size": hidden_size, "num_rounds": num_rounds}
        for name, value in counts.items():
            check_count(owner, name, value, 1)
        check_choice(f"{owner}: tree", tree, _TREES)
        check_choice(f"{owner}: structure", structure, _STRUCTURES)
        check_divergence(owner, divergence)
        self.structure = _STRUCTURES[structure](single_root=False)
        self.tree, self.kl = tree, divergence
        if tree == "latent":
            self.scorer = ArcScorer(num_tokens, hidden_size)
        if tree == "none":
            self.reader = SequenceReader(num_tokens, num_values, hidden_size)
        else:
            self.evaluator = TreeEvaluator(num_tokens, num_values, hidden_size, num_rounds)

    def encode(self, batch: Expressions) -> Float[Tensor, "batch tokens tokens"]:
        """The score of every arc, heads x dependents; of a tree that is given, the tree."""
        if self.tree == "latent":
            return self.scorer(batch.tokens, batch.lengths)
        return batch.z if self.tree == "given" else torch.zeros_like(batch.z)

    def decode(self, batch: Expressions, z: Tensor) -> Float[Tensor, "... batch"]:
        """The log-probability of each value, for ``z [..., batch, n, n]``, relaxed included."""
        values = batch.values.expand(z.shape[:-2])
        return self._logits(batch, z).log_softmax(-1).gather(-1, values[..., None])[..., 0]

    def divergence(self, scores: Tensor, batch: Expressions) -> Tensor:
        """The KL term of each expression."""
        return DIVERGENCES[self.kl](self.structure, scores, **self.context(batch))

    def context(self, batch: Expressions) -> dict[str, Tensor]:
        """Tokens of each expression that have a head: all but the first."""
        return {"lengths": batch.lengths - 1}

    def loss(self, batch: Expressions, noise: Noise) -> Float[Tensor, " batch"]:
        """The negative log-probability of the value: at a sampled tree, or at the given one."""
        if self.tree == "latent":
            return super().loss(batch, noise)
        return -self.decode(batch, self.encode(batch))

    def loss_at(self, batch: Expressions, scores: Tensor, z: Tensor) -> Tensor:
        """The loss of each expression at given trees."""
        if self.tree != "latent":
            raise InputError(
                f"ListOpsModel: with tree={self.tree!r} there is no latent tree; train it with the "
                "estimator Supervised, or say tree='latent'."
            )
        return super().loss_at(batch, scores, z)

    @torch.no_grad()
    def infer(self, batch: Expressions) -> Float[Tensor, "batch tokens tokens"]:
        """The most likely tree, or the given one; no arcs where there is no tree."""
        return torch.zeros_like(batch.z) if self.tree == "none" else super().infer(batch)

    @torch.no_grad()
    def metrics(self, batch: Expressions, noise: Noise) -> dict[str, Any]:
        """The loss, how many values are right, and how well the tree is recovered.

        ``accuracy``: of the most likely value, given the most likely tree. ``edge_precision``: the
        share of the most likely trees' arcs that are true; ``edge_recall``: the share of true arcs
        that are in them. An arborescence has as many arcs as the true one, so the two are the same.
        Arcs to closing brackets count.
        """
        found = {"loss": self.loss(batch, noise)}
        z = self.infer(batch)
        right = self._logits(batch, z).argmax(-1) == batch.values
        found["accuracy"] = right.to(z.dtype)
        if self.tree != "latent":
            return found
        truth = batch.z.to(z.dtype)
        both, ours, true = (each.sum((1, 2)) for each in (z * truth, z, truth))
        return found | {"edge_precision": (both, ours), "edge_recall": (both, true)}

    def _logits(self, batch: Expressions, z: Tensor) -> Float[Tensor, "... batch values"]:
        if self.tree == "none":
            logits = self.reader(batch.tokens, batch.lengths)
            return logits.expand(*z.shape[:-2], -1)
        return self.evaluator(batch.tokens, z)


class ArcScorer(nn.Module):
    """Scores of all arcs: the inner product of what a token is as a head and as a dependent.

    Args:
        num_tokens: Different tokens.
        hidden_size: Numbers of a token, and of each direction of the two LSTMs.
    """

    def __init__(self, num_tokens: int, hidden_size: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(num_tokens, hidden_size)
        self.head_lstm = LSTM(hidden_size, hidden_size, bidirectional=True)
        self.dependent_lstm = LSTM(hidden_size, hidden_size, bidirectional=True)
        self.head = mlp(2 * hidden_size, hidden_size, hidden_size)
        self.dependent = mlp(2 * hidden_size, hidden_size, hidden_size)

    def forward(
        self, tokens: Int[Tensor, "batch tokens"], lengths: Int[Tensor, " batch"]
    ) -> Float[Tensor, "batch tokens tokens"]:
        """Heads x dependents; ``lengths`` are tokens."""
        own = self.tokens(tokens)
        heads, dependents = read([self.head_lstm, self.dependent_lstm], own, lengths)
        head, dependent = self.head(heads), self.dependent(dependents)
        return head @ dependent.mT / head.shape[-1] ** 0.5


class TreeEvaluator(nn.Module):
    """A graph network: the value of the root from messages of dependents to their heads.

    A token's state is a function of the token and of the sum of its dependents' states, and so on:
    after as many rounds as lists are inside of each other, the root's may hold the value.

    Args:
        num_tokens: Different tokens.
        num_values: Different values.
        hidden_size: Numbers of a state.
        num_rounds: How many times messages are sent.
    """

    def __init__(self, num_tokens: int, num_values: int, hidden_size: int, num_rounds: int) -> None:
        super().__init__()
        self.num_rounds = num_rounds
        self.tokens = nn.Embedding(num_tokens, hidden_size)
        self.message = nn.Linear(hidden_size, hidden_size, bias=False)
        self.update = nn.Sequential(nn.ReLU(), nn.Linear(hidden_size, hidden_size), nn.Tanh())
        self.value = mlp(hidden_size, hidden_size, num_values)

    def forward(
        self, tokens: Int[Tensor, "batch tokens"], z: Float[Tensor, "*lead batch tokens tokens"]
    ) -> Float[Tensor, "*lead batch values"]:
        """Logits of the values; ``z`` may be relaxed."""
        own = self.tokens(tokens)
        z = z.to(own.dtype)
        state = self.update(own)
        for _ in range(self.num_rounds - 1):
            state = self.update(own + self.message(z @ state))
        root = own[:, 0] + self.message(z[..., :1, :] @ state)[..., 0, :]  # all that is asked for
        return self.value(self.update(root))


class SequenceReader(nn.Module):
    """The value from the last states of an LSTM in both directions.

    Args:
        num_tokens: Different tokens.
        num_values: Different values.
        hidden_size: Numbers of a token, and of each direction.
    """

    def __init__(self, num_tokens: int, num_values: int, hidden_size: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(num_tokens, hidden_size)
        self.lstm = LSTM(hidden_size, hidden_size, bidirectional=True)
        self.value = mlp(2 * hidden_size, hidden_size, num_values)

    def forward(
        self, tokens: Int[Tensor, "batch tokens"], lengths: Int[Tensor, " batch"]
    ) -> Float[Tensor, "batch values"]:
        """Logits of the values; ``lengths`` are tokens."""
        states = self.lstm(self.tokens(tokens), lengths)
        size = states.shape[-1] // 2
        last = (lengths - 1)[:, None, None].expand(-1, 1, size)
        ends = [states[..., :size].gather(1, last)[:, 0], states[:, 0, size:]]
        return self.value(torch.cat(ends, -1))
