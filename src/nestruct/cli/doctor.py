"""``nestruct doctor``: what is installed, what works, which data are found."""

import importlib.util
import os
import platform
import shutil
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import torch

from nestruct import NES, Categorical, SpanningTree, StructuredVAE, __version__
from nestruct.cli.data import data_lines, data_place
from nestruct.cli.queue import cores
from nestruct.data.cache import folder
from nestruct.models import mlp
from nestruct.noise import forked_generators
from nestruct.training.recipes.names import entry_points
from nestruct.training.recipes.parts import LISTED

PACKAGES = ("torch", "numpy", "numba", "jaxtyping", "rich", "safetensors", "tomli-w", "tyro")
EXTRAS = {
    "matplotlib": "plots",
    "ortools": "solvers",
    "pooch": "data",
    "scipy": "solvers",
    "tensorboard": "tensorboard",
}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_WIDTH = 14


def doctor() -> int:
    """Say what is installed, which devices and data sets are found, and whether a step works.

    The exit status is 0 unless something that is needed is broken: data sets, extras and a GPU are
    not needed.
    """
    _title(f"nestruct {__version__}")
    _line("python", f"{platform.python_version()}, {platform.system()} {platform.machine()}")
    broken = [name for name in PACKAGES if not _version(name)]
    _title("devices")
    _line("cpu", _cpu())
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > cores():
        _line("", f"busy (load average {os.getloadavg()[0]:.1f}): threads may wait for each other;")
        _line("", "set OMP_NUM_THREADS=1 or OMP_WAIT_POLICY=passive if training is slow")
    _line("cuda", _cuda())
    _line("triton", _triton())
    _line("torch.compile", _compiler())
    if torch.cuda.is_available() and not _installed("triton"):
        broken.append("triton, which draws directions on CUDA")
    _title("extras (not needed)")
    for name, extra in EXTRAS.items():
        _line(name, _installed(name) or f'missing: pip install "nestruct[{extra}]"')
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    _line("chromium", browser or "missing: only the tests of the report page use it")
    for line in _entry_points():
        _line("registered", line)
    _title("data sets (not needed)")
    for line in (data_place(), *data_lines()):
        print(f"  {line}")
    _line("cache", _cache())
    _title("does it work?")
    for name, check in (("a solver", _solve), ("a step of NES", _step)):
        start = time.perf_counter()
        try:
            check()
        except Exception as error:
            broken.append(name)
            _line(name, f"BROKEN: {type(error).__name__}: {error}")
        else:
            took = time.perf_counter() - start
            _line(name, f"works (the first in a process: {took:.1f} s)")
    if broken:
        print(f"\nBroken: {', '.join(broken)}.")
        return 1
    print("\nAll that is needed works.")
    return 0


def _title(text: str) -> None:
    print(text)


def _line(name: str, text: str) -> None:
    print(f"  {name:{_WIDTH}} {text}")


def _version(package: str) -> bool:
    """Prints a needed package's version; whether it can be imported."""
    module = package.replace("-", "_")
    try:
        importlib.import_module(module)
        version = metadata.version(package)
    except Exception as error:  # whatever an import may raise
        _line(package, f"BROKEN: {type(error).__name__}: {error}")
        return False
    _line(package, version)
    return True


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _entry_points() -> Iterator[str]:
    """What installed packages add to recipes; nothing of it is imported."""
    for plural, key in LISTED.items():
        for name, entry in entry_points(key).items():
            package = "?" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
            yield f"{name} among the {plural}, by {package}"


def _cpu() -> str:
    text = f"{cores()} cores, {torch.get_num_threads()} threads"
    if hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        page = os.sysconf("SC_PAGE_SIZE")
        total, free = (os.sysconf(f"SC_{kind}_PAGES") * page for kind in ("PHYS", "AVPHYS"))
        text += f", {_size(total)} of memory, {_size(free)} free"
    return text


def _cuda() -> str:
    if torch.version.cuda is None:
        return "none: this torch was built without it"
    if not torch.cuda.is_available():
        return f"none found (torch was built for CUDA {torch.version.cuda})"
    texts = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        texts.append(f"{name}, {_size(total)}, {_size(free)} free")
    return "; ".join(texts)


def _triton() -> str:
    return _installed("triton") or "not installed (needed on CUDA only, whose torch brings it)"


def _compiler() -> str:
    """Whether torch.compile has what it needs; nothing is compiled."""
    if torch.cuda.is_available():
        usable = importlib.util.find_spec("triton") is not None
        return "usable" if usable else "not usable: triton is missing"
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "g++"))), None)
    if compiler is None:
        return "not usable: there is no C++ compiler (only model.fused on a GPU asks for it)"
    return f"usable ({Path(compiler).name} is there; only model.fused on a GPU asks for it)"


def _cache() -> str:
    place = folder()
    files = [path for path in place.glob("*") if path.is_file()] if place.is_dir() else []
    size = _size(sum(path.stat().st_size for path in files))
    nearest = next(parent for parent in (place, *place.parents) if parent.exists())
    writable = os.access(nearest, os.W_OK)
    note = "" if writable else "; not writable, so data are generated anew each time"
    return f"{place}, {len(files)} files, {size}{note}"


def _solve() -> None:
    tree = SpanningTree(4)
    if not tree.contains(tree.argmax(torch.arange(6.0))):
        raise RuntimeError("what the solver returned is not a tree")


def _step() -> None:
    with forked_generators():
        model = StructuredVAE(mlp(4, 3), mlp(3, 4), Categorical(3))
    report = NES(sigma=0.1, population_size=4).backward(model, torch.ones(2, 4), seed=0)
    if not report.loss.isfinite():
        raise RuntimeError("the loss is not finite")


def _size(num_bytes: float) -> str:
    for unit in ("bytes", "KB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} GB"


__all__ = ["doctor"]
