"""Parameters of many members at once: a centre, directions, signs.

A population is made above the models and handed down to them, so what it is stands below both.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass
class Population:
    """Some members of a population, as a model's ``population_losses`` sees them; no gradients.

    Args:
        centre: The model's own parameters, by name.
        directions: ``[pairs, *shape]`` for each perturbed parameter, already times sigma.
        mirrored: Whether each direction stands for two members, ``centre +- direction``.
    """

    centre: dict[str, Tensor]
    directions: dict[str, Tensor]
    mirrored: bool

    @property
    def num_pairs(self) -> int:
        """How many directions there are."""
        return len(next(iter(self.directions.values())))

    @property
    def num_members(self) -> int:
        """How many members: two per direction when mirrored."""
        return self.num_pairs * (2 if self.mirrored else 1)

    @property
    def signs(self) -> Float[Tensor, " population"]:
        """+1 or -1 for each member."""
        direction = next(iter(self.directions.values()))
        ones = direction.new_ones(len(direction))
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
        """``[members, *shape]`` for each perturbed parameter below a prefix."""
        return {
            name.removeprefix(prefix): self.mirror(self.centre[name], direction)
            for name, direction in self.directions.items()
            if name.startswith(prefix)
        }
