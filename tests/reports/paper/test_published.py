"""What published tables say of runs: what they are compared on, and which stand aside."""

import importlib

from nestruct.reports import read_run
from nestruct.reports.names import is_aside, task_name

write_run = importlib.import_module("reports.test_runs").write_run


def with_config(folder, text):
    write_run(folder)
    (folder / "config.toml").write_text(text)
    return read_run(folder)


IMAGES = """
[data]
name = "images"
dataset = "fashion-mnist"
[model]
name = "categorical"
num_classes = 10
hidden_size = {size}
[estimator]
name = "SST"
temperature = 1.0
anneal_rate = 0.0
[optimizer]
lr = {rate}
[training]
batch_size = 128
max_steps = 117000
patience = "none"
"""


def test_models_of_two_sizes_are_two_tasks_and_other_rates_stand_aside(tmp_path):
    small = with_config(tmp_path / "small", IMAGES.format(size=16, rate=0.001))
    fast = with_config(tmp_path / "fast", IMAGES.format(size=32, rate=0.003))
    other = with_config(tmp_path / "other", IMAGES.format(size=20, rate=0.001))
    assert task_name(small) == "fashion-mnist, 25K parameters"
    assert task_name(fast) == "fashion-mnist, 50K parameters"
    assert task_name(other) == "fashion-mnist"
    assert [is_aside(run) for run in (small, fast, other)] == [False, True, False]


def test_the_phase_of_a_decoder_stands_aside(tmp_path):
    phase = '[model]\nname = "parser"\nobjective = "{}"\n[data]\nname = "grammar"\n'
    runs = [
        with_config(tmp_path / name, phase.format(name)) for name in ("parser", "decoder", "vae")
    ]
    assert [is_aside(run) for run in runs] == [False, True, False]
