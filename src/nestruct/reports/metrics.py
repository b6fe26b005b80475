"""What reports know of each metric: its name, which way it gets better, where it is shown.

``METRICS`` is the one place for that. A new metric is one line in it, or, where a package like
`nestruct.reports.paper` brings its own, one line there. A metric that is not in it is shown too,
under its own name; see `find_metric`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

_SHARES = {"f1", "accuracy", "precision", "recall"}  # first words of metrics between 0 and 1


@dataclass(frozen=True, kw_only=True)
class Metric:
    """What is known of a metric.

    Attributes:
        label: What it is called; ``{noun}`` stands for what the runs' structures are called.
        short: What it is called in the head of a column; ``label`` where this is empty.
        unit: What it is measured in, where that is known.
        better: Which way it gets better.
        percent: True if it is a share between 0 and 1. It is then never drawn on a logarithmic
            axis: one run near 0 would press all that matters, near 1, into one line.
        headline: True if a run is told by it in a sentence.
        first: True if it stands before others.
        hidden: True if another metric says the same.
        hides: Metrics that tables leave out where runs have this one.
        leads: Where runs have this metric, the charts that are not folded away, besides it.
        note: A sentence for below the tables that show it.
        targets: Values for the table of what it costs to reach them.
        is_target: Says of a run whether ``targets`` mean something for it.
        derive: Gives it from a run's configuration and one record, where that has no such number.
    """

    label: str
    short: str = ""
    unit: str = ""
    better: Literal["higher", "lower"] = "lower"
    percent: bool = False
    headline: bool = False
    first: bool = False
    hidden: bool = False
    hides: tuple[str, ...] = ()
    leads: tuple[str, ...] | None = None
    note: str = ""
    targets: tuple[float, ...] = ()
    is_target: Callable[[Any], bool] = lambda run: True
    derive: Callable[[Mapping[str, Any], Mapping[str, Any]], float | None] | None = None

    def say(self, noun: str) -> str:
        """What it is called on a page about structures with that name."""
        return self.label.format(noun=noun)

    def reaches(self, value: float, target: float) -> bool:
        """True if a value is at least as good as a target."""
        return value >= target if self.better == "higher" else value <= target


METRICS: dict[str, Metric] = {
    "f1_sample": Metric(
        label="F1 of a sampled {noun}",
        short="F1, sampled",
        better="higher",
        percent=True,
        first=True,
        targets=(0.80, 0.90, 0.95),
    ),
    "f1_map": Metric(
        label="F1 of the most likely {noun}",
        short="F1, MAP",
        better="higher",
        percent=True,
        headline=True,
        first=True,
    ),
    "regret": Metric(
        label="normalised regret",
        percent=True,
        headline=True,
        first=True,
        note="Normalised regret: what decisions cost too much, over what the best ones cost.",
    ),
    "accuracy": Metric(label="accuracy", better="higher", percent=True, headline=True, first=True),
    "accuracy_tiles": Metric(label="tiles read right", better="higher", percent=True),
    "share_free": Metric(label="tiles that noise makes free", percent=True),
    "edge_precision": Metric(label="edge precision", better="higher", percent=True),
    "edge_recall": Metric(label="edge recall", better="higher", percent=True),
    "nll": Metric(label="negative log-likelihood"),
    "loss_top_k": Metric(
        label="negative ELBO with the law of perturb-and-MAP",
        short="loss, top-k law",
        unit="nats",
    ),
    "loss_simple": Metric(
        label="loss with the entropy of SIMPLE's notebook",
        short="loss, SIMPLE's entropy",
        unit="nats",
        note="SIMPLE's notebook leaves out a part of the entropy, so its loss is no bound that "
        "others can be compared with.",
    ),
    "lr": Metric(label="learning rate"),
    "grad_norm": Metric(label="gradient norm"),
}


def find_metric(name: str) -> Metric:
    """What is known of a metric.

    One that is not registered is called by its own name. It is a share, and better when higher, if
    its first word is that of a share; else lower is better, as of a loss.

    Example:
        >>> find_metric("f1_of_edges").better, find_metric("kl_term").label
        ('higher', 'kl term')
    """
    is_share = name.partition("_")[0] in _SHARES
    label = name.replace("_", " ").replace("{", "{{").replace("}", "}}")
    guess = Metric(label=label, better="higher" if is_share else "lower", percent=is_share)
    return METRICS.get(name, guess)


def in_order(names: Iterable[str]) -> list[str]:
    """The metrics that are not hidden: those that stand first, in order, then the others."""
    shown = [name for name in dict.fromkeys(names) if not find_metric(name).hidden]
    first = [name for name, metric in METRICS.items() if metric.first and name in shown]
    return [*first, *(name for name in shown if name not in first)]


def tabled(names: Iterable[str]) -> list[str]:
    """The metrics worth a column: no spreads, and not what another of them hides."""
    names = [name for name in names if not name.endswith("_std")]
    hidden = {other for name in names for other in find_metric(name).hides}
    return in_order(name for name in names if name not in hidden)


def leading(names: Iterable[str]) -> set[str] | None:
    """The metrics whose charts are not folded away; None where none of them leads."""
    names = set(names)
    leads = [(name, find_metric(name).leads) for name in names]
    found = {n for name, others in leads if others is not None for n in (name, *others)}
    return found & names or None
