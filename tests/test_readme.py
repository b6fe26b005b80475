"""The README's Python runs as it stands, and its commands are understood."""

import re
import shlex
from pathlib import Path

import pytest
from toys import run_command

from nestruct.cli import VERBS, _overrides_last
from nestruct.training import Recipe, read_recipe

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
SHELL = "\n".join(re.findall(r"```sh\n(.*?)```", README.read_text(), re.DOTALL))
PAIR = ["data.source=gl_ctg", "data.target=gl_treegal"]  # what $pair stands for
COMMANDS = [
    [word for w in shlex.split(line, comments=True) for word in (PAIR if w == "$pair" else [w])]
    for line in re.findall(r"^nestruct (.*)$", SHELL, re.MULTILINE)
]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[0])
def test_block_runs(block):
    exec(compile(block, str(README), "exec"), {})


def test_there_is_something_to_run():
    assert BLOCKS


def test_the_commands_name_verbs_recipes_and_options_that_exist():
    assert len(COMMANDS) > 10
    for verb, *words in COMMANDS:
        assert verb in VERBS
        if verb in ("train", "sweep", "check-gradient") and "--resume" not in words:
            overrides = [w for w in _overrides_last(words)[1:] if "=" in w]
            first = [re.sub(r",.*", "", w) for w in overrides]  # of a sweep's values
            Recipe.from_tables(read_recipe(words[0], first))


def test_its_gradient_check_passes(capsys):
    (words,) = [command for command in COMMANDS if command[0] == "check-gradient"]
    assert run_command(*words, "--num-trials", 80) == 0
    assert ": passed" in capsys.readouterr().out
