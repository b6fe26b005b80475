"""Archives, recipes, caches, word vectors and treebanks as a malicious stranger would make them.

A case is a name, the words of a command, and a function that writes what the command reads into a
folder, in which the command then runs.
"""

import gzip
import io
import json
import lzma
import os
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.torch
import torch

from nestruct.data import cache

DEEP = "[" * 100_000


class FileCase(NamedTuple):
    """Crafted files, and a command that reads them."""

    name: str
    words: list[str]
    write: Callable[[Path], None]


def cases(parser: Path) -> list[FileCase]:
    """All of them.

    Args:
        parser: The run of a parser.
    """
    found = [*_archives(), *_recipes(), *_caches(), *_vectors(), *_treebanks(parser)]
    assert len({case.name for case in found}) == len(found)
    return found


def _archives():
    run = {"config.toml": b"seed = 0\n", "metrics.jsonl": b'{"step": 1, "split": "train"}\n'}

    def member(name: str, content: bytes = b"", **more: Any) -> tuple[tarfile.TarInfo, bytes]:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        for key, value in more.items():
            setattr(info, key, value)
        return info, content

    def packed(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for info, content in members:
                tar.addfile(info, io.BytesIO(content))
        return out.getvalue()

    good = [member(f"run/{name}", content) for name, content in run.items()]
    link = {"type": tarfile.SYMTYPE, "linkname": "../outside/thesis.txt"}
    hard = {"type": tarfile.LNKTYPE, "linkname": "../outside/thesis.txt"}
    members: dict[str, list] = {
        "a path up": [*good, member("../outside/thesis.txt", b"gone")],
        "a path up inside": [*good, member("run/../../outside/thesis.txt", b"gone")],
        "an absolute path": [*good, member(f"{tempfile.gettempdir()}/config.toml", b"gone")],
        "a link": [*good, member("run/environment.json", **link)],
        "a link to a folder": [member("run", **(link | {"linkname": "../outside"})), *good],
        "a hard link": [*good, member("run/environment.json", **hard)],
        "a pipe": [*good, member("run/environment.json", type=tarfile.FIFOTYPE)],
        "a device": [*good, member("run/environment.json", type=tarfile.CHRTYPE, devmajor=1)],
        "twice": [*good, *good],
        "a file and a folder": [*good, member("run/config.toml/config.toml", b"a = 1")],
        "a long name": [member("a" * 5000 + "/config.toml", b"a = 1")],
        "many levels": [member("a/" * 500 + "config.toml", b"a = 1")],
        "a NUL": [*good, member("run/a", b"", pax_headers={"path": "run/config.toml\0x"})],
        "PAX path": [*good, member("a", b"x", pax_headers={"path": "../../outside/thesis.txt"})],
        "PAX size": [*good, member("a", b"x", pax_headers={"size": "99999999999999"})],
        "PAX size a word": [*good, member("a", b"x", pax_headers={"size": "x"})],
        "PAX sparse": [*good, member("a", b"x", pax_headers={"GNU.sparse.size": "999999999999"})],
        "PAX link": [*good, member("a", **link, pax_headers={"linkpath": "/etc/hostname"})],
        "a negative time": [*good, member("run/x", b"", mtime=-5)],
        "5,000 folders": [member(f"d{i}", type=tarfile.DIRTYPE) for i in range(5000)] + good,
        "no run": [member("readme.txt", b"hello")],
        "backslashes": [member("run\\..\\..\\config.toml", b"a = 1")],
        "deep JSON": [*good, member("run/environment.json", DEEP.encode())],
        "deep TOML": [member("run/config.toml", b"a = " + DEEP.encode()), good[1]],
    }
    for name, some in members.items():
        for suffix, pack in {"xz": lzma.compress, "gz": gzip.compress}.items():
            content = pack(packed(*some))
            yield _report(f"{name}, {suffix}", f"runs.tar.{suffix}", content)
    for suffix, pack in {
        "xz": lzma.compress,
        "gz": partial(gzip.compress, compresslevel=1),
    }.items():
        name = f"runs.tar.{suffix}"
        yield _report(f"a bomb, {suffix}", name, pack(bytes(2**24)) * 40)
        yield _report(f"random bytes, {suffix}", name, bytes(range(256)) * 40)
        yield _report(f"nothing, {suffix}", name, b"")
        yield _report(f"cut, {suffix}", name, pack(packed(*good))[:-20])
        yield _report(f"no tar, {suffix}", name, pack(b"hello" * 1000))
        yield _report(f"a tar that ends early, {suffix}", name, pack(packed(*good)[:700]))
    yield FileCase("an archive is a pipe", ["report", "runs.tar.xz", "--csv"], _pipe("runs.tar.xz"))
    for verb in (["train", "--resume"], ["evaluate"], ["load"]):
        yield FileCase(
            f"{verb[0]} an archive",
            [*verb, "runs.tar.xz"],
            partial(_write, name="runs.tar.xz", content=lzma.compress(packed(*good))),
        )


def _report(name: str, file: str, content: bytes) -> FileCase:
    words = ["report", file, "-o", "page.html", "--csv"]
    return FileCase(f"archive: {name}", words, partial(_write, name=file, content=content))


def _write(folder: Path, name: str, content: bytes | str) -> None:
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def plant_code(folder: Path) -> None:
    """A module in the current folder that does harm once it is imported, and a package for it."""
    harm = "from pathlib import Path\nPath('outside', 'thesis.txt').write_text('gone')\n"
    for name in ("evil.py", "outside/evil.py"):
        _write(folder, name, f"{harm}\nclass Evil: pass\n")
    _write(folder, "evil-1.0.dist-info/METADATA", "Name: evil\nVersion: 1.0\n")
    entry = "[nestruct.estimators]\nevil-entry = evil:Evil\n"
    _write(folder, "evil-1.0.dist-info/entry_points.txt", entry)


def _pipe(name: str) -> Callable[[Path], None]:
    return lambda folder: os.mkfifo(folder / name)


def _recipes():
    base = 'base = "graph-layout-tiny"\n'
    few = "[data]\nnum_train = 20\nnum_validation = 5\nnum_test = 5\n[training]\nmax_steps = 1\n"
    texts = {
        "its own base": 'base = "./own.toml"\n',
        "a base up": 'base = "../../../../etc/hostname.toml"\n',
        "an absolute base": 'base = "/etc/hostname"\n',
        "a base that is a folder": 'base = "./"\n',
        "a base that is a number": "base = 5\n",
        "no base": 'base = ""\n',
        "a base with a NUL": 'base = "a\\u0000/b.toml"\n',
        "a base with a control character": 'base = "\\u001b[2J"\n',
        "200,000 brackets": f"a = {DEEP}\n",
        "braces": f"a = {'{a=' * 50_000}\n",
        "20,000 dots": "a." * 20_000 + "a = 1\n",
        "a table of 20,000 dots": f"[{'a.' * 20_000}a]\n",
        "5,000 digits": f"{base}seed = {'9' * 5000}\n",
        "30 digits": f"{base}[optimizer]\nname = 'Adam'\nlr = {'9' * 30}\n",
        "1 MB": f"{base}title = '{'a' * 2**20}'\n",
        "a callable": f"{base}[model]\nname = 'os:system'\n",
        "a module beside it": f"{base}[estimator]\nname = 'evil:Evil'\n",
        "a module as data": f"{base}[data]\nname = 'evil:Evil'\n",
        "a module as structure": f"{base}[structure]\nname = 'evil:Evil'\n",
        "a module of many dots": f"{base}[model]\nname = '{'a.' * 99}a:B'\n",
        "a path": f"{base}[model]\nname = './evil.py:Evil'\n",
        "an absolute path": f"{base}[model]\nname = '/tmp/evil:Evil'\n",
        "a path up": f"{base}[model]\nname = '../outside/evil:Evil'\n",
        "a relative module": f"{base}[model]\nname = '.evil:Evil'\n",
        "a wide module": f"{base}[model]\nname = '\uff45vil:Evil'\n",
        "a name from right to left": f"{base}[model]\nname = 'evil:\u202eEvil'\n",
        "a name of escapes": f'{base}[model]\nname = "evil:\\u001b[2J"\n',
        "a long name": f"{base}[model]\nname = '{'a' * 100_000}:Evil'\n",
        "an optimizer of a module": f"{base}[optimizer]\nname = 'evil:Evil'\n",
        "an entry point beside it": f"{base}[estimator]\nname = 'evil-entry'\n",
        "code of words": f"{base}code = 5\n[estimator]\nname = 'evil:Evil'\n",
        "code of lists": f"{base}[code]\nestimator = [1]\n[estimator]\nname = 'evil-entry'\n",
        "a callable option": f"{base}[model]\nstructure = 'os:system'\n",
        "a hidden option": f"{base}[optimizer]\nname = 'Adam'\nparams = []\n",
        "tables are numbers": "data = 1\nmodel = 2\nestimator = 3\noptimizer = 4\ntraining = 5\n",
        "tables are lists": f"{base}data = []\n",
        "arrays of tables": f"{base}[[data]]\n[[data]]\n",
        "names are numbers": f"{base}[estimator]\nname = 5\n",
        "names are lists": f"{base}[estimator]\nname = ['NES']\n",
        "names are tables": f"{base}[estimator.name]\na = 1\n",
        "NaN": f"{base}[estimator]\nsigma = nan\n",
        "infinity": f"{base}[estimator]\nsigma = inf\n",
        "10**18 members": f"{base}[estimator]\npopulation_size = 1000000000000000000\n",
        "10**12 hidden units": f"{base}[model]\nhidden_size = 1000000000000\n",
        "10**15 examples": f"{base}[data]\nnum_train = 1000000000000000\n",
        "10**9 nodes": f"{base}[data]\nnum_nodes = 1000000000\n",
        "10**18 steps between": f"{base}{few}eval_interval = 1000000000000000000\n",
        "a date": f"{base}seed = 2026-01-01\n",
        "a date as an option": f"{base}[optimizer]\nname = 'Adam'\nlr = 2026-01-01\n",
        "dates in a list": f"{base}[optimizer]\nname = 'Adam'\nbetas = [2026-01-01, 12:00:00]\n",
        "tables in a list": f"{base}[optimizer]\nname = 'Adam'\nbetas = [{{a = 1}}, [[]]]\n",
        "an empty key": f'{base}"" = 1\n',
        "a strange key": f'{base}"a.b\\u001b[2J" = 1\n',
        "a strange option": f'{base}[data]\n"a\\nb" = 1\n',
        "a device of words": f'{base}device = "rm -rf /"\n',
        "a title of escapes": f'{base}title = "\\u001b]0;x\\u0007"\n{few}',
        "binary": "\0\1\2",
        "a lone surrogate": "title = '\ud800'",
        "nothing": "",
        "a scheduler of words": f"{base}[scheduler]\nname = 'StepLR'\nstep_size = 'x'\n",
        "a scheduler of 0 steps": f"{base}{few}[scheduler]\nname = 'StepLR'\nstep_size = 0\n",
        "treebanks of a pipe": (
            "[data]\nname = 'treebanks'\nsource = './bank'\nembeddings = 'none'\n"
            "[model]\nname = 'parser'\n[estimator]\nname = 'Supervised'\n"
            "[optimizer]\nname = 'Adam'\n[training]\nmax_steps = 1\n"
        ),
    }
    for name, text in texts.items():
        for verb in (["train", "./own.toml", "--run", "new"], ["check-gradient", "./own.toml"]):
            if verb[0] == "check-gradient" and len(text) % 3:  # a third of them will do
                continue

            def write(folder: Path, text=text) -> None:
                plant_code(folder)
                (folder / "bank").mkdir()
                os.mkfifo(folder / "bank" / "train.conllu")
                _write(folder, "own.toml", text)

            yield FileCase(f"recipe: {name}, {verb[0]}", verb, write)
    for name, write in {
        "a pipe": _pipe("own.toml"),
        "a folder": lambda folder: (folder / "own.toml").mkdir(),
        "itself": lambda folder: (folder / "own.toml").symlink_to("own.toml"),
        "1 TB": lambda folder: (
            _write(folder, "own.toml", ""),
            os.truncate(folder / "own.toml", 2**40),
        ),
    }.items():
        for verb in (["train", "./own.toml", "--run", "new"], ["recipes", "./own.toml"]):
            yield FileCase(f"recipe: {name}, {verb[0]}", verb, write)

    def chain(folder: Path) -> None:
        for number in range(20):
            _write(folder, f"r{number}.toml", f'base = "./r{number + 1}.toml"\n')
        _write(folder, "r20.toml", 'base = "graph-layout-tiny"\n')

    yield FileCase("recipe: twenty bases", ["train", "./r0.toml", "--run", "new"], chain)


CACHED = ["data.num_train=9990", "data.num_validation=5", "data.num_test=5", "data.num_nodes=3"]
CACHED += ["data.num_times=2", "model.num_rollout_steps=1"]
CACHED += ["training.max_steps=1", "training.batch_size=10"]


def _caches():
    """Files in the data cache, under the name of what a training looks for."""
    options = {"num_nodes": 3, "num_times": 2, "num_train": 9990, "num_validation": 5}
    options |= {"num_test": 5, "seed": 0}
    identity = json.dumps(["graph-layout", 1, options], sort_keys=True)
    name = f"cache/graph-layout-{cache.derive_key(*identity.encode()):016x}.safetensors"
    words = ["train", "graph-layout-tiny", "--run", "new", *CACHED]

    def tensors(**shapes: tuple) -> bytes:
        checksum = getattr(cache, "_checksum", lambda data: "")
        data = {key.replace("_", "."): torch.zeros(shape) for key, shape in shapes.items()}
        return safetensors.torch.save(data, {"identity": identity, "checksum": checksum(data)})

    right = {f"{s}_x": (n, 3, 2, 2) for s, n in (("train", 9990), ("validation", 5), ("test", 5))}
    right |= {f"{s}_z": (n, 3) for s, n in (("train", 9990), ("validation", 5), ("test", 5))}
    header = json.dumps(
        {"__metadata__": {"identity": identity}}
        | {"train.x": {"dtype": "F32", "shape": [2**31, 2**31], "data_offsets": [0, 16]}}
    ).encode()
    contents = {
        "no tensors": tensors(),
        "a few tensors": tensors(train_x=(10, 3, 2, 2)),
        "other shapes": tensors(**(right | {"train_x": (9990, 7)})),
        "other sizes": tensors(**(right | {"train_z": (3, 3)})),
        "no examples": tensors(**(right | {"test_x": (0, 3, 2, 2)})),
        "scalars": tensors(**dict.fromkeys(right, ())),
        "nothing": b"",
        "a header that lies": struct.pack("<Q", len(header)) + header + bytes(16),
        "deep": struct.pack("<Q", len(DEEP)) + DEEP.encode(),
    }
    for what, content in contents.items():
        yield FileCase(f"cache: {what}", words, partial(_write, name=name, content=content))

    def make(folder: Path, how: Callable[[Path], Any]) -> None:
        (folder / "cache").mkdir()
        how(folder / name)

    for what, how in {
        "a pipe": os.mkfifo,
        "a folder": Path.mkdir,
        "itself": lambda path: path.symlink_to(path),
        "a link": lambda path: path.symlink_to("../outside/thesis.txt"),
    }.items():
        yield FileCase(f"cache: {what}", words, partial(make, how=how))


def _vectors():
    recipe = (
        'base = "parser-tiny"\n[data]\nname = "treebanks"\nsource = "./bank"\n'
        'embeddings = "./vectors"\n[training]\nmax_epochs = 1\nbatch_size = 2\n'
    )
    bank = b"1\tdog\t_\t_\t_\t_\t0\troot\t_\t_\n\n" * 20

    def npz(**arrays: Any) -> bytes:
        out = io.BytesIO()
        np.savez_compressed(out, **arrays)
        return out.getvalue()

    def lying() -> bytes:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as packed:
            head = "{'descr': '<f4', 'fortran_order': False, 'shape': (100000000000, 300), }"
            array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode()
            packed.writestr("vectors.npy", array)
            packed.writestr("words.npy", array)
        return out.getvalue()

    contents = {
        "nothing": b"",
        "one long line": b"dog " + b"1 " * 2**21,
        "gzip of one long line": gzip.compress(b"dog " + b"1" * 2**25, 1),
        "gzip of many lines": gzip.compress(b"cat 1\n" * 2**22, 1) * 8,
        "a header of 10**18": b"999999999999999999 999999999999999999\n",
        "a header of 10**9 columns": b"1 1000000000\ndog 1\n",
        "words for numbers": b"dog x y z\n",
        "NaN": b"dog nan\n",
        "binary": bytes(range(256)),
        "half a gzip": gzip.compress(b"dog 1\n" * 1000)[:30],
        "no arrays": npz(),
        "objects": npz(words=np.array(["dog"], dtype=object), vectors=np.ones((1, 2))),
        "other shapes": npz(words=np.array(["dog"]), vectors=np.ones((5, 2, 3))),
        "scalars": npz(words=np.array("dog"), vectors=np.array(1.0)),
        "no columns": npz(words=np.array(["dog"]), vectors=np.ones((1, 0))),
        "shapes that lie": lying(),
        "a zip of nothing": b"PK\x03\x04" + bytes(50),
    }
    words = ["train", "./own.toml", "--run", "new"]
    for what, content in contents.items():

        def write(folder: Path, content=content) -> None:
            _write(folder, "own.toml", recipe)
            _write(folder, "bank/train.conllu", bank)
            _write(folder, "vectors", content)

        yield FileCase(f"vectors: {what}", words, write)

    def pipe(folder: Path) -> None:
        write(folder)
        (folder / "vectors").unlink()
        os.mkfifo(folder / "vectors")

    yield FileCase("vectors: a pipe", words, pipe)


def _treebanks(parser: Path):
    good = b"1\tdog\t_\t_\t_\t_\t0\troot\t_\t_\n\n"
    long = (
        b"".join(b"%d\ta\t_\t_\t_\t_\t%d\tdep\t_\t_\n" % (k, k - 1) for k in range(1, 1500)) + b"\n"
    )
    contents = {
        "nothing": b"",
        "one long line": b"1\t" + b"a" * 2**24,
        "gzip of one long line": gzip.compress(b"1\t" + bytes(2**24), 1)
        + gzip.compress(bytes(2**24)) * 8,
        "gzip of comments": gzip.compress(b"# a\n" * 2**21, 1),
        "gzip of blank lines": gzip.compress(b"\n" * 2**22, 1),
        "1,499 words": good + long + good,
        "binary": bytes(range(256)) * 100,
        "half a gzip": gzip.compress(good * 100)[:-9],
        "a cycle": good.replace(b"\t0\t", b"\t1\t"),
        "5,000 digits": good.replace(b"\t0\t", b"\t" + b"9" * 5000 + b"\t"),
        "a NUL": good.replace(b"dog", b"d\0g"),
        "a carriage return": good.replace(b"dog", b"d\rg"),
        "no UTF-8": good.replace(b"dog", b"d\xffg"),
        "escapes": b"1\x1b[2J\tdog\t_\t_\t_\t_\t0\troot\t_\t_\n\n",
        "UTF-16": good.decode().encode("utf-16"),
    }
    for what, content in contents.items():
        for verb in (
            ["parse", str(parser), "in.conllu", "-o", "out.conllu"],
            ["parse", str(parser), "in.conllu", "--skip-bad"],
            ["evaluate", str(parser), "--file", "in.conllu"],
            ["evaluate", str(parser), "--file", "in.conllu", "--skip-bad"],
        ):
            name = f"treebank: {what}, {verb[0]} {verb[-1]}"
            yield FileCase(name, verb, partial(_write, name="in.conllu", content=content))
