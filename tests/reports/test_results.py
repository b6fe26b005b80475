"""The run files in ``results``: each is small and can be read, as reports need it."""

from pathlib import Path

import pytest

from nestruct.reports import read_run

RESULTS = Path(__file__).parents[2] / "results"


def test_every_file_is_small():
    large = [path for path in RESULTS.rglob("*") if path.is_file() and path.stat().st_size > 1e6]
    assert large == []


@pytest.mark.parametrize("folder", sorted(path.name for path in RESULTS.iterdir() if path.is_dir()))
def test_every_run_can_be_read(folder):
    configs = sorted((RESULTS / folder).rglob("config.toml"))
    assert configs
    for config in configs:
        assert read_run(config.parent).validation
