"""What many members of a parser cost together, with exact savings where the decoder is shared.

- A member's arcs need its own LSTM, in which the recurrence of all members is one batched product.
- The first layer sees words, and what it makes of a word's fixed vector is ``v W + s v E`` for the
  two members s = +-1 of a pair: one product per pair and distinct word.
- The language model's states are the same for all members. What predicts a word depends on which
  earlier words are its head and its dependents; each such case is computed once, whoever has it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import embedding, embedding_bag, pad

from nestruct.data import Sentences
from nestruct.members import Population
from nestruct.models.lstm import flip_index, lstm_names
from nestruct.models.parser.kernels import MAX_GRID, has_triton, lstm_step, score_arcs
from nestruct.models.parser.networks import ArcParser, TreeLanguageModel
from nestruct.noise import Noise
from nestruct.objective import DIVERGENCES
from nestruct.structures.rows import is_capturing

if TYPE_CHECKING:
    from nestruct.models.parser import ParserVAE

_CPU_PAIRS = 2  # at a time: their states stay in the cache
_GPU_FLOATS = 1 << 32  # what a block of members may take, about; and a small GPU's share:
_GPU_SHARE = 1 / 8
_ALIGNED = 4  # numbers of 16 bytes: rows that start there are faster to multiply


def population_losses(
    model: "ParserVAE", population: Population, batch: Sentences, noise: Noise
) -> Float[Tensor, "members batch"]:
    """``[members, batch]``: the losses of members that share the model's decoder."""
    lengths = batch.lengths
    members = _Members(model, population, batch)
    draws = None if isinstance(noise.pair, Tensor) else noise.gumbel(members.like)
    dense = is_capturing(members.like)
    losses = members.like.new_empty(population.num_members, len(batch))
    heads = torch.empty(
        population.num_members, *batch.words.shape, dtype=torch.long, device=losses.device
    )
    failed = torch.zeros_like(losses, dtype=torch.bool)
    for rows, scores in members.blocks():
        kl = scores.new_zeros(scores.shape[:2])
        if model.kl != "none":
            repeated = lengths.repeat(len(scores))
            flat = DIVERGENCES[model.kl](model.structure, scores.flatten(0, 1), lengths=repeated)
            kl = flat.view_as(kl)
        own = draws
        if isinstance(noise.pair, Tensor):
            gumbel: Callable = lambda pair: noise.replace(pair=pair).gumbel(members.like)  # noqa: E731
            own = torch.func.vmap(gumbel)(noise.pair[rows])
        z = model.structure.argmax(scores.add_(own), lengths=lengths)
        losses[rows] = kl - (model.decode(batch, z) if dense else 0.0)
        if not dense:
            heads[rows], failed[rows] = heads_of(z)
    if not dense:
        vectors = model.vectors_of(batch.words)
        losses -= case_log_likelihood(model.decoder, batch, vectors, heads)
        losses.masked_fill_(failed, torch.nan)
    return losses / lengths


def heads_of(
    z: Float[Tensor, "members batch tokens tokens"],
) -> tuple[Int[Tensor, "members batch tokens"], Bool[Tensor, "members batch"]]:
    """The head of each word (0 for the root and padding), and which trees are none (NaN)."""
    return z.argmax(-2), z[..., 0, 0].isnan()


def case_log_likelihood(
    decoder: TreeLanguageModel,
    batch: Sentences,
    vectors: Float[Tensor, "batch tokens vector"],
    heads: Int[Tensor, "members batch tokens"],
) -> Float[Tensor, "members batch"]:
    """The log-probability of each sentence given each member's tree; each distinct case once.

    A case is a word of the batch, its earlier head and the set of its earlier dependents, known by
    a sum of random 64-bit numbers; two of a million cases are taken for one with chance 3e-8.
    """
    members, examples, tokens = heads.shape
    device = heads.device
    current, as_head, as_dependent = decoder.terms(vectors, batch.lengths)
    place = torch.arange(tokens, device=device)
    # The arcs of which place predict each word, and the words themselves: [words].
    sentence, word = batch.is_word.nonzero().unbind(1)
    at = word - 1 if decoder.lag else word
    generator = torch.Generator().manual_seed(0)
    low, high = -(1 << 62), 1 << 62
    codes = torch.randint(low, high, (2, tokens), generator=generator).to(device)
    base = torch.randint(low, high, (len(word),), generator=generator).to(device)
    earlier = heads < place
    keys = torch.where(earlier, codes[0][heads], 0)
    # A word with a later head is an earlier dependent of that.
    later = batch.is_word & (heads > place)
    keys = keys.scatter_add(-1, heads, torch.where(later, codes[1], 0))
    keys = keys[:, sentence, at] + base  # [members, words]
    distinct, case = torch.unique(keys.flatten(), return_inverse=True)
    count = len(distinct)
    first = torch.empty(count, dtype=torch.long, device=device)
    first[case] = torch.arange(len(case), device=device)
    pieces = []
    current, as_head, as_dependent = (t.flatten(0, 1) for t in (current, as_head, as_dependent))
    target = decoder.targets(batch.words)[sentence, word]
    for some in torch.arange(count, device=device).split(1 << 16):
        member, which = first[some] // len(word), first[some] % len(word)
        row, here = sentence[which], at[which]
        theirs = heads[member, row]  # [cases, tokens]
        head = theirs.gather(1, here[:, None])[:, 0]
        # Tables that are looked up: what is added up on the way back, and here, has one order.
        base = row * tokens
        hidden = embedding(base + word[which] - 1, current)
        is_earlier = (head < here) & (here > 0)
        hidden = hidden + torch.where(is_earlier[:, None], embedding(base + head, as_head), 0.0)
        below = (theirs == here[:, None]) & (place < here[:, None]) & (place > 0)
        case_of, dependent = below.nonzero().unbind(1)
        counts = below.sum(1)
        first_of = counts.cumsum(0) - counts
        hidden = hidden + embedding_bag(
            base[case_of] + dependent, as_dependent, first_of, mode="sum"
        )
        pieces.append(decoder.log_probability(hidden.tanh(), target[which], count))
    values = embedding(case, torch.cat(pieces)[:, None])
    spread = values.new_zeros(members, examples, tokens)
    spread[:, sentence, word] = values.view(members, len(word))
    return spread.sum(-1)


