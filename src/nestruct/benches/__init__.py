"""Measurements of whole training steps: what `nestruct bench` runs.

``scaling.py`` times, ``scaling_tasks.py`` says what, ``growth.py`` fits how times grow, and
``scaling_figure.py`` draws. What is measured lies in one JSON file; the figure is made from it.
"""

from nestruct.benches.growth import Growth, fit_growth
from nestruct.benches.scaling import SIZES, measure_scaling, read_scaling
from nestruct.benches.scaling_tasks import TASKS, Protocol

__all__ = [
    "SIZES",
    "TASKS",
    "Growth",
    "Protocol",
    "fit_growth",
    "measure_scaling",
    "read_scaling",
]
