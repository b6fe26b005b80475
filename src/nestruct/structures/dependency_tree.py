"""What both kinds of dependency tree share: layout of scores, lengths, legality, listing."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nestruct.checks import check_count
from nestruct.errors import InputError
from nestruct.structures import rows
from nestruct.structures.base import (
    GibbsStructure,
    check_enumerable,
    check_floating,
    members_as_floats,
)
from nestruct.structures.context import Context, check_context, check_lengths, whole_numbers
from nestruct.structures.k_best import KBestStructure
from nestruct.structures.relaxations.log_domain import FORBIDDEN
from nestruct.structures.solvers import solve

_MAX_LISTED_WORDS = 8  # listing filters all n^n head sequences
_CANDIDATES_AT_ONCE = 1 << 20


class DependencyTree(GibbsStructure, KBestStructure):
    """Trees over n words below an artificial root, node 0.

    ``scores [..., n+1, n+1]`` are arcs, heads x dependents.

    The diagonal, arcs into the root and everything beyond ``lengths`` never count, whatever they
    hold. A sentence of no words has one member, the empty tree.
    """

    counts_solved = True
    equal_sizes = True
    one_along = (-2,)  # heads: every word has one
    nested = False
    part_axes = 2
    context_names = ("lengths",)
    _solver: str

    def __init__(self, single_root: bool = True) -> None:
        if not isinstance(single_root, bool):
            raise InputError(
                f"{type(self).__name__}: single_root must be True or False, got {single_root!r}."
            )
        self.single_root = single_root

    def __repr__(self) -> str:
        return f"{type(self).__name__}(single_root={self.single_root})"

    def argmax(
        self, scores: Tensor, lengths: Tensor | None = None, **context: Tensor
    ) -> Float[Tensor, "*batch tokens tokens"]:
        """The best tree of each sentence; zeros beyond ``lengths``. See `Structure.argmax`.

        Args:
            scores: Arc scores, heads x dependents.
            lengths: Number of words of each sentence, shaped as the leading axes or the last of
                them; one number for all; all n when left out.
        """
        context = self._check("argmax", scores, {"lengths": lengths, **context})
        return solve(
            scores, context.get("lengths"), self._solver, int(self.single_root), f"{self!r}.argmax"
        )

    def log_count(self, lengths: Tensor | int | None = None) -> Float[Tensor, "*batch"]:
        """Log of the number of trees over ``lengths`` words."""
        if lengths is None:
            raise InputError(
                f"{self!r}.log_count: pass lengths, the number of words of each sentence."
            )
        lengths = whole_numbers(f"{self!r}.log_count", "lengths", lengths)
        codes = torch.where(lengths < 0, rows.BAD_LENGTH, rows.OK)
        rows.check_rows(codes, f"{self!r}.log_count")
        return torch.where(lengths > 0, self._log_count(lengths.clamp(min=1).double()), 0.0)

    def enumerate(self, size: int | None = None) -> Float[Tensor, "members tokens tokens"]:
        """Every tree over ``size`` words, in lexicographic order of the heads."""
        if size is None:
            raise InputError(f"{self!r}.enumerate: pass size, the number of words.")
        size = check_count(f"{self!r}.enumerate", "size", size, 0, _MAX_LISTED_WORDS)
        check_enumerable(repr(self), float(self.log_count(size)))
        legal = []
        total = size**size
        for start in range(0, total, _CANDIDATES_AT_ONCE):
            code = torch.arange(start, min(total, start + _CANDIDATES_AT_ONCE))
            digits = [code // size ** (size - 1 - place) % size for place in range(size)]
            # Digit d of word m (at place m - 1) means head d, or d + 1 from m on: no word is its
            # own head.
            words = [digit + (digit > place).long() for place, digit in enumerate(digits)]
            heads = torch.stack([torch.zeros_like(code), *words], -1)
            legal.append(heads[self._legal_heads(heads, torch.full(heads.shape[:1], size))])
        heads = torch.cat(legal)
        z = torch.zeros(len(heads), size + 1, size + 1).scatter_(1, heads[:, None, :], 1.0)
        z[:, :, 0] = 0
        return z

    def contains(
        self, z: Tensor, lengths: Tensor | None = None, **context: Tensor
    ) -> Bool[Tensor, "*batch"]:
        """Whether each ``z`` is a legal tree over its words, with nothing beyond ``lengths``."""
        method = f"{self!r}.contains"
        given = {"lengths": lengths, **context}
        lengths = self._check("contains", members_as_floats(method, z), given).get("lengths")
        if lengths is None:
            lengths = torch.full(z.shape[:-2], z.shape[-1] - 1, device=z.device)
        out_of_range = (lengths < 0) | (lengths >= z.shape[-1])
        rows.check_rows(torch.where(out_of_range, rows.BAD_LENGTH, rows.OK), method)
        counting = self.counting(z, lengths)
        node = torch.arange(z.shape[-1], device=z.device)
        words = (node > 0) & (node <= lengths[..., None])
        binary = torch.where(counting, (z == 0) | (z == 1), z == 0).flatten(-2).all(-1)
        one_head = (((z == 1).sum(-2) == 1) | ~words).all(-1)
        heads = torch.where(words, (z == 1).int().argmax(-2), 0)
        return binary & one_head & self._legal_heads(heads, lengths) & ~out_of_range

    def _legal_heads(
        self, heads: Int[Tensor, "*batch tokens"], lengths: Int[Tensor, "*batch"]
    ) -> Tensor:
        """Whether head sequences (0 for the root and for padding) are trees."""
        node = torch.arange(heads.shape[-1], device=heads.device)
        words = (node > 0) & (node <= lengths[..., None])
        ancestor = heads
        for _ in range(heads.shape[-1].bit_length()):
            ancestor = ancestor.gather(-1, ancestor)
        legal = (ancestor == 0).all(-1)
        if self.single_root:
            legal = legal & (((heads == 0) & words).sum(-1) == (lengths > 0).long())
        return legal

    def _check(self, method: str, scores: Tensor, context: Mapping[str, Any]) -> Context:
        owner = f"{self!r}.{method}"
        check_floating(owner, scores)
        if scores.dim() < 2 or scores.shape[-1] != scores.shape[-2] or scores.shape[-1] == 0:
            what = "z" if method == "contains" else "scores"
            raise InputError(
                f"{owner}: {what} must end in a square [n+1, n+1], heads x dependents with the "
                f"root first, got {tuple(scores.shape)}."
            )
        lead, lengths = scores.shape[:-2], context.get("lengths")
        others = {name: value for name, value in context.items() if name != "lengths"}
        check_context(owner, others, lead, takes=self.context_names)
        if lengths is None:
            return {}
        return {"lengths": check_lengths(owner, "lengths", lengths, scores, lead)}

    def size_of(self, scores: Tensor, lengths: Tensor | None = None, **context: Tensor) -> Any:
        """The words of each sentence, or of all."""
        return scores.shape[-1] - 1 if lengths is None else lengths

    def counting(
        self, scores: Tensor, lengths: Tensor | None = None, **context: Tensor
    ) -> Bool[Tensor, "..."]:
        """Arcs between real words, or from the root to one."""
        node = torch.arange(scores.shape[-1], device=scores.device)
        counting = (node[:, None] != node) & (node > 0)
        if lengths is None:
            return counting.expand(scores.shape)
        real = node <= lengths[..., None]
        return counting & real[..., :, None] & real[..., None, :]

    def _context_codes(self, codes: Tensor, scores: Tensor, **context: Tensor) -> Tensor:
        lengths = context.get("lengths")
        if lengths is None:
            return codes
        in_range = (lengths >= 0) & (lengths < scores.shape[-1])
        return torch.where(in_range, codes, rows.BAD_LENGTH)

    def _normalise(
        self, scores: Tensor, lengths: Tensor | None = None, **context: Tensor
    ) -> tuple[Tensor, Tensor]:
        # Every word has exactly one head: its best arc can be taken off all arcs into it.
        counting = self.counting(scores, lengths)
        inner = torch.where(counting, scores, -torch.inf)
        top = inner.detach().amax(-2)
        top = torch.where(top == -torch.inf, 0.0, top)
        shifted = torch.where(counting, scores - top[..., None, :], FORBIDDEN)
        return shifted.clamp(min=FORBIDDEN), top.sum(-1)

    @abstractmethod
    def _log_count(self, lengths: Float[Tensor, "*batch"]) -> Tensor:
        """Log of the number of trees over one word or more."""
