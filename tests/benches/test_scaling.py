"""Tiny sizes, one or two seeds: what is written, how it continues, where it stops."""

import json
import sys
from statistics import median

import pytest
from toys import run_command as run

from nestruct import InputError
from nestruct.benches import TASKS, Protocol, fit_growth, measure_scaling, read_scaling
from nestruct.benches.scaling import spread_out
from nestruct.benches.scaling_figure import draw_scaling
from nestruct.benches.scaling_summary import step_seconds, summarise
from nestruct.benches.scaling_tasks import estimator

TINY = Protocol(
    relational_members=6,
    parsing_members=8,
    hidden_size=8,
    num_sentences=2,
    num_words=30,
    vector_size=5,
    lstm_size=6,
)


def measure(path, **options):
    lines: list[str] = []
    options = {"sizes": (3, 5), "repeats": 1, "protocol": TINY, "tell": lines.append} | options
    return measure_scaling(path, **options), lines


@pytest.fixture(scope="module", autouse=True)
def _one_step_at_a_time():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nestruct.benches.scaling._WORTH_TIMING", 0.0)
        yield


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "scaling-cpu.json"
    record, lines = measure(path)
    return path, record, lines


def test_every_method_of_every_task_is_timed(measured):
    _, record, lines = measured
    assert len(lines) == len(record["cells"]) == 2 * (4 + 3 + 3)
    for task, methods in TASKS.items():
        assert {c["method"] for c in record["cells"] if c["task"] == task} == set(methods)
    assert {c["members"] for c in record["cells"] if c["method"] == "NES"} == {4, 6, 8}
    assert "relational, n = 3, NES, N = 4: " in lines[0]


def test_the_file_says_all_there_is_to_know(measured):
    path, record, _ = measured
    assert read_scaling(path) == json.loads(json.dumps(record))
    assert record["protocol"]["num_words"] == 30
    (session,) = record["sessions"]
    assert {"torch", "cpu", "threads", "load_at_start", "load_at_end", "seconds"} <= set(session)
    for cell in record["cells"]:
        assert len(cell["seconds"]) == len(cell["core_seconds"]) == 1
        assert min(*cell["seconds"], *cell["core_seconds"], cell["first_seconds"]) > 0
        assert cell["solver_seconds"] >= 0
        assert "note" not in cell
    rows = {(row["task"], row["method"], row["members"]): row for row in record["summary"]}
    assert len(rows) == 10
    few = rows["projective", "NES", 4]
    assert few["largest_size"] == 5
    assert few["seconds_on_4"] == pytest.approx(few["seconds"] / 4)
    assert few["growth"] is None  # two sizes
    assert rows["projective", "DPP", 1]["members_meanwhile"] > 0


def test_what_is_measured_is_kept_and_what_is_missing_is_added(measured):
    path, before, _ = measured
    kept = [cell["seconds"] for cell in before["cells"]]
    record, lines = measure(path)
    assert lines == []
    record, lines = measure(path, sizes=(3, 4, 5), tasks=("projective",))
    assert len(lines) == 3
    assert all("n = 4" in line for line in lines)
    record, lines = measure(path, sizes=(3,), tasks=("projective",), repeats=2)
    assert len(lines) == 3
    assert [c["seconds"] for c in record["cells"] if c["size"] != 4 and len(c["seconds"]) == 1] == [
        seconds
        for cell, seconds in zip(before["cells"], kept, strict=True)
        if not (cell["task"] == "projective" and cell["size"] == 3)
    ]
    again = [c for c in record["cells"] if c["task"] == "projective" and c["size"] == 3]
    assert [len(cell["seconds"]) for cell in again] == [2, 2, 2]
    assert again[0]["seconds"][0] in [seconds[0] for seconds in kept]
    assert len(record["sessions"]) == 4


def test_other_settings_are_refused(measured):
    with pytest.raises(InputError, match="measured with num_words = 30, not 31"):
        measure(measured[0], protocol=Protocol(**(TINY.__dict__ | {"num_words": 31})))


def test_a_budget_leaves_cells_that_say_so(tmp_path):
    path = tmp_path / "results" / "scaling.json"
    record, lines = measure(path, budget=1e-9, tasks=("relational",))
    assert lines == ["The budget of 1e-09 s is spent: 8 measurements not run."]
    assert all("budget" in cell["note"] for cell in read_scaling(path)["cells"])
    with pytest.raises(InputError, match="nothing to draw"):
        draw_scaling(record, tmp_path / "figure.png")
    record, lines = measure(path, tasks=("relational",), sizes=(3,))
    assert [("note" in c) for c in record["cells"]] == [c["size"] == 5 for c in record["cells"]]