class _Members:
    """Arc scores of all members, a block of pairs at a time."""

    def __init__(self, model: "ParserVAE", population: Population, batch: Sentences) -> None:
        self.parser: ArcParser = model.parser
        self.has_kl = model.kl != "none"
        self.population, self.batch = population, batch
        self.size = self.parser.lstm.hidden_size
        examples, tokens = batch.words.shape
        weight = self.parser.words.weight
        self.like = weight.new_empty(examples, tokens, tokens)
        self.on_cpu = _is_on_cpu(weight)
        self.width = self.size if self.on_cpu else -(-self.size // _ALIGNED) * _ALIGNED
        # Distinct words: counting them needs the host, so in a captured graph every place is one.
        flat = batch.words.flatten()
        if is_capturing(weight):
            kinds, kind_of = flat, torch.arange(len(flat), device=flat.device)
        else:
            kinds, kind_of = torch.unique(flat, return_inverse=True)
        self.rows = torch.where(kinds < self.parser.words.num_embeddings, kinds, 0)
        self.vectors = model.vectors[kinds].to(weight.dtype)
        # Places are numbered through time: those that a step reads lie side by side.
        place = torch.arange(examples * tokens, device=flat.device).view(tokens, examples)
        backwards = place.gather(0, flip_index(batch.lengths + 1, tokens).mT)
        self.places = torch.stack([place, backwards])  # [directions, tokens, batch]
        self.kinds = kind_of.view(examples, tokens).mT.flatten()[self.places]
        size, names = self.parser.words.embedding_dim, [lstm_names(0, d)[0] for d in (0, 1)]
        weights = [getattr(self.parser.lstm, name)[:, size:] for name in names]
        self.base = self.vectors @ torch.cat(weights).mT
        self._rooms: dict[str, Tensor] = {}

    def blocks(self):
        """Members' numbers, and their scores ``[members, batch, tokens, tokens]``."""
        population = self.population
        halves = 2 if population.mirrored else 1
        for start in range(0, population.num_pairs, self._num_pairs):
            stop = min(start + self._num_pairs, population.num_pairs)
            pairs = torch.arange(start, stop, device=self.like.device)
            rows = torch.cat([pairs + half * population.num_pairs for half in range(halves)])
            yield rows, self._scores(slice(start, stop))

    @property
    def _num_pairs(self) -> int:
        if self.on_cpu:
            return _CPU_PAIRS
        examples, tokens = self.batch.words.shape
        arcs = 16 + (tokens if self.has_kl else 0)  # numbers per arc; a log-partition takes many
        each = 2 * examples * tokens * (arcs * tokens + 24 * self.size)
        room = min(_GPU_FLOATS, _GPU_SHARE * _gpu_bytes(self.like) / self.like.element_size())
        if not has_triton(self.like):  # the grid of pairs, three times, is computed in pieces
            room -= min(3 * MAX_GRID, room / 2)
        return max(1, int(room) // each)

    def _scores(self, pairs: slice) -> Float[Tensor, "members batch tokens tokens"]:
        """The arc scores of a block of pairs."""
        features = self._recur(self._first_gates(pairs), self.kinds, 0, pairs)
        names = [lstm_names(1, direction)[0] for direction in (0, 1)]
        weights = [self._own(f"lstm.{name}", pairs) for name in names]
        weight = self._aligned(torch.cat(weights, 1))
        shape = (*features.shape[:2], weight.shape[1])
        gates = torch.baddbmm(
            self._biases(1, pairs)[:, None], features, weight.mT, out=self._room("gates", shape)
        )
        features = self._recur(gates, self.places, 1, pairs)
        shape = (*features.shape[:2], self.parser.arc.head.out_features)
        head, dependent = self._room("head", shape), self._room("dependent", shape)
        torch.bmm(features, self._aligned(self._own("arc.head.weight", pairs)).mT, out=head)
        bias = self._own("arc.dependent.bias", pairs)[:, None]
        weight = self._aligned(self._own("arc.dependent.weight", pairs))
        torch.baddbmm(bias, features, weight.mT, out=dependent)
        output = self._own("arc.output.weight", pairs)[:, 0]
        grid = (len(features), *self.batch.words.mT.shape, -1)
        return score_arcs(head.view(grid), dependent.view(grid), output, self.batch.lengths)

    def _first_gates(self, pairs: slice) -> Float[Tensor, "members kinds gates"]:
        """What each distinct word adds to the gates of both directions of the first layer."""
        size = self.parser.words.embedding_dim
        directions = self.population.directions
        names = [f"lstm.{lstm_names(0, direction)[0]}" for direction in (0, 1)]
        weight = torch.cat([self._own(name, pairs) for name in names], 1)
        kinds = len(self.vectors)
        gates = self._room("first", (len(weight), kinds, weight.shape[1]))
        if all(f"parser.{name}" in directions for name in names):
            # Of the fixed vectors, the two members of a pair differ in a sign.
            moves = torch.cat(
                [directions[f"parser.{name}"][pairs][..., size:] for name in names], 1
            )
            shape = (len(moves), kinds, moves.shape[1])
            vectors = self.vectors.expand(len(moves), -1, -1)
            move = torch.bmm(vectors, moves.mT, out=self._room("move", shape))
            torch.add(self.base, move, out=gates[: len(move)])
            if self.population.mirrored:
                torch.sub(self.base, move, out=gates[len(move) :])
        else:
            torch.matmul(self.vectors, weight[..., size:].mT, out=gates)
        own = self.parser.words.weight[self.rows].expand(len(weight), -1, -1)
        if "parser.words.weight" in directions:
            move = directions["parser.words.weight"][pairs].index_select(1, self.rows)
            own = self.population.mirror(own[0], move)
        gates.baddbmm_(own, weight[..., :size].mT)
        return gates.add_(self._biases(0, pairs)[:, None])

    def _biases(self, layer: int, pairs: slice) -> Float[Tensor, "members gates"]:
        names = [lstm_names(layer, direction)[2:] for direction in (0, 1)]
        sums = [self._own(f"lstm.{a}", pairs) + self._own(f"lstm.{b}", pairs) for a, b in names]
        return torch.cat(sums, -1)

    def _recur(
        self,
        gates: Float[Tensor, "members items gates"],
        index: Int[Tensor, "directions tokens batch"],
        layer: int,
        pairs: slice,
    ) -> Float[Tensor, "members places features"]:
        """A layer's outputs at the places of the batch, both directions side by side."""
        names = [lstm_names(layer, direction)[1] for direction in (0, 1)]
        weight = torch.stack([self._own(f"lstm.{name}", pairs).mT for name in names], 1)
        weight = pad(weight, (0, 0, 0, self.width - self.size)).contiguous()
        members, (_, tokens, examples) = len(gates), index.shape
        gates = gates.unflatten(-1, (2, 4 * self.size))
        features = self._room("features", (members, tokens * examples, 2, self.width))
        features[..., self.size :] = 0.0
        state = gates.new_zeros(members, 2, examples, self.size)
        hidden = gates.new_zeros(members, 2, examples, self.width)
        added = gates.new_zeros(members, 2, examples, 4 * self.size)
        for time in range(tokens):
            if time:
                torch.matmul(hidden, weight, out=added)
            lstm_step(gates, index[:, time], added, state, hidden, self.places[:, time], features)
        return features.flatten(2)

    def _room(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Memory that all blocks share: touching fresh pages takes time."""
        known = self._rooms.get(name)
        if known is None or len(known) < shape[0]:
            known = self._rooms[name] = self.like.new_empty(shape)
        return known[: shape[0]]

    def _aligned(self, weight: Float[Tensor, "members rows features"]) -> Tensor:
        """A weight of both directions' outputs, for rows of them that have gaps."""
        if self.width == self.size:
            return weight
        return pad(weight.unflatten(-1, (2, self.size)), (0, self.width - self.size)).flatten(-2)

    def _own(self, name: str, pairs: slice) -> Tensor:
        """A parameter of each member of a block; expanded where it is the same for all."""
        full = f"parser.{name}"
        population = self.population
        if full in population.directions:
            return population.mirror(population.centre[full], population.directions[full][pairs])
        shared = self.parser.get_parameter(name).detach()
        count = (pairs.stop - pairs.start) * (2 if population.mirrored else 1)
        return shared.expand(count, *shared.shape)


def _is_on_cpu(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"


def _gpu_bytes(tensor: Tensor) -> float:
    if not tensor.is_cuda:
        return float("inf")
    return torch.cuda.get_device_properties(tensor.device).total_memory
