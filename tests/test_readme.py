"""The README's Python runs as it stands."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[0])
def test_block_runs(block):
    exec(compile(block, str(README), "exec"), {})


def test_there_is_something_to_run():
    assert BLOCKS
