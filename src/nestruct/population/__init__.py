"""A population around the centre: perturb, evaluate (vmap or loop), share over processes.

Members come in mirrored pairs: all ``centre + sigma direction`` first, then all ``centre - ...``.
"""

from nestruct.members import Population
from nestruct.population.evaluate import evaluate_members, needs_loop
from nestruct.population.layout import Layout

__all__ = ["Layout", "Population", "evaluate_members", "needs_loop"]
