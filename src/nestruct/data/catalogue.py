"""Every data set by name: what it is for, and whether it is there. A new one is a line here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nestruct.data.domains import LANGUAGES, TREEBANKS, Treebanks
from nestruct.data.grammar import Grammar
from nestruct.data.graph_layout import GraphLayout
from nestruct.data.images import Images
from nestruct.data.patterns import Patterns
from nestruct.data.shortest_path import ShortestPaths
from nestruct.data.treebank import Reader


@dataclass(frozen=True)
class DataSource:
    """A data set.

    Args:
        purpose: What it is for.
        describe: One line about its contents. Of a set that is read it looks into the files, and
            raises `nestruct.InputError` where they are damaged.
        missing: None where the set is here, else what to do, as the end of a sentence.
        make: Generates the set; None where it is read from ``NESTRUCT_DATA``.
    """

    purpose: str
    describe: Callable[[], str]
    missing: Callable[[], str | None] = lambda: None
    make: Callable[[], object] | None = None


def _images(dataset: str, purpose: str) -> DataSource:
    images = Images(dataset=dataset)

    def describe() -> str:
        train, test = images.official_sizes()
        return f"{train:,} + {test:,} images"

    return DataSource(
        purpose, describe, lambda: images.remedy() if images.where() is None else None
    )


def _treebank(name: str) -> DataSource:
    treebank, splits = Treebanks(source=name), ("train", "test")

    def missing() -> str | None:
        absent = [split for split in splits if not _megabytes(treebank.find(split))]
        return treebank.remedy(*absent) if absent else None

    def describe() -> str:
        files = [file for file in map(treebank.find, splits) if file is not None]
        for file in files:
            next(iter(Reader(file)), None)  # raises where that is no sentence
        sizes = " + ".join(f"{_megabytes(file):.1f}" for file in files)
        return f"{sizes} MB to train and test on"

    return DataSource("Table 2: dependency trees", describe, missing)


def _vectors(language: str) -> DataSource:
    treebank = Treebanks(source=f"{language}_")
    return DataSource(
        "Table 2: word vectors",
        lambda: f"{_megabytes(treebank.find_vectors()):.1f} MB of vectors",
        lambda: None if _megabytes(treebank.find_vectors()) else treebank.vectors_remedy(),
    )


def _megabytes(path: Path | None) -> float:
    """0 of a file that is missing."""
    return 0.0 if path is None else path.stat().st_size / 1e6


CATALOGUE = {
    "graph-layout": DataSource(
        "Table 1: particles that move by a hidden tree",
        lambda: "50,000 + 10,000 + 10,000 examples, kept in the cache",
        make=lambda: GraphLayout().splits(),
    ),
    "patterns": DataSource(
        "first steps: small binary images",
        lambda: "2,000 + 500 + 500 examples, anew each time",
        make=lambda: Patterns().splits(),
    ),
    "grammar": DataSource(
        "first steps: generated sentences with their trees",
        lambda: "400 + 100 + 200 sentences, anew each time",
        make=lambda: Grammar().splits(),
    ),
    "shortest-path": DataSource(
        "the scoreboard: grid paths whose costs follow from features",
        lambda: "100 + 1,000 + 1,000 examples, anew each time",
        make=lambda: ShortestPaths().splits(),
    ),
    "fashion-mnist": _images("fashion-mnist", "Table 3 and the paper's appendix"),
    "kmnist": _images("kmnist", "the paper's appendix"),
    "omniglot": _images("omniglot", "the paper's appendix"),
    "mnist": _images("mnist", "not in the paper"),
    **{name: _treebank(name) for name in TREEBANKS},
    **{f"vectors-{language}": _vectors(language) for language in LANGUAGES},
}


def needed(data: Mapping[str, Any]) -> list[str]:
    """Which data sets of the catalogue a recipe's table ``data`` asks for.

    Example:
        >>> needed({"name": "treebanks", "source": "gl_ctg", "target": "gl_treegal"})
        ['gl_ctg', 'gl_treegal', 'vectors-gl']
    """
    if data["name"] == "images":
        return [data.get("dataset", Images.dataset)]
    if data["name"] != "treebanks":
        return [data["name"]]
    language = data["source"].partition("_")[0]
    names = [data["source"], data.get("target"), f"vectors-{language}"]
    return [name for name in names if name in CATALOGUE]
