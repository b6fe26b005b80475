"""Names in recipes that are not ours: ``module:Class``, and entry points of installed packages.

To import a module is to run its code, and a recipe or a run folder may come from anyone. So code
that is not ours is imported only where somebody said so: by typing its name on the command line, or
by ``--trust`` (``trust=True``). Of entry points nothing but the one that is named is loaded.
"""

import hashlib
import importlib
import inspect
import itertools
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from nestruct.checks import unknown_name
from nestruct.data.hooks import DataSet
from nestruct.errors import InputError, first_line
from nestruct.estimators import Estimator
from nestruct.structures import Structure

Trust = bool | Collection[str]
"""Which names may be imported: all of them, none, or those that are listed."""

GROUPS = {  # of entry points
    "estimator": "nestruct.estimators",
    "model": "nestruct.models",
    "data": "nestruct.data",
    "structure": "nestruct.structures",
}
WANTED: dict[str, tuple[type, str]] = {
    "estimator": (Estimator, "an Estimator: derive it from nestruct.estimators.Estimator"),
    "model": (nn.Module, "a torch module: derive it from nestruct.StructuredModel or nn.Module"),
    "data": (DataSet, "a data set: give it a method splits()"),
    "structure": (
        Structure,
        "a Structure: say BlackBox(...), or derive it from nestruct.Structure",
    ),
}
WORDS = {"data": "data set"}  # what a table is about, where that is not its name
_HERE = str(Path(__file__).parents[2])  # our package
_INSTALLED = re.compile(r"(site|dist)-packages")
_NOT_THEIRS = re.compile(
    "|".join(  # files that a mistake of somebody's code may pass through
        [_INSTALLED.pattern, "^<", *map(re.escape, (os.path.dirname(os.__file__), _HERE))]
    )
)


def is_own(name: str) -> bool:
    """True if a name is written as ``module:Class``."""
    return ":" in name


def is_trusted(name: str, trust: Trust) -> bool:
    """True if what is called so may be imported.

    Example:
        >>> is_trusted("imle:IMLE", True), is_trusted("imle:IMLE", ["os:system"])
        (True, False)
    """
    return trust if isinstance(trust, bool) else name in trust


def find_own(key: str, name: str, trust: Trust) -> tuple[Callable[..., Any], dict[str, str]] | None:
    """The class or function of a name, and the module and version that it comes from.

    Args:
        key: The table of the recipe: ``estimator``, ``model``, ``data`` or ``structure``.
        name: ``module:Class``, or that of an entry point.
        trust: Which names may be imported.

    Returns:
        None where the name is of neither kind.

    Raises:
        InputError: It must not be imported, cannot be, or is something else than the table needs.
    """
    value, source = name, None
    if not is_own(name):
        entry = entry_points(key).get(name)
        if entry is None:
            return None
        value, source = entry.value.replace(" ", ""), entry.dist
    module, attribute = _split(key, value)
    if not is_trusted(name, trust):
        raise InputError(
            f"{_what(key, name)} would run the code of the module {module}, and this name "
            "stands in a file, which may come from anyone: say --trust (in Python trust=True) "
            "if you trust both."
        )
    # As `python -m` does. It stays there: what is trusted may import its neighbours later.
    if not {os.getcwd(), ""} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    found = _attribute(key, name, _import(key, name, module), attribute)
    if not fits(key, found):
        raise InputError(f"{_what(key, name)} is not {WANTED[key][1]}.")
    if isinstance(found, Structure):
        ready = found
        found = lambda: ready  # noqa: E731
        found.__doc__ = f"{ready!r}."
    return found, {"module": module, "version": _version(sys.modules[module], source)}


def entry_points(key: str) -> dict[str, metadata.EntryPoint]:
    """What packages have registered for a table, by name; nothing is imported.

    Args:
        key: ``estimator``, ``model``, ``data`` or ``structure``.
    """
    found: dict[str, metadata.EntryPoint] = {}
    for entry in metadata.entry_points(group=GROUPS[key]):
        found.setdefault(entry.name, entry)
    return found


def fits(key: str, found: Any) -> bool:
    """True if an object can be what a table needs: its class, a function, a ready structure."""
    if not inspect.isclass(found):
        ready = key == "structure" and isinstance(found, Structure)
        return ready or inspect.isfunction(found)
    return hasattr(found, "splits") if key == "data" else issubclass(found, WANTED[key][0])


def describe_failure(error: BaseException) -> str:
    """What went wrong in somebody's code, and in which line of it."""
    if isinstance(error, SyntaxError) and error.filename:
        return (
            f"{type(error).__name__}: {error.msg} ({_short(error.filename)}, line {error.lineno})"
        )
    said = f"{type(error).__name__}: {first_line(error)}".rstrip(".")
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _NOT_THEIRS.search(frame.filename)] or frames
    return f"{said} ({_short(own[-1].filename)}, line {own[-1].lineno})" if own else said


def _split(key: str, name: str) -> tuple[str, str]:
    module, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")]):
        raise InputError(
            f"{_what(key, name)} is not written as module:Class, like problem:Packing for the "
            "class Packing of problem.py in the current folder."
        )
    return module, attribute


def _import(key: str, name: str, module: str) -> ModuleType:
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        top = list(itertools.accumulate(module.split("."), "{}.{}".format))
        if error.name in top:
            raise InputError(
                f"{_what(key, name)}: there is no module {error.name}, neither in the current "
                "folder nor among what is installed; go to the folder where it lies, or add that "
                "to PYTHONPATH."
            ) from None
        failure: BaseException = error
    except (Exception, SystemExit) as error:
        failure = error
    raise InputError(
        f"{_what(key, name)}: {module} cannot be imported: {describe_failure(failure)}."
    ) from failure


def _attribute(key: str, name: str, module: ModuleType, attribute: str) -> Any:
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            own = {n: v for n, v in vars(module).items() if _is_of(v, module) and n[0] != "_"}
            fitting = [n for n, value in own.items() if fits(key, value)]
            if not fitting:
                raise InputError(
                    f"{_what(key, name)}: {module.__name__} has no {part}, nor anything that could "
                    "be one."
                )
            raise InputError(
                unknown_name(f"{_what(key, name)}: in {module.__name__}", part, fitting)
            )
        found = getattr(found, part)
    return found


def _is_of(value: Any, module: ModuleType) -> bool:
    return getattr(value, "__module__", None) == module.__name__


def _what(key: str, name: str) -> str:
    return f"The {WORDS.get(key, key)} {name!r}"


def _version(module: ModuleType, package: metadata.Distribution | None) -> str:
    """The version of the package that a module belongs to; of a loose file its SHA-256."""
    file = getattr(module, "__file__", None)
    if package is None and (file is None or _INSTALLED.search(file)):
        owners = metadata.packages_distributions().get(module.__name__.partition(".")[0], ())
        package = metadata.distribution(owners[0]) if owners else None
    if package is not None:
        return f"{package.name} {package.version}"
    if file is None:
        return f"Python {sys.version_info.major}.{sys.version_info.minor}"
    try:
        return f"sha256 {hashlib.sha256(Path(file).read_bytes()).hexdigest()}"
    except OSError:
        return "unknown"


def _short(file: str) -> str:
    """A file as one would name it here."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
