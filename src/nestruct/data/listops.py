"""ListOps: nested lists of digits under MIN, MED and MAX, whose value is to be found.

N. Nangia and S. Bowman, "ListOps: A Diagnostic Dataset for Latent Tree Learning", 2018, in the
variant of M. Paulus et al., "Gradient Estimation with Stochastic Softmax Tricks", 2020: bounded
length and depth, no sum modulo ten. ``[MAX 2 9 [MIN 4 7 ] 0 ]`` is 9. Generated here by a law of
our own, see `ListOps`; the published files are not read.
"""

import dataclasses
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nestruct.checks import check_count
from nestruct.errors import InputError
from nestruct.noise import derive_seed
from nestruct.untrusted import memory

OPERATORS = ("[MIN", "[MED", "[MAX")
CLOSE = "]"
TOKENS = (*"0123456789", *OPERATORS, CLOSE)
"""A token's number is its place; a digit's is its value. Padding holds 0."""

_NUM_DIGITS = 10
_CLOSE = TOKENS.index(CLOSE)
_CHUNK = 1 << 14  # expressions that are drawn at a time, whatever the sizes: so splits agree
_MAX_TOKENS = 250  # places must fit into a byte
_LEAST = {"min_length": 4, "max_length": 4, "max_operands": 2, "seed": 0}  # else at least 1
_SPLITS = ("test", "validation", "train")  # in the order in which they are filled


@dataclass(frozen=True)
class Expressions:
    """A batch of expressions; places from ``lengths`` on are padding.

    Args:
        tokens: Numbers of `TOKENS`.
        heads: The true tree: the place of the operator whose list a token stands in. A digit, an
            operator below another one and a closing bracket all hang from it; the bracket that
            closes a list belongs to that list. 0 at the first token, the root, and in padding.
        lengths: Tokens of each expression.
        values: What each comes to, 0 to 9.
    """

    tokens: Int[Tensor, "batch tokens"]
    heads: Int[Tensor, "batch tokens"]
    lengths: Int[Tensor, " batch"]
    values: Int[Tensor, " batch"]

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def z(self) -> Float[Tensor, "batch tokens tokens"]:
        """The true trees: 1 at (head, dependent), as in `nestruct.NonProjectiveTree`."""
        place = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return ((self.heads[:, None] == place[:, None]) & self.hangs[:, None]).float()

    @property
    def hangs(self) -> Bool[Tensor, "batch tokens"]:
        """Which places have a head: neither the first nor padding."""
        place = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return (place > 0) & (place < self.lengths[:, None])


