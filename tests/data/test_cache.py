"""Generated data on disk: read back, told apart, and never in the way."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from nestruct.data.cache import cached, folder


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("NESTRUCT_CACHE", str(tmp_path / "cache"))


def make(value: float, calls: list[float]):
    def generate() -> dict[str, torch.Tensor]:
        calls.append(value)
        return {"x": torch.full((3,), value), "z": torch.zeros(2, dtype=torch.uint8)}

    return generate


def test_the_second_time_nothing_is_generated():
    calls: list[float] = []
    first = cached("toy", 1, {"size": 3}, make(1.0, calls))
    second = cached("toy", 1, {"size": 3}, make(2.0, calls))
    assert calls == [1.0]
    assert torch.equal(first["x"], second["x"])
    assert second["z"].dtype == torch.uint8


@pytest.mark.parametrize(
    ("name", "version", "options"),
    [("other", 1, {"size": 3}), ("toy", 2, {"size": 3}), ("toy", 1, {"size": 4})],
)
def test_other_options_are_other_data(name, version, options):
    calls: list[float] = []
    cached("toy", 1, {"size": 3}, make(1.0, calls))
    found = cached(name, version, options, make(2.0, calls))
    assert calls == [1.0, 2.0]
    assert found["x"][0] == 2


def test_a_broken_file_is_replaced(caplog):
    calls: list[float] = []
    cached("toy", 1, {}, make(1.0, calls))
    (path,) = folder().iterdir()
    path.write_bytes(path.read_bytes()[:20])
    with caplog.at_level(logging.WARNING, "nestruct"):
        assert cached("toy", 1, {}, make(2.0, calls))["x"][0] == 2
    assert "generated again" in caplog.text
    assert cached("toy", 1, {}, make(3.0, calls))["x"][0] == 2


@pytest.mark.parametrize("every", [29, pytest.param(1, marks=pytest.mark.slow)])
def test_a_flipped_bit_is_said_and_the_file_made_again(caplog, every):
    def generate() -> dict[str, torch.Tensor]:
        return {"x": torch.arange(4.0), "z": torch.arange(3, dtype=torch.uint8)}

    whole = cached("toy", 1, {"k": 1}, generate)
    (path,) = folder().iterdir()
    good = path.read_bytes()
    for place in range(0, 8 * len(good), every):
        bad = bytearray(good)
        bad[place // 8] ^= 1 << place % 8
        path.write_bytes(bad)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "nestruct"):
            found = cached("toy", 1, {"k": 1}, generate)
        assert all(torch.equal(found[key], whole[key]) for key in whole), place
        assert "generated again" in caplog.text, place
    assert cached("toy", 1, {"k": 1}, make(2.0, calls := [])).keys() == whole.keys()
    assert not calls


def test_a_file_of_version_0_1_is_made_again(caplog):
    calls: list[float] = []
    cached("toy", 1, {}, make(1.0, calls))
    (path,) = folder().iterdir()
    with safe_open(path, "pt") as file:
        identity = file.metadata()["identity"]
    save_file({"x": torch.zeros(3)}, path, {"identity": identity})
    with caplog.at_level(logging.WARNING, "nestruct"):
        assert cached("toy", 1, {}, make(2.0, calls))["x"][0] == 2
    assert "has no checksum" in caplog.text


def test_a_folder_that_cannot_be_written_costs_only_time(monkeypatch, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NESTRUCT_CACHE", str(tmp_path / "file"))
    calls: list[float] = []
    with caplog.at_level(logging.WARNING, "nestruct"):
        assert cached("toy", 1, {}, make(1.0, calls))["x"][0] == 1
    assert "could not be kept" in caplog.text


def test_two_processes_may_write_at_once(tmp_path):
    """Both get the data, nothing half written is met, and nothing is left behind."""
    script = """
import logging, sys, torch
from nestruct.data.cache import cached
logging.basicConfig()
for k in range(40):
    found = cached("toy", 1, {"k": k}, lambda: {"x": torch.full((200_000,), float(k))})
    assert (found["x"] == k).all()
"""
    command = [sys.executable, "-c", script]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        _, said = process.communicate(timeout=120)
        assert (process.returncode, said) == (0, "")
    assert len(list(folder().iterdir())) == 40


def test_no_home_is_needed(monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: pytest.fail("looked for a home"))
    assert folder().name == "cache"
