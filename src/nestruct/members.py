"""Parameters of many members at once: a centre, directions, signs.

A population is made above the models and handed down to them, so what it is stands below both.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass
class Factors:
    """Directions of rank one of one weight: ``scale * left x right``, never formed.

    Args:
        left: One number for each output, ``[pairs, shape[0]]``.
        right: One number for each input of an output, ``[pairs, *shape[1:]]``.
        scale: The weight's sigma; a tensor where it is learnt.
    """

    left: Float[Tensor, "pairs outputs"]
    right: Float[Tensor, "pairs ..."]
    scale: float | Tensor

    def full(self) -> Float[Tensor, "pairs outputs ..."]:
        """The directions as full matrices."""
        left = self.left * self.scale
        return left.view(*left.shape, *[1] * (self.right.dim() - 1)) * self.right[:, None]

    def pairs(self, which: slice) -> "Factors":
        """Those of some pairs."""
        return Factors(self.left[which], self.right[which], self.scale)


@dataclass
class Population:
    """Some members of a population, as a model's ``population_losses`` sees them; no gradients.

    Args:
        centre: The model's own parameters, by name.
        directions: ``[pairs, *shape]`` for each perturbed parameter, already times sigma.
        mirrored: Whether each direction stands for two members, ``centre +- direction``.
        factors: What stands for the directions of the weights that have directions of rank one; a
            model's ``population_losses`` gets none, see `full`.
    """

    centre: dict[str, Tensor]
    directions: dict[str, Tensor]
    mirrored: bool
    factors: dict[str, Factors] = field(default_factory=dict)

    @property
    def num_pairs(self) -> int:
        """How many directions there are."""
        if self.directions:
            return len(next(iter(self.directions.values())))
        return len(next(iter(self.factors.values())).left)

    @property
    def num_members(self) -> int:
        """How many members: two per direction when mirrored."""
        return self.num_pairs * (2 if self.mirrored else 1)

    @property
    def signs(self) -> Float[Tensor, " population"]:
        """+1 or -1 for each member."""
        ones = next(iter(self.centre.values())).new_ones(self.num_pairs)
        return torch.cat([ones, -ones]) if self.mirrored else ones

    @torch.no_grad()
    def mirror(self, centre: Tensor, move: Float[Tensor, "pairs ..."]) -> Tensor:
        """``[members, ...]``: the centre plus, then minus, each pair's move."""
        if not self.mirrored:
            return centre + move
        members = move.new_empty(
            2 * len(move), *torch.broadcast_shapes(centre.shape, move.shape[1:])
        )
        torch.add(centre, move, out=members[: len(move)])
        torch.sub(centre, move, out=members[len(move) :])
        return members

    def parameters(self, prefix: str = "") -> dict[str, Tensor]:
        """``[members, *shape]`` for each parameter below a prefix that has full directions."""
        return {
            name.removeprefix(prefix): self.mirror(self.centre[name], direction)
            for name, direction in self.directions.items()
            if name.startswith(prefix)
        }

    def below(self, prefix: str) -> "Population":
        """The same members, of which only the parameters below a prefix are perturbed."""
        directions = {n: d for n, d in self.directions.items() if n.startswith(prefix)}
        factors = {n: f for n, f in self.factors.items() if n.startswith(prefix)}
        return Population(self.centre, directions, self.mirrored, factors)

    def full(self) -> "Population":
        """The same members, every direction a full matrix."""
        if not self.factors:
            return self
        full = {name: factors.full() for name, factors in self.factors.items()}
        return Population(self.centre, self.directions | full, self.mirrored)

    @torch.no_grad()
    def member(self, number: int) -> dict[str, Tensor]:
        """All perturbed parameters of one member."""
        pair, sign = number % self.num_pairs, 1 if number < self.num_pairs else -1
        one = slice(pair, pair + 1)
        moves = {name: direction[pair] for name, direction in self.directions.items()}
        moves |= {name: factors.pairs(one).full()[0] for name, factors in self.factors.items()}
        return {name: self.centre[name] + sign * move for name, move in moves.items()}

    def member_factors(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Left and right factors of each member, ``[members, ...]``; signs and scales are left."""
        found = {}
        for name, factors in self.factors.items():
            left, right = factors.left * factors.scale, factors.right
            if self.mirrored:
                left, right = torch.cat([left, -left]), torch.cat([right, right])
            found[name] = left, right
        return found