@dataclass(frozen=True, kw_only=True)
class ListOps:
    """Generated expressions with their values and their trees.

    The first token is an operator. A list has 2 to ``max_operands`` operands, each number equally
    likely. An operand is a list of its own with chance ``nesting`` where the depth allows it, else
    a digit; operators and digits are equally likely. Expressions of another length than asked for
    are drawn again. No two expressions are the same, within a split or in two of them. The median
    of an even number of values is the mean of the middle two, rounded down.

    The test set is the same for every size of the other two.

    Args:
        min_length: The fewest tokens.
        max_length: The most; all expressions are padded to it.
        max_depth: How many lists may be inside of each other, the outermost included.
        max_operands: The most operands of a list.
        nesting: How often an operand is a list.
        num_train: Expressions to train on.
        num_validation: Expressions to select by.
        num_test: Expressions to report on.
        seed: With the other options, the identity of the data.

    Example:
        >>> from nestruct.data import ListOps
        >>> data = ListOps(max_length=12, num_train=20, num_validation=5, num_test=5)
        >>> batch = data.splits()["train"]
        >>> batch.tokens.shape, bool((batch.lengths >= 10).all())
        (torch.Size([20, 12]), True)
    """

    min_length: int = 10
    max_length: int = 50
    max_depth: int = 5
    max_operands: int = 5
    nesting: float = 0.25
    num_train: int = 100_000
    num_validation: int = 10_000
    num_test: int = 10_000
    seed: int = 0

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__.keys() - {"nesting"}:
            check_count("ListOps", name, getattr(self, name), _LEAST.get(name, 1))
        check_count("ListOps", "max_length", self.max_length, self.min_length, _MAX_TOKENS)
        if not 0 <= self.nesting <= 1:
            raise InputError(f"ListOps: nesting must be from 0 to 1, got {self.nesting!r}.")

    @property
    def num_tokens(self) -> int:
        """Different tokens."""
        return len(TOKENS)

    @property
    def num_values(self) -> int:
        """Different values."""
        return _NUM_DIGITS

    def splits(self) -> dict[str, Expressions]:
        """``train``, ``validation`` and ``test``."""
        sizes = [getattr(self, f"num_{split}") for split in _SPLITS]
        drawn = self._draw(sum(sizes))
        parts = [torch.from_numpy(drawn[key]).long().split(sizes) for key in _FIELDS]
        found = dict(zip(_SPLITS, map(Expressions, *parts), strict=True))
        return {split: found[split] for split in reversed(_SPLITS)}

    def drawing(self, batch: Expressions) -> dict[str, Any]:
        """What a report needs to draw trees: the tokens, the first apart from the others."""
        rows = zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True)
        words = [[TOKENS[number] for number in row[:length]] for row, length in rows]
        return {"roots": [each[0] for each in words], "words": [each[1:] for each in words]}

    def baselines(self, batch: Expressions) -> dict[str, Float[Tensor, "examples tokens tokens"]]:
        """Trees found without learning, by name: what a learned one should be compared with.

        Every token below the first; every token below the nearest operator before it, closed or
        not.
        """
        place = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
        opens = (batch.tokens >= _NUM_DIGITS) & (batch.tokens != _CLOSE)
        nearest = torch.where(opens, place, 0).cummax(1).values.roll(1, 1)
        heads = {"all below the first token": nearest * 0, "below the nearest operator": nearest}
        return {name: dataclasses.replace(batch, heads=own).z for name, own in heads.items()}

    def _draw(self, count: int) -> dict[str, np.ndarray]:
        """The first so many different expressions of an endless series."""
        size = 16 * count * self.max_length
        if size > memory():
            raise InputError(
                f"ListOps: {count:,} expressions of {self.max_length:,} tokens take "
                f"{size / 1e9:,.0f} GB, more than this machine has; say fewer."
            )
        pieces: list[dict[str, np.ndarray]] = []
        total, known = 0, -1
        for chunk in itertools.count():
            drawn = self._candidates(derive_seed(self.seed, chunk))
            fits = drawn["lengths"] >= self.min_length
            pieces.append({key: array[fits] for key, array in drawn.items()})
            total += int(fits.sum())
            if total < count and fits.any():
                continue
            every = {key: np.concatenate([piece[key] for piece in pieces]) for key in _FIELDS}
            rows = np.ascontiguousarray(every["tokens"]).view(f"V{self.max_length}")[:, 0]
            first = np.sort(np.unique(rows, return_index=True)[1])
            if len(first) >= count:
                return {key: array[first[:count]] for key, array in every.items()}
            if len(first) == known or not fits.any():
                break
            pieces = [{key: array[first] for key, array in every.items()}]
            total = known = len(first)
        raise InputError(
            f"ListOps: {len(first):,} different expressions of {self.min_length} to "
            f"{self.max_length} tokens were found, no more, and {count:,} are asked for; say "
            "fewer, or allow more lengths, depth or operands."
        )

    def _candidates(self, seed: int) -> dict[str, np.ndarray]:
        """A chunk of expressions, token by token, all side by side; length 0: not finished."""
        generator = torch.Generator().manual_seed(seed)
        shape = (3, self.max_length, _CHUNK)
        nests, which, many = torch.rand(shape, generator=generator, dtype=torch.float64).numpy()
        operands = 2 + np.floor(many * (self.max_operands - 1)).astype(np.int64)
        operators = np.floor(which * len(OPERATORS)).astype(np.int64)
        digits = np.floor(which * _NUM_DIGITS).astype(np.int64)
        tokens = np.zeros((_CHUNK, self.max_length), np.uint8)
        heads, lengths = np.zeros_like(tokens), np.zeros(_CHUNK, np.uint8)
        values = np.zeros(_CHUNK, np.uint8)
        # The open lists of each expression: operator, place, operands to come, counts of values.
        size = (_CHUNK, min(self.max_depth, self.max_length))
        operator, place, left = (np.zeros(size, np.int64) for _ in range(3))
        counts = np.zeros((*size, _NUM_DIGITS), np.uint8)
        depth = np.zeros(_CHUNK, np.int64)  # open lists
        for now in range(self.max_length):
            live = np.flatnonzero(lengths == 0)
            if now == 0:
                opens, closes, writes = live, live[:0], live[:0]
            else:
                top = depth[live] - 1
                heads[live, now] = place[live, top]
                done = left[live, top] == 0
                nested = ~done & (depth[live] < self.max_depth) & (nests[now, live] < self.nesting)
                closes, opens, writes = live[done], live[nested], live[~done & ~nested]
                left[live, top] -= ~done
            tokens[opens, now] = _NUM_DIGITS + operators[now, opens]
            level = depth[opens]
            operator[opens, level] = operators[now, opens]
            place[opens, level], left[opens, level] = now, operands[now, opens]
            counts[opens, level] = 0
            depth[opens] += 1
            tokens[writes, now] = digits[now, writes]
            counts[writes, depth[writes] - 1, digits[now, writes]] += 1
            tokens[closes, now] = _CLOSE
            level = depth[closes] - 1
            found = _value(operator[closes, level], counts[closes, level])
            depth[closes] -= 1
            outer = level > 0
            counts[closes[outer], level[outer] - 1, found[outer]] += 1
            values[closes[~outer]], lengths[closes[~outer]] = found[~outer], now + 1
        return dict(zip(_FIELDS, (tokens, heads, lengths, values), strict=True))


_FIELDS = tuple(field.name for field in dataclasses.fields(Expressions))


def _value(operator: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """What lists come to, from how often each digit is among their values."""
    below = counts.cumsum(1, dtype=np.int64)
    total = below[:, -1]

    def ranked(rank: np.ndarray) -> np.ndarray:
        return (below <= rank[:, None]).sum(1)

    middle = (ranked((total - 1) // 2) + ranked(total // 2)) // 2
    return np.choose(operator, [ranked(total * 0), middle, ranked(total - 1)])
