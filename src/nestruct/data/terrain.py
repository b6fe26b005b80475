"""Paths over terrain: a picture of tiles, what each tile costs, and the cheapest path.

M. Pogancic et al., "Differentiation of Blackbox Combinatorial Solvers", 2020, have this task with
maps of a game. Those files are not read: the maps here are generated from a seed, by a law of our
own whose best reading is known, so that how hard it is to read a tile is fixed beforehand.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nestruct.checks import check_count
from nestruct.errors import InputError
from nestruct.structures import GridPath
from nestruct.untrusted import memory

COSTS = (1.0, 1.7, 3.2, 5.6, 8.9)
"""What a tile of each class costs, from the valleys to the peaks."""

TILE_SIZE = 6
"""Pixels of a tile's side."""

_GREYS = (0.2, -0.2, 0.4, 0.0, -0.4)  # the mean grey of each class, in another order than the costs
_CONTRAST = 0.5  # of a texture: its standard deviation over a tile
_CUTS = (-0.8416212, -0.2533471, 0.2533471, 0.8416212)  # fifths of the normal law
_REACH = 3  # widths of the bell that smooths a map
_LARGEST = 1 << 10


@dataclass(frozen=True, kw_only=True)
class Terrain:
    """Pictures of terrain, the cost of each tile, and the cheapest path from corner to corner.

    A map is normal noise smoothed by a bell, cut into five classes of equal share (`COSTS`), so
    neighbours are alike. Each tile of 6 x 6 pixels is the texture of its class, turned by none or
    more quarters, with normal noise on every pixel. A path has eight directions and pays for every
    tile it is on, both ends included. Tiles of one class cost the same, so maps may have several
    cheapest paths; ``z`` is one of them.

    Whoever knows this law and sees one tile at a time reads 91% of the tiles with the default
    noise (`chances`). Neighbours say more, and a network may look at them.

    An example does not depend on how many there are, nor on the size of other splits.

    Args:
        height: Rows of tiles.
        width: Columns of tiles.
        smoothness: The bell's width in tiles; 0 for classes that are independent of each other.
        noise: The standard deviation of a pixel's noise; that of a texture is 0.5.
        num_train: Maps to train on.
        num_validation: Maps to select by.
        num_test: Maps to report on.
        seed: With the other options, the identity of the data.

    Example:
        >>> from nestruct.data import Terrain
        >>> train = Terrain(num_train=4, num_validation=1, num_test=1).splits()["train"]
        >>> {name: tuple(values.shape) for name, values in train.items()}
        {'x': (4, 1, 72, 72), 'costs': (4, 12, 12), 'z': (4, 12, 12)}
    """

    height: int = 12
    width: int = 12
    smoothness: float = 1.0
    noise: float = 0.95
    num_train: int = 1000
    num_validation: int = 200
    num_test: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("height", "width"):
            check_count("Terrain", name, getattr(self, name), 2, _LARGEST)
        for name in ("num_train", "num_validation", "num_test"):
            check_count("Terrain", name, getattr(self, name), 1)
        check_count("Terrain", "seed", self.seed, 0, (1 << 32) - 1)
        if not 0 <= self.smoothness <= self.height + self.width:
            raise InputError(
                f"Terrain: smoothness must be from 0 to height + width, got {self.smoothness!r}."
            )
        if not 0 < self.noise <= 100:
            raise InputError(f"Terrain: noise must be above 0 and at most 100, got {self.noise!r}.")

    @property
    def tile_size(self) -> int:
        """Pixels of a tile's side."""
        return TILE_SIZE

    @property
    def structure(self) -> GridPath:
        """The paths, by tiles."""
        return GridPath(self.height, self.width, moves="eight")

    def splits(self) -> dict[str, dict[str, Tensor]]:
        """``train``, ``validation`` and ``test``: pictures ``x``, ``costs``, best paths ``z``."""
        sizes = (self.num_train, self.num_validation, self.num_test)
        pixels = self.height * self.width * TILE_SIZE**2
        if 8 * sum(sizes) * pixels > memory():
            raise InputError(
                f"Terrain: {sum(sizes):,} maps of {self.height} x {self.width} tiles take "
                f"{4 * sum(sizes) * pixels / 1e9:,.0f} GB and as much again to train on, more than "
                "this machine has; say fewer, or smaller ones."
            )
        names = ("train", "validation", "test")
        return {names[k]: self._draw(count, k) for k, count in enumerate(sizes)}

    def chances(self, x: Float[Tensor, "batch 1 pixels pixels"]) -> Float[Tensor, "batch h w c"]:
        """How likely each tile is of each class, by its own pixels: Bayes' rule for this law."""
        tiles = self._tiles(x)
        seen = torch.from_numpy(_textures()).to(tiles).flatten(2)  # [classes, turns, pixels]
        fit = torch.einsum("bhwp,ctp->bhwct", tiles, seen) - seen.square().sum(-1) / 2
        return (fit / self.noise**2).logsumexp(-1).softmax(-1)

    def baselines(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Paths found without learning, by name.

        The shortest one, as if all tiles cost the same; the best one by costs that are expected
        from each tile's mean grey; and by those expected from all of its pixels. The latter two
        know the law of the pictures, which a model has to learn.
        """
        grey = self._tiles(batch["x"]).mean(-1, keepdim=True)
        error = (grey - torch.tensor(_GREYS).to(grey)).square() * TILE_SIZE**2 / self.noise**2
        costs = torch.tensor(COSTS).to(grey)
        known = {
            "all tiles alike": torch.ones_like(batch["costs"]),
            "tiles read by their mean grey": (-error / 2).softmax(-1) @ costs,
            "tiles read by the law": self.chances(batch["x"]) @ costs,
        }
        return {name: self.structure.argmax(-cost) for name, cost in known.items()}

    def _tiles(self, x: Tensor) -> Tensor:
        """The pixels of each tile, ``[batch, height, width, pixels]``."""
        parts = x[:, 0].unflatten(2, (self.width, TILE_SIZE))
        parts = parts.unflatten(1, (self.height, TILE_SIZE))
        return parts.transpose(2, 3).flatten(3)

    def _draw(self, count: int, split: int) -> dict[str, Tensor]:
        draws = np.random.RandomState([self.seed, split])  # numpy keeps its numbers as they are
        textures, (rows, columns) = _textures(), (self.height, self.width)
        down, across = (_bell(size, self.smoothness) for size in (rows, columns))
        x = np.empty((count, 1, rows * TILE_SIZE, columns * TILE_SIZE), np.float32)
        costs = np.empty((count, rows, columns), np.float32)
        for k in range(count):  # one by one, so that an example is the same in a larger set
            field = down @ draws.normal(size=(down.shape[1], across.shape[1])) @ across.T
            classes = np.searchsorted(_CUTS, field)
            turned = textures[classes, draws.randint(4, size=field.shape)]
            x[k, 0] = turned.swapaxes(1, 2).reshape(x.shape[2:])
            x[k, 0] += self.noise * draws.normal(size=x.shape[2:])
            costs[k] = np.array(COSTS)[classes]
        found = {"x": torch.from_numpy(x), "costs": torch.from_numpy(costs)}
        return found | {"z": self.structure.argmax(-found["costs"])}


def _textures() -> np.ndarray:
    """Every class turned by each number of quarters: ``[classes, 4, side, side]``."""
    i, j = np.indices((TILE_SIZE, TILE_SIZE))
    edge = TILE_SIZE - 1
    patterns = np.stack(
        [
            i * 0,  # plain
            i % 2,  # furrows
            (i + j) % 2,  # checks
            i < TILE_SIZE // 2,  # a step
            (i % edge == 0) | (j % edge == 0),  # a frame
        ]
    ).astype(float)
    patterns -= patterns.mean((1, 2), keepdims=True)
    scale = patterns.std((1, 2), keepdims=True)
    patterns *= _CONTRAST / np.where(scale > 0, scale, 1)
    patterns += np.array(_GREYS)[:, None, None]
    return np.stack([np.rot90(patterns, turn, (1, 2)) for turn in range(4)], 1)


def _bell(size: int, width: float) -> np.ndarray:
    """A matrix that smooths noise to ``size`` numbers, each again of variance 1."""
    reach = int(np.ceil(_REACH * width))
    away = np.arange(size + 2 * reach) - np.arange(size)[:, None] - reach
    weight = np.exp(-((away / width) ** 2) / 2) if width > 0 else (away == 0).astype(float)
    return weight / np.sqrt((weight**2).sum(1, keepdims=True))
