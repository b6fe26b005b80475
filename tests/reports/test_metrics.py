"""The registry of metrics: one line is enough, and a metric that has none is shown all the same."""

import importlib
import json

import pytest

from nestruct.reports import METRICS, Metric, read_groups, report_tables, write_page
from nestruct.reports.metrics import find_metric, in_order, leading, tabled

write_run = importlib.import_module("reports.test_runs").write_run
pages = importlib.import_module("reports.pages")


def with_metric(folder, name, value):
    write_run(folder)
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    told = [record | {name: value(record["step"])} for record in records]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in told))
    return folder


def test_a_metric_is_one_line(tmp_path, monkeypatch):
    regret = Metric(label="regret of the {noun}", short="regret", unit="euro", headline=True)
    for k, known in enumerate(({}, {"zz_regret": regret})):
        for name, metric in known.items():
            # Before the others, as a headline counts in the order of the registry.
            monkeypatch.setattr("nestruct.reports.summary.METRICS", {name: metric, **METRICS})
            monkeypatch.setitem(METRICS, name, metric)
        folder = with_metric(tmp_path / str(k), "zz_regret", lambda step: 5.0 - step / 10)
        write_page([folder], tmp_path / "page.html")
        page = pages.parse(tmp_path / "page.html")
        label = "regret of the structure, euro" if known else "zz regret"
        assert f"{label} (validation)" in [h.text for h in page.all("h3")]
        columns = [column for _, column in report_tables(read_groups([folder]))[0].columns]
        assert ("regret" if known else "zz regret") in columns
        said = page.one("p", kind="sentence").text
        assert said.startswith("Regret of the structure fell from 5" if known else "F1 of the most")


@pytest.mark.parametrize(
    ("name", "better", "percent"),
    [
        ("accuracy_of_tags", "higher", True),
        ("recall_of_edges", "higher", True),
        ("kl", "lower", False),
    ],
)
def test_a_metric_that_is_not_known_is_judged_by_its_name(name, better, percent):
    assert name not in METRICS
    found = find_metric(name)
    assert (found.better, found.percent) == (better, percent)
    assert found.say("tree") == name.replace("_", " ")
    assert find_metric("{a}").say("tree") == "{a}"


def test_what_leads_and_hides_is_said_once():
    assert in_order(["loss", "f1_map", "elbo", "f1_sample", "loss_published"]) == [
        *("f1_sample", "f1_map", "elbo", "loss"),
    ]
    assert tabled(["loss", "loss_std", "f1_map", "elbo"]) == ["f1_map", "elbo"]
    assert tabled(["loss", "loss_mode"]) == ["loss", "loss_mode"]
    assert leading(["loss", "f1_map", "elbo"]) == {"f1_map", "elbo"}
    assert leading(["loss", "uas", "las", "nll"]) == {"uas", "nll"}
    assert leading(["loss"]) is None
