"""Every data set by name: what it is for, and whether it is there. A new one is a line here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nestruct.data.domains import LANGUAGES, TREEBANKS, Treebanks
from nestruct.data.download import Remote
from nestruct.data.grammar import Grammar
from nestruct.data.graph_layout import GraphLayout
from nestruct.data.images import Images
from nestruct.data.listops import ListOps
from nestruct.data.patterns import Patterns
from nestruct.data.shortest_path import ShortestPaths
from nestruct.data.terrain import Terrain
from nestruct.data.treebank import Reader

_IDX = ("train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz")
_UNVERIFIED = ("md5", None)
# Home, licence, address of the files, and checksums of theirs.
_IMAGES: dict[str, tuple[str, str, str, tuple[tuple[str, str | None], ...]]] = {
    "fashion-mnist": (
        "https://github.com/zalandoresearch/fashion-mnist",
        "MIT",
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
        (_UNVERIFIED, _UNVERIFIED),
    ),
    "kmnist": (
        "http://codh.rois.ac.jp/kmnist",
        'CC BY-SA 4.0: "KMNIST Dataset" (created by CODH), adapted from "Kuzushiji Dataset" '
        "(created by NIJL and others), doi:10.20676/00000341",
        "http://codh.rois.ac.jp/kmnist/dataset/kmnist",
        (("md5", "bdb82020997e1d708af4cf47b453dcf7"), ("md5", "5c965bf0a639b31b8f53240b1b52f4d7")),
    ),
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "usually given as CC BY-SA 3.0",
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        (
            ("unpacked_md5", "6bbc9ace898e44ae57da46a324031adb"),
            ("unpacked_md5", "2646ac647ad5339dbf082846283269ea"),
        ),
    ),
    "omniglot": (
        "https://github.com/brendenlake/omniglot",
        "MIT",
        "",  # drawings: no format that is read here
        (_UNVERIFIED, _UNVERIFIED),
    ),
}
_UD = "https://github.com/UniversalDependencies"
# Repository, version (r2.7, the one of the paper's time), licence, and whether it has a dev split.
_TREEBANKS = {
    "gl_ctg": (
        "UD_Galician-CTG",
        "e34a7ed32ce288bed2bf64caa8cabb897cc39fe5",
        "CC BY-NC-SA 3.0",
        True,
    ),
    "gl_treegal": (
        "UD_Galician-TreeGal",
        "c02757184a7cdebcc1e6de47a63eee6fbf494d1f",
        "LGPL-LR",
        False,
    ),
    "id_csui": (
        "UD_Indonesian-CSUI",
        "0a8cb66dc30347a13416bbe1f654f0f7aea7fd4f",
        "CC BY-SA 4.0",
        False,
    ),
    "id_gsd": ("UD_Indonesian-GSD", "r2.7", "CC BY-NC-SA 3.0 US, or as its repository says", True),
    "ru_gsd": (
        "UD_Russian-GSD",
        "2f53e57dab86f41989378b80849f320660e12419",
        "CC BY-SA 4.0",
        True,
    ),
    "ru_taiga": (
        "UD_Russian-Taiga",
        "445b06171246417ae52da5b989d6ee619c112177",
        "CC BY-SA 4.0",
        True,
    ),
}
_VECTORS = "https://dl.fbaipublicfiles.com/fasttext/vectors-crawl"


@dataclass(frozen=True)
class DataSource:
    """A data set.

    Args:
        purpose: What it is for.
        describe: One line about its contents. Of a set that is read it looks into the files, and
            raises `nestruct.InputError` where they are damaged.
        missing: None where the set is here, else what to do, as the end of a sentence.
        make: Generates the set; None where it is read from ``NESTRUCT_DATA``.
        licence: Of a set that is read.
        home: Where it is published.
        files: What can be fetched by name; none where it is not published in a format we read.
    """

    purpose: str
    describe: Callable[[], str]
    missing: Callable[[], str | None] = lambda: None
    make: Callable[[], object] | None = None
    licence: str = ""
    home: str = ""
    files: tuple[Remote, ...] = ()


def _images(dataset: str, purpose: str) -> DataSource:
    images = Images(dataset=dataset)

    def describe() -> str:
        train, test = images.official_sizes()
        return f"{train:,} + {test:,} images"

    home, licence, base, checksums = _IMAGES[dataset]
    files = tuple(
        Remote(f"{base}/{name}", f"images/{dataset}/{name}", **{kind: value} if value else {})
        for name, (kind, value) in zip(_IDX, checksums, strict=True)
        if base
    )
    return DataSource(
        purpose,
        describe,
        lambda: images.remedy() if images.where() is None else None,
        licence=licence,
        home=home,
        files=files,
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

    repository, version, licence, with_dev = _TREEBANKS[name]
    files = tuple(
        Remote(f"{_UD}/{repository}/raw/{version}/{file}", f"ud/{name}/{file}")
        for split in ("train", "dev", "test")
        if split != "dev" or with_dev
        for file in (f"{name}-ud-{split}.conllu",)
    )
    return DataSource(
        "Table 2: dependency trees",
        describe,
        missing,
        licence=licence,
        home=f"{_UD}/{repository}",
        files=files,
    )


def _vectors(language: str) -> DataSource:
    treebank, file = Treebanks(source=f"{language}_"), f"cc.{language}.300.vec.gz"
    return DataSource(
        "Table 2: word vectors",
        lambda: f"{_megabytes(treebank.find_vectors()):.1f} MB of vectors",
        lambda: None if _megabytes(treebank.find_vectors()) else treebank.vectors_remedy(),
        licence="CC BY-SA 3.0",
        home="https://fasttext.cc/docs/en/crawl-vectors.html",
        files=(Remote(f"{_VECTORS}/{file}", f"emb/{file}"),),
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
    "terrain": DataSource(
        "terrain paths: pictures of tiles, their costs and cheapest paths",
        lambda: "1,000 + 200 + 1,000 maps, anew each time",
        make=lambda: Terrain().splits(),
    ),
    "listops": DataSource(
        "ListOps: nested lists of digits, with their values and trees",
        lambda: "100,000 + 10,000 + 10,000 expressions, anew each time",
        make=lambda: ListOps().splits(),
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