def test_a_step_too_long_is_extrapolated(tmp_path):
    record, lines = measure(tmp_path / "a.json", longest=1e-9, sizes=(3,))
    for task, many, factor in (("relational", 6, 7 / 5), ("projective", 8, 2)):
        cells = [c for c in record["cells"] if c["task"] == task and c["method"] == "NES"]
        few, more = sorted(cells, key=lambda c: c["members"])
        assert (more["members"], more["timed_members"]) == (many, 4)
        assert more["seconds"] == few["seconds"]
        assert step_seconds(more, "wall") == pytest.approx(
            [factor * seconds for seconds in few["seconds"]]
        )
    assert sum("extrapolated from 4 members" in line for line in lines) == 3
    assert any(row["extrapolated_sizes"] == [3] for row in summarise(record))


def test_more_members_are_timed_where_few_said_little(tmp_path):
    """A step of few members is bound by its launches: 6 seem to fit, and there is time for 8."""
    path = tmp_path / "a.json"
    record, _ = measure(path, tasks=("projective",), sizes=(3,))
    for cell in record["cells"]:
        if cell["method"] == "NES":
            cell["seconds"] = [0.4] if cell["members"] == 4 else []
    path.write_text(json.dumps(record))
    record, _ = measure(path, tasks=("projective",), sizes=(3,), longest=0.7, repeats=1)
    (many,) = (c for c in record["cells"] if c["method"] == "NES" and c["members"] == 8)
    assert many["timed_members"] == 8
    assert median(many["seconds"]) < 0.3


def test_sizes_spread_out():
    assert spread_out(range(10, 251, 10))[:5] == [10, 250, 130, 70, 190]


def test_growth_is_fitted_to_the_upper_range():
    sizes = list(range(10, 251, 10))
    found = fit_growth(sizes, [5.0 + 1e-4 * n**3 for n in sizes])
    assert found is not None
    assert (found.smallest, found.num_sizes) == (100, 16)
    assert 2.9 < found.low < found.exponent < found.high < 3.0
    noisy = fit_growth([100, 150, 200, 250], [1.1, 2.0, 4.4, 5.9])
    assert noisy is not None
    assert noisy.low < 2 < noisy.high
    assert noisy.residual > 0.01
    assert fit_growth([100, 200], [1.0, 2.0]) is None


def test_the_command_writes_results_and_figure(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("nestruct.benches.scaling.Protocol", lambda: TINY)
    words = ["bench", "scaling", "--device", "cpu", "--repeats", 1, "-o", tmp_path / "out"]
    assert run(*words, "--sizes", "3,4,5", "--task", "non-projective") == 0
    text = capsys.readouterr().out
    assert "9/9 non-projective" in text
    assert "NES, N = 8" in text
    assert "from n = 3 on" in text
    assert (tmp_path / "out" / "scaling-cpu.png").stat().st_size > 10_000
    record = read_scaling(tmp_path / "out" / "scaling-cpu.json")
    assert all(row["growth"]["num_sizes"] == 3 for row in record["summary"])


def test_without_matplotlib_there_is_no_figure_and_that_is_said_first(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("nestruct.benches.scaling.Protocol", lambda: TINY)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = ["bench", "scaling", "--device", "cpu", "--repeats", 1, "-o", tmp_path]
    assert run(*words, "--sizes", "3", "--task", "non-projective") == 0
    assert capsys.readouterr().out.startswith("There will be no figure: it needs matplotlib")
    assert [file.name for file in tmp_path.iterdir()] == ["scaling-cpu.json"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["scaling", "--sizes", "10,x"], "Say sizes as N,N,... like 10,50,250"),
        (["scaling", "--sizes", "2"], "at least 3"),
        (["scaling", "--repeats", "0"], "repeats"),
        (["scaling", "--budget", "0"], "budget must be positive"),
        (["scaling", "--longest", "0"], "longest step must be positive"),
        (["scaling", "--device", "tpu"], "device must be auto"),
    ],
)
def test_bad_options_end_in_a_sentence(words, sentence, tmp_path, capsys):
    assert run("bench", *words, "-o", tmp_path / "out") == 1
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_file_of_something_else_is_refused(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(InputError, match="no results"):
        measure(tmp_path / "x.json")


def test_a_gpu_takes_as_many_members_as_fit():
    for size, expected in ((10, 600), (250, 28)):
        nes = estimator("relational", "NES", size, 600, Protocol(), on_gpu=True)
        assert nes.chunk_size == expected
    assert estimator("relational", "NES", 9, 600, Protocol(), on_gpu=False).chunk_size is None
