"""Neural relational inference with a latent tree: the paper's graph-layout model.

T. Kipf et al., "Neural Relational Inference for Interacting Systems", 2018, in the variant of M.
Paulus et al., "Gradient Estimation with Stochastic Softmax Tricks", 2020: the encoder sees where
all nodes were at all times and scores every pair; the decoder moves the nodes step by step, by
messages that depend on whether a pair is an edge. The true edges are never seen.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nestruct.checks import check_choice, check_count, check_positive
from nestruct.errors import InputError
from nestruct.models.relational.nri import DIMENSIONS, RelationalDecoder, RelationalEncoder
from nestruct.models.structured import StructuredModel, are_hard, hard_structures, observed
from nestruct.noise import Noise
from nestruct.objective import DIVERGENCES, check_divergence
from nestruct.structures import KSubset, SpanningTree, Structure

_STRUCTURES = ("spanning-tree", "k-subset")


class RelationalVAE(StructuredModel):
    """Positions ``x [batch, nodes, times, 2]`` explained by a tree over the nodes.

    The likelihood is that of all positions after the first, Gaussian around the decoder's
    predictions, **without its constant**, as published. Published ELBOs are something else again:
    see `metrics`.

    Args:
        num_nodes: Nodes of each example.
        num_times: Recorded positions of each node.
        structure: ``spanning-tree``, or ``k-subset``: any ``num_nodes - 1`` of the pairs; or any
            structure with as many parts as there are pairs.
        hidden_size: The width of all hidden layers.
        num_rollout_steps: How many steps are predicted, each from the last prediction, before the
            true positions are looked at again. Long roll-outs tie the tree to the interaction.
        rollout_curriculum: Pairs ``[step, length]`` in order: from that training step on, roll-outs
            of that length; ``num_rollout_steps`` before. Evaluation has the last length always.
        variance: Of the Gaussian likelihood.
        divergence: One of `nestruct.objective.DIVERGENCES`.
        kl_weight: A factor on the divergence; 2 counts every edge in both directions, as published.
        batch_norm: Whether the encoder's blocks end in batch normalisation.
        relative: Whether the encoder sees of each pair only the difference of its two
            trajectories, a vector of 2 ``num_times`` numbers, instead of an embedding of each
            node. Scores then stay the same when all nodes are shifted, and there is less to learn.
        score_scale: A fixed factor on the scores. An estimator that moves all parameters by the
            same small amounts needs a large one: only moves of the order of the Gumbel noise change
            the tree.
        pull: The decoder starts as still nodes that edges pull together by this share of their
            distance in every step; 0 is NRI's random start. "Edge" and "no edge" are mere names:
            far pairs called edges, which push, are a local optimum too. A weak pull settles the
            names before training; all weights stay free.
        fused: Whether training takes the fast way on a GPU, which rounds more; see
            `RelationalDecoder`. Evaluation never does.
        open_loop: Whether `metrics` also has the loss of predicting all positions from the first.

    Example:
        >>> import torch, nestruct
        >>> from nestruct.models import RelationalVAE
        >>> model = RelationalVAE(5, 10, hidden_size=16)
        >>> model.loss({"x": torch.rand(3, 5, 10, 2)}, nestruct.Noise(seed=0)).shape
        torch.Size([3])
    """

    structure: Structure

    def __init__(
        self,
        num_nodes: int,
        num_times: int,
        *,
        structure: str | Structure = "spanning-tree",
        hidden_size: int = 256,
        num_rollout_steps: int = 9,
        rollout_curriculum: Sequence[Sequence[int]] = (),
        variance: float = 5e-5,
        divergence: str = "gumbel",
        kl_weight: float = 1.0,
        batch_norm: bool = True,
        relative: bool = False,
        score_scale: float = 1.0,
        pull: float = 0.0,
        fused: bool = False,
        open_loop: bool = False,
    ) -> None:
        super().__init__()
        owner = "RelationalVAE"
        self.num_nodes = check_count(owner, "num_nodes", num_nodes, 2)
        self.num_times = check_count(owner, "num_times", num_times, 2)
        self.num_rollout_steps = check_count(
            owner, "num_rollout_steps", num_rollout_steps, 1, self.num_times - 1
        )
        self._rollouts = [(0, self.num_rollout_steps), *self._phases(rollout_curriculum)]
        check_count(owner, "hidden_size", hidden_size, 1)
        check_divergence(owner, divergence)
        positive = {"variance": variance, "score_scale": score_scale, "kl_weight": kl_weight}
        for name, value in positive.items():
            check_positive(owner, name, value)
        if not 0 <= pull < 1:
            raise InputError(f"RelationalVAE: pull must be from 0 to below 1, got {pull!r}.")
        if pull and hidden_size < 4:
            raise InputError(
                f"RelationalVAE: pull needs a hidden_size of at least 4, got {hidden_size!r}."
            )
        self.structure = self._structure(structure)
        self.variance = variance
        self.score_scale = score_scale
        self.open_loop = open_loop
        self.kl = divergence
        self.kl_weight = kl_weight
        self.encoder = RelationalEncoder(
            DIMENSIONS * num_times,
            hidden_size,
            batch_norm=batch_norm,
            relative=relative,
            fused=fused,
        )
        self.decoder = RelationalDecoder(num_nodes, hidden_size, fused=fused)
        if pull:
            self.decoder.start_with_pull(pull)

    def encode(self, batch: Any) -> Float[Tensor, "batch edges"]:
        """One score per pair of nodes, in triu order: the mean over its two directions."""
        grid = self.encoder(self._positions(batch).flatten(2))
        rows, columns = torch.triu_indices(self.num_nodes, self.num_nodes, 1, device=grid.device)
        return (self.score_scale / 2) * (grid + grid.mT)[..., rows, columns]

    def _structure(self, structure: str | Structure) -> Structure:
        pairs = self.num_nodes * (self.num_nodes - 1) // 2
        if isinstance(structure, Structure):
            if getattr(structure, "part_shape", (pairs,)) != (pairs,):
                raise InputError(
                    f"RelationalVAE: structure needs a part for each of {pairs} pairs of nodes, "
                    f"got {structure!r}."
                )
            return structure
        check_choice("RelationalVAE: structure", structure, _STRUCTURES)
        if structure == "spanning-tree":
            return SpanningTree(self.num_nodes)
        return KSubset(pairs, self.num_nodes - 1)

    def _phases(self, curriculum: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
        phases: list[tuple[int, int]] = []
        for entry in curriculum:
            if not (isinstance(entry, Sequence) and len(entry) == 2):
                raise InputError(
                    "RelationalVAE: rollout_curriculum must be pairs [step, length], got "
                    f"{entry!r}."
                )
            owner, low = "RelationalVAE", 1 + max((step for step, _ in phases), default=0)
            step = check_count(owner, "this step of rollout_curriculum", entry[0], low)
            length = check_count(
                owner, "a length of rollout_curriculum", entry[1], 1, self.num_times - 1
            )
            phases.append((step, length))
        return phases

    def at_step(self, step: int) -> int:
        """Sets the length of roll-outs that `rollout_curriculum` gives for a training step."""
        self.num_rollout_steps = next(n for first, n in reversed(self._rollouts) if first <= step)
        return self.num_rollout_steps

    def decode(self, batch: Any, z: Tensor) -> Float[Tensor, "... batch"]:
        """``log p(x | z)`` up to a constant, for ``z [..., batch, edges]``, relaxed z included."""
        steps = self.num_rollout_steps
        if not self.training and len(self._rollouts) > 1:  # evaluations are to be compared
            steps = self._rollouts[-1][1]
        return self._log_likelihood(batch, z, steps)

    def _log_likelihood(self, batch: Any, z: Tensor, steps: int) -> Float[Tensor, "... batch"]:
        x = self._positions(batch).permute(3, 1, 0, 2)  # [2, nodes, batch, times]
        pairs = self.num_nodes * (self.num_nodes - 1) // 2
        if tuple(z.shape[-2:]) != (x.shape[2], pairs):
            raise InputError(
                f"RelationalVAE: z must be [..., batch, edges] = [..., {x.shape[2]}, {pairs}], got "
                f"{tuple(z.shape)}."
            )
        lead, last = z.shape[:-2], self.num_times - 1
        start = x[..., :last:steps]
        edges = z.reshape(-1, *z.shape[-2:]).permute(2, 0, 1)  # [edges, samples, batch]
        cells = edges[..., None].expand(-1, -1, -1, start.shape[-1]).flatten(2)
        # The shorter way counts on as many edges as a tree has; another structure may be set.
        has_tree_size = isinstance(self.structure, SpanningTree) or (
            isinstance(self.structure, KSubset) and self.structure.k == self.num_nodes - 1
        )
        short = are_hard() and has_tree_size
        predicted = self.decoder.roll_out(start.flatten(2), cells, steps, hard=short)
        # [2, nodes, samples, batch, times]; the last roll-out may reach past the records.
        mean = predicted.unflatten(3, start.shape[2:]).flatten(-2)[..., :last]
        error = (x[:, :, None, :, 1:] - mean).square().sum(-1).sum((0, 1)).view(*lead, -1)
        return error / (-2 * self.variance)

    def divergence(self, scores: Tensor, batch: Any) -> Tensor:
        """The KL term of each example."""
        return self.kl_weight * DIVERGENCES[self.kl](self.structure, scores)

    @torch.no_grad()
    def metrics(self, batch: Any, noise: Noise) -> dict[str, Tensor]:
        """What every model reports (loss, F1), and ``loss_published``: the published -ELBO.

        That is per node: one step ahead at a time, at one perturb-and-MAP sample, with the Gumbel
        KL of the directed edges, so every edge counts twice there. ``loss_open_loop``, where it is
        asked for, is the same but for its predictions: all from the first positions. Trees, and any
        ``n - 1`` pairs, have as many edges as the truth, so F1 is precision and recall too.
        """
        scores = self.encode(batch)
        kl = 2 * DIVERGENCES["gumbel"](self.structure, scores)
        steps = {"loss_published": 1}
        if self.open_loop:
            steps["loss_open_loop"] = self.num_times - 1
        with hard_structures():
            z = self._perturb(batch, scores, noise)
            found = {
                name: (kl - self._log_likelihood(batch, z, ahead)) / self.num_nodes
                for name, ahead in steps.items()
            }
        return super().metrics(batch, noise) | found

    def _positions(self, batch: Any) -> Float[Tensor, "batch nodes times 2"]:
        x = observed(batch)
        expected = (self.num_nodes, self.num_times, DIMENSIONS)
        if x.dim() != 4 or tuple(x.shape[1:]) != expected:
            raise InputError(
                f"RelationalVAE: x must be [batch, nodes, times, 2] = [batch, {expected[0]}, "
                f"{expected[1]}, 2], got {tuple(x.shape)}; say num_nodes and num_times to match."
            )
        if not len(x):
            raise InputError("RelationalVAE: x has no examples.")
        return x
