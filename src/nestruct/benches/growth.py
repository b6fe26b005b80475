"""How a time grows with n: the exponent of a power law, fitted where its asymptotics show."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

FIT_SHARE = 0.4  # of the largest size: what is smaller is not fitted (100 of 250)
_MIN_POINTS = 3
# What 95% of Student's t lie within, by degrees of freedom from 1 on.
_QUANTILES = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201),
    *(2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069),
)


@dataclass(frozen=True)
class Growth:
    """A fit of ``seconds = factor * n ** exponent``.

    Attributes:
        exponent: The slope of log seconds against log n, by least squares.
        low: Where a 95% confidence interval of it begins, if the power law is right.
        high: Where that ends.
        residual: The root mean square of what is left of log seconds; 0.1 is about 10%.
        smallest: The smallest n that was fitted.
        num_sizes: How many were.
    """

    exponent: float
    low: float
    high: float
    residual: float
    smallest: int
    num_sizes: int


def fit_growth(sizes: Sequence[int], seconds: Sequence[float]) -> Growth | None:
    """Fits a power law to the upper range of sizes; None where fewer than three are there.

    Example:
        >>> found = fit_growth([10, 100, 150, 200, 250], [1.0, 2e4, 4.5e4, 8e4, 12.5e4])
        >>> round(found.exponent, 6), found.smallest
        (2.0, 100)
    """
    top = max(sizes, default=0)
    points = [
        (math.log(n), math.log(s), n)
        for n, s in zip(sizes, seconds, strict=True)
        if n >= FIT_SHARE * top
    ]
    freedom = len(points) - 2
    if len(points) < _MIN_POINTS:
        return None
    centre, level = fmean(x for x, _, _ in points), fmean(y for _, y, _ in points)
    spread = sum((x - centre) ** 2 for x, _, _ in points)
    slope = sum((x - centre) * (y - level) for x, y, _ in points) / spread
    left = sum((y - level - slope * (x - centre)) ** 2 for x, y, _ in points)
    width = _QUANTILES[min(freedom, len(_QUANTILES)) - 1] * math.sqrt(left / freedom / spread)
    return Growth(
        exponent=slope,
        low=slope - width,
        high=slope + width,
        residual=math.sqrt(left / len(points)),
        smallest=min(n for _, _, n in points),
        num_sizes=len(points),
    )
