"""Tests lie where their modules lie: tests/ROOM/test_x.py is about src/nestruct/ROOM/x.py."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "nestruct"
# About several modules, or about none of the package's.
OTHERS = {
    *(
        "contract",
        "generic",
        "gibbs",
        "interpreted",
        "kill",
        "learning",
        "model_hooks",
        "numbers",
        "processes",
        "rank_one",
        "sizes",
        "strangers",
    ),  # of a whole room
    *("bits", "docs", "examples", "layout", "package", "readme", "results", "shapes"),
    "drawings",  # of pages: several modules of reports
}
FILES = sorted(TESTS.rglob("test_*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(TESTS)))
def test_there_is_a_module_of_the_same_name(file):
    name = file.stem.removeprefix("test_").removesuffix("_cuda")
    room = SOURCE / file.parent.relative_to(TESTS)
    assert room.is_dir()
    places = [room / f"{name}.py", room / name, *room.glob(f"*/{name}.py")]  # or one room below
    assert name in OTHERS or name == room.name or any(place.exists() for place in places)


def test_no_exception_is_left_over():
    assert {f"test_{name}" for name in OTHERS} <= {
        file.stem.removesuffix("_cuda") for file in FILES
    }
