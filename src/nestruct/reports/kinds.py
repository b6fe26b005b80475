"""What a method needs to know of the structure: its kind, and what that means."""

from nestruct import estimators
from nestruct.reports.runs import Run

MEANINGS = {
    "gradient-free": "forward passes only, nothing is differentiated",
    "black-box solver": "encoder and decoder are differentiated, the solver is not",
    "needs a relaxation": "a differentiable stand-in for the solver is differentiated too",
    "exact": "every structure is decoded",
    "supervised": "learns from given structures",
}
DIFFERENTIATED = {  # in a sentence on what a run cost
    "gradient-free": "no gradient",
    "black-box solver": "gradients of encoder and decoder only",
    "needs a relaxation": "gradients through a relaxed solver",
}


def kind_of(run: Run) -> str:
    """The kind of a run's estimator; empty where it is someone's own and the run does not say.

    Nothing is imported for it: a run may name anything.
    """
    name = str(run.option("estimator.name"))
    kind = run.environment.get("kind") or getattr(getattr(estimators, name, None), "kind", None)
    return kind if isinstance(kind, str) else ""
