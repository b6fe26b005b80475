"""Every script in examples/ runs as it stands, from any folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


def run(script, folder, *arguments):
    result = subprocess.run(
        [sys.executable, str(script), *arguments],
        cwd=folder,
        env=os.environ | {"MPLBACKEND": "Agg", "MPLCONFIGDIR": str(folder / "matplotlib")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_example_runs(script, tmp_path):
    assert run(script, tmp_path).strip()


def test_there_is_something_to_run():
    assert EXAMPLES


def test_theory_bounds_draws_where_it_is_told(tmp_path):
    pytest.importorskip("matplotlib")
    script = next(script for script in EXAMPLES if script.stem == "theory_bounds")
    table = [line.split() for line in run(script, tmp_path, "bounds.png").splitlines()[3:]]
    for _, measured, bound, papers_measured, papers_bound in table:
        assert float(measured) <= float(bound)
        assert float(papers_measured) <= float(papers_bound)
    assert len(table) == 9
    assert (tmp_path / "bounds.png").read_bytes().startswith(b"\x89PNG")
