"""The metrics of the paper's tasks."""

from collections.abc import Mapping
from typing import Any

from nestruct.reports.metrics import Metric
from nestruct.reports.paper.published import published_tables
from nestruct.reports.runs import Run, is_number

# The likelihood's variance with which the ELBO of graph layouts is published: with another one,
# what a run calls loss_published cannot be compared.
PUBLISHED_VARIANCE = 5e-5


def _elbo(config: Mapping[str, Any], record: Mapping[str, Any]) -> float | None:
    """The published loss with its sign turned."""
    loss, model = record.get("loss_published"), config.get("model")
    same = isinstance(model, dict) and model.get("variance") == PUBLISHED_VARIANCE
    return -loss if same and loss is not None and is_number(loss) else None


def _in_table_1(run: Run) -> bool:
    return published_tables()[0].row(run) is not None


def _share(label: str, **more: Any) -> Metric:
    return Metric(label=label, better="higher", percent=True, **more)


PAPER_METRICS = {
    "elbo": Metric(
        label="ELBO",
        better="higher",
        first=True,
        hides=("loss",),
        leads=("f1_sample", "f1_map"),
        note="ELBO as published for graph layouts: per node, predicted one step ahead at one "
        "sampled structure, Gumbel KL over directed edges, no constant.",
        targets=(-1500.0, -1080.0, -500.0),
        is_target=_in_table_1,
        derive=_elbo,
    ),
    "loss_published": Metric(label="ELBO without its sign", hidden=True),
    "loss_open_loop": Metric(
        label="open-loop loss",
        note="The open-loop loss is the published one, without its sign turned, but with all "
        "positions predicted from the first.",
    ),
    "loss_mode": Metric(
        label="loss at the most likely category",
        note="The paper's ELBO is minus the loss at the most likely category.",
    ),
    "smoothing_gap": Metric(label="smoothing gap", unit="nats"),
    # The phases of a parser have losses of different kinds.
    "uas": _share("UAS", headline=True, hides=("loss",), leads=("nll",)),
    "las": _share("LAS"),
    "uas_all": _share("UAS with punctuation"),
    "las_all": _share("LAS with punctuation"),
}
