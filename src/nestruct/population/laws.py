"""What a row of random numbers stands for: a full direction, or factors of directions of rank one.

`FullDirections`: one number for each parameter. `RankOneDirections`: a matrix of m rows and n
columns takes m + n numbers, its direction is their outer product ``a b^T``, whose entries have
mean 0, variance 1 and no correlation; biases, gains and other vectors have a number for each entry.
Both give the members, and the weighted sums of directions that are the gradient.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from nestruct.members import Factors, Population
from nestruct.noise import Noise
from nestruct.population.directions import fill_directions
from nestruct.population.layout import Layout

_ALIGNED = 8  # numbers: where a factor starts, so that products read whole words of memory


class FullDirections:
    """Directions with a number for each parameter.

    Args:
        layout: The parameters.
        kind: ``gaussian`` or ``rademacher``.
        sigma: The standard deviation.
        scale: Of each entry, over sigma; 1 when None.
    """

    def __init__(
        self, layout: Layout, kind: str, sigma: float, scale: Float[Tensor, " size"] | None
    ) -> None:
        self.layout, self.kind, self.sigma, self.scale = layout, kind, sigma, scale
        self.width = layout.size

    def fill(self, flat: Float[Tensor, "pairs width"], first_pair: int, noise: Noise) -> None:
        """Writes the numbers of some pairs."""
        fill_directions(
            flat,
            first_pair,
            seed=noise.seed,
            step=noise.step,
            sigma=self.sigma,
            kind=self.kind,
        )
        if self.scale is not None:
            flat.mul_(self.scale)

    def population(self, flat: Float[Tensor, "pairs width"], mirrored: bool) -> Population:
        """The members that the numbers stand for."""
        return Population(self.layout.centre(), self.layout.split(flat), mirrored)

    def sums(self, weights: Float[Tensor, " pairs"], flat: Tensor) -> Float[Tensor, " size"]:
        """The weighted sum of directions, each over its entry's variance, up to `finish`."""
        return weights @ flat

    def squares(self, weights: Float[Tensor, " pairs"], flat: Tensor) -> Float[Tensor, " size"]:
        """The weighted sum of the entries' squares, up to `finish`; overwrites the directions."""
        return weights @ flat.square_()

    def finish(self, sums: Tensor) -> Tensor:
        """What sums are due; in place."""
        # Directions carry one sigma; the estimator divides by it once more.
        if self.scale is not None:
            sums.div_(self.scale.square())
        return sums.div_(self.sigma**2)

    finish_squares = finish


class RankOneDirections:
    """Directions ``a b^T`` of matrices, and full ones of vectors.

    Args:
        layout: The parameters.
        kind: How all numbers are drawn, ``rademacher`` or ``gaussian``.
        scales: The sigma of each parameter tensor.
    """

    def __init__(self, layout: Layout, kind: str, scales: list[float | Tensor]) -> None:
        self.layout, self.kind = layout, kind
        self.scales = dict(zip(layout.parameters, scales, strict=True))
        self.width = 0
        self.places: dict[str, list[slice]] = {}  # a vector has one, a matrix two
        for name, parameter in layout.parameters.items():
            self.places[name] = [self._place(count) for count in _counts(parameter)]

    def _place(self, count: int) -> slice:
        start = self.width
        self.width += -(-count // _ALIGNED) * _ALIGNED
        return slice(start, start + count)

    def fill(self, flat: Float[Tensor, "pairs width"], first_pair: int, noise: Noise) -> None:
        """Writes the numbers of some pairs."""
        fill_directions(
            flat, first_pair, seed=noise.seed, step=noise.step, sigma=1.0, kind=self.kind
        )

    def population(self, flat: Float[Tensor, "pairs width"], mirrored: bool) -> Population:
        """The members that the numbers stand for."""
        directions, factors = {}, {}
        for name, parameter in self.layout.parameters.items():
            shape, scale = parameter.shape, self.scales[name]
            left, *right = (flat[:, place] for place in self.places[name])
            if right:
                factors[name] = Factors(left, right[0].unflatten(1, shape[1:]), scale)
            else:
                directions[name] = (left * scale).view(len(flat), *shape)
        return Population(self.layout.centre(), directions, mirrored, factors)

    def sums(self, weights: Float[Tensor, " pairs"], flat: Tensor) -> Float[Tensor, " size"]:
        """The weighted sum of directions over sigma: one product for each matrix."""
        pieces = []
        for name, places in self.places.items():
            left, *right = (flat[:, place] for place in places)
            if not right:
                total = weights @ left
            elif left.shape[1] < right[0].shape[1]:  # the weighted factor is written: the short one
                total = (left * weights[:, None]).T @ right[0]
            else:
                total = left.T @ (right[0] * weights[:, None])
            pieces.append(total.flatten() / self.scales[name])
        return torch.cat(pieces)

    def squares(self, weights: Float[Tensor, " pairs"], flat: Tensor) -> Float[Tensor, " tensors"]:
        """The weighted sum of each tensor's mean square."""
        sums = []
        for places in self.places.values():
            means = [flat[:, place].square().mean(1) for place in places]
            sums.append(weights @ torch.stack(means).prod(0))
        return torch.stack(sums)

    def finish(self, sums: Tensor) -> Tensor:
        """Nothing: `sums` has divided."""
        return sums

    finish_squares = finish

    def square_gain(self) -> Float[Tensor, " tensors"]:
        """How much more a tensor's mean square says about curvature than with full directions.

        For ``x^T H x / 2`` the product of loss and mean square has expectation ``trace(H) / d``
        times a factor: 1 for d independent Gaussian entries, this for Gaussian factors.
        """
        gains = []
        for places in self.places.values():
            sizes = [place.stop - place.start for place in places]
            variance = math.prod(1 + 2 / size for size in sizes) - 1
            gains.append(variance * math.prod(sizes) / 2)
        make = torch.full  # a tensor made of a list would not be legal inside a graph capture
        device = self.layout.device
        return torch.stack([make((), g, dtype=self.layout.dtype, device=device) for g in gains])


def _counts(parameter: Tensor) -> list[int]:
    """How many numbers a tensor takes: of a matrix, both factors'; of a vector, all entries'."""
    if parameter.dim() < 2:
        return [parameter.numel()]
    rows, columns = parameter.shape[0], math.prod(parameter.shape[1:])
    # A single row or column is a vector: its product with one number is of no use.
    return [rows * columns] if min(rows, columns) == 1 else [rows, columns]
