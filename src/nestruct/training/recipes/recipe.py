"""Recipes: one TOML file says what is trained, how, and for how long.

Tables ``data``, ``model``, ``estimator``, ``optimizer``, ``scheduler`` and ``structure`` have a
``name`` and the options of what it names (`nestruct.training.recipes.parts`); ``training`` has
those of `nestruct.training.Training`. A run also writes ``code``: the module and version of what is
not ours. ``base = "table1-nes"`` at the top takes everything that a file does not say from another
recipe. Everything is checked before anything is built or written.
"""

import dataclasses
import logging
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from nestruct.checks import check_name, check_value
from nestruct.errors import InputError
from nestruct.training.options import Training
from nestruct.training.recipes.names import GROUPS, Trust, entry_points, is_own
from nestruct.training.recipes.parts import PARTS, RecipePart, find_part
from nestruct.untrusted import MOST_TOML_BYTES, parse_toml, read_file
from nestruct.wording import printable

log = logging.getLogger("nestruct")

REQUIRED = ("data", "model", "estimator", "optimizer")
TABLES = (*PARTS, "training")
TOP: dict[str, type] = {"recipe": str, "title": str, "seed": int, "device": str}
MOST_BASES = 8  # one upon the other


@dataclass(frozen=True)
class Section:
    """A table of a recipe: what it names, and the options, resolved."""

    name: str
    options: dict[str, Any]
    part: RecipePart = field(compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A resolved recipe: every option is there, known, and of the right type."""

    recipe: str
    title: str
    seed: int
    device: str
    data: Section
    structure: Section | None
    model: Section
    estimator: Section
    optimizer: Section
    scheduler: Section | None
    training: Training

    @classmethod
    def from_tables(cls, tables: dict[str, Any], *, trust: Trust = False) -> "Recipe":
        """Checks and resolves what a TOML file said.

        Args:
            tables: What it said.
            trust: Which names of the form ``module:Class`` may be imported: all, none, or these.
        """
        for key in tables:
            check_name("A recipe's key", key, [*TOP, *TABLES, "code"])
        for key in [*REQUIRED, "training"]:
            if key not in tables:
                raise InputError(f"The recipe has no table [{key}].")
        top = {"recipe": "", "title": "", "seed": 0, "device": "auto"}
        for key, kind in TOP.items():
            top[key] = check_value(key, tables.get(key, top[key]), kind)
        training = Training.from_options(_table(tables, "training"))
        tables = _structure_apart(tables)
        sections = {
            key: _section(key, tables, training, trust) if key in tables else None for key in PARTS
        }
        top["device"] = resolve_device(str(top["device"]))
        return cls(**top, **sections, training=training)  # type: ignore[arg-type]

    def to_config(self) -> dict[str, Any]:
        """What ``config.toml`` says."""
        config: dict[str, Any] = {key: getattr(self, key) for key in TOP}
        for key in PARTS:
            section = getattr(self, key)
            if section is not None:
                config[key] = {"name": section.name, **section.options}
        config["training"] = dataclasses.asdict(self.training)
        if self.code:
            config["code"] = self.code
        for key in TABLES:
            if key in config:  # what TOML has no word for
                config[key] = {k: "none" if v is None else v for k, v in config[key].items()}
        return config

    @property
    def code(self) -> dict[str, dict[str, str]]:
        """The module and version of every part that is not ours, by table."""
        sections = {key: getattr(self, key) for key in PARTS}
        return {
            key: dict(section.part.origin)
            for key, section in sections.items()
            if section is not None and section.part.origin
        }

    def warn_of_other_code(self, config: dict[str, Any]) -> None:
        """Says which parts are not those that a run's ``config.toml`` speaks of."""
        changed = {}  # parts often share a module
        for key, now in self.code.items():
            was = _recorded(config, key)
            if was and was != now:
                changed[now["module"]] = f"{_came_from(was)}, now {_came_from(now)}"
        for module, how in changed.items():
            log.warning(
                "%s is not as it was when this run was made (%s): it may give other results.",
                *(module, how),
            )


def recipe_names() -> list[str]:
    """The recipes that come with nestruct."""
    return sorted(file.name[: -len(".toml")] for file in _shipped() if file.name.endswith(".toml"))


def recipe_text(recipe: str) -> str:
    """A recipe as it is written: by name, or from a TOML file."""
    if not _is_file(recipe):
        check_name("The recipe", recipe, recipe_names())
        file = resources.files("nestruct").joinpath("recipes", f"{recipe}.toml")
        return file.read_text(encoding="utf-8")
    try:
        return read_file(recipe, MOST_TOML_BYTES).decode()
    except OSError as error:
        raise InputError(f"The recipe file {recipe} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise InputError(f"The recipe file {recipe} cannot be read: {error}.") from None


def read_recipe(recipe: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The tables of a recipe, by name or from a TOML file, with overrides ``key=value`` applied.

    What the recipe's ``base`` says is there too, so there is no such key in the answer.
    """
    tables = {"recipe": Path(recipe).stem, **_with_base(recipe, ())}
    # Names first: another name drops what belonged to the one before.
    for override in sorted(overrides, key=lambda override: ".name=" not in override):
        apply_override(tables, override)
    return tables


def typed_names(overrides: Iterable[str]) -> frozenset[str]:
    """The names that overrides say: whoever types one trusts it.

    Example:
        >>> typed_names(["estimator.name=imle:IMLE", "estimator.strength=2"])
        frozenset({'imle:IMLE'})
    """
    pairs = [override.partition("=") for override in overrides]
    naming = (".name", "model.structure")
    values = [parse_value(text) for key, _, text in pairs if key.endswith(naming)]
    return frozenset(value for value in values if isinstance(value, str))


def names_in(tables: dict[str, Any]) -> frozenset[str]:
    """The names of code that is not ours that a recipe or a configuration says."""
    found = [(key, table) for key, table in tables.items() if isinstance(table, dict)]
    named = [(key, table.get("name")) for key, table in found if key in GROUPS]
    named += [("structure", table.get("structure")) for _, table in found]
    return frozenset(
        name
        for key, name in named
        if isinstance(name, str) and (is_own(name) or name in entry_points(key))
    )


def apply_override(tables: dict[str, Any], override: str) -> None:
    """Sets ``seed=1`` or ``estimator.sigma=0.1``.

    Another ``name`` in a table drops the options that belonged to the one before; ``none`` as a
    name drops the table (``scheduler.name=none``).
    """
    key, equals, text = override.partition("=")
    if not equals:
        raise InputError(f"An override is key=value, like estimator.sigma=0.1; got {override!r}.")
    table, dot, option = key.partition(".")
    if not dot:
        if key in TABLES:
            raise InputError(f"{key} is a table: set its options, like {key}.OPTION={text}.")
        owners = [name for name in TABLES if key in tables.get(name, {})]
        if owners and key not in TOP:
            raise InputError(f"{key} is an option of a table: say {owners[0]}.{key}={text}.")
        check_name("A recipe's key", key, TOP)
        tables[key] = parse_value(text) if TOP[key] is not str else text
        return
    check_name("A recipe's table", table, TABLES)
    values = _table(tables, table)
    value = parse_value(text)
    if option == "name" and values.get("name") != value:
        values.clear()
    if option == "name" and value == "none":
        del tables[table]
    else:
        values[option] = value


def parse_value(text: str) -> Any:
    """A value as TOML writes it, or a number as Python does; any other word is a string.

    Example:
        >>> parse_value("0.1"), parse_value("true"), parse_value("[1, 2]"), parse_value("vmap")
        (0.1, True, [1, 2], 'vmap')
        >>> parse_value(".1"), parse_value("1."), parse_value("1.e-3")
        (0.1, 1.0, 0.001)
    """
    try:
        values = parse_toml(f"value = {text}")
    except ValueError:
        return float(text) if _POINTED.fullmatch(text) else text
    return values["value"] if len(values) == 1 else text


# A number that begins or ends with its point, which TOML does not know.
_POINTED = re.compile(r"[+-]?(\d+\.|\.\d+)([eE][+-]?\d+)?")


def resolve_device(device: str) -> str:
    """``auto`` is the GPU where there is one; a device that cannot be had is refused."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise InputError(f"device must be auto, cpu, cuda or cuda:N, got {device!r}.") from None
    if kind not in ("cpu", "cuda"):
        raise InputError(f"device must be auto, cpu, cuda or cuda:N, got {device!r}.")
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device is {device!r}, but torch finds no GPU here; say device=cpu.")
    return device


def _with_base(recipe: str, above: tuple[str, ...]) -> dict[str, Any]:
    """The tables of a recipe upon those of its base; `above` are the recipes that led here."""
    if recipe in above:
        raise InputError(f"The base of a recipe leads back to it: {' -> '.join([*above, recipe])}.")
    if len(above) > MOST_BASES:
        chain = " -> ".join(above)
        raise InputError(f"More than {MOST_BASES} recipes are one upon the other: {chain}.")
    text = recipe_text(recipe)
    try:
        tables = parse_toml(text)
    except ValueError as error:
        raise InputError(f"The recipe {recipe} cannot be read: {error}.") from None
    if "base" not in tables:
        return tables
    base = _with_base(_place(recipe, tables.pop("base")), (*above, recipe))
    base.pop("recipe", None)  # what the base is called
    for key, value in tables.items():
        if key not in TABLES:
            base[key] = value
            continue
        options = _table(tables, key)
        before = _table(base, key)
        if options.get("name", before.get("name")) != before.get("name"):
            before.clear()
        before.update(options)
        if options.get("name") == "none":
            del base[key]
    return base


def _place(recipe: str, base: Any) -> str:
    """A recipe's base as `recipe_text` takes it: a file is looked for beside the recipe."""
    if not isinstance(base, str) or not base or Path(base).is_absolute():
        raise InputError(
            f"The recipe {recipe}: base is the name of a recipe that comes with nestruct, or a "
            f"file's path relative to this one; got {base!r}."
        )
    return os.path.normpath(Path(recipe).parent / base) if _is_file(base) else base


def _section(key: str, tables: dict[str, Any], training: Training, trust: Trust) -> Section:
    options = dict(_table(tables, key))
    name = options.pop("name", None)
    if name is None:
        raise InputError(f"The table [{key}] has no name; there are: {', '.join(PARTS[key])}.")
    try:
        part = find_part(key, name, trust=trust)
    except InputError as error:
        was = _recorded(tables, key)
        if not was or not trust:
            raise
        raise InputError(
            f"{error} When the run was made, it came from {_came_from(was)}."
        ) from None
    if key == "model":
        part = _with_given(part, tables, options)
    if key == "scheduler":  # those that must know how long training is are told
        lengths = part.parameters().keys() & {"T_max", "total_steps"} - options.keys()
        if lengths and training.needs_epochs:
            raise InputError(
                f"scheduler.{min(lengths)} is missing: with training.max_epochs the recipe must "
                "give it, in steps."
            )
        options = dict.fromkeys(lengths, max(1, training.max_steps)) | options
    return Section(name, part.options(key, options), part)


def _structure_apart(tables: dict[str, Any]) -> dict[str, Any]:
    """Tables in which a structure that is not ours has its own: ``model.structure`` may name it."""
    model = _table(dict(tables), "model")
    name = model.get("structure")
    if not isinstance(name, str) or name in PARTS["structure"] or "structure" in tables:
        return tables
    if not is_own(name) and name not in entry_points("structure"):
        return tables
    rest = {option: value for option, value in model.items() if option != "structure"}
    return tables | {"model": rest, "structure": {"name": name}}


def _with_given(part: RecipePart, tables: dict[str, Any], options: dict[str, Any]) -> RecipePart:
    """A model that is told what others decide: its structure by a table, the rest by the data."""
    if "structure" in tables:
        if "structure" not in part.parameters():
            raise InputError("This model takes no structure: leave out the table [structure].")
        if "structure" in options:
            raise InputError("[structure] and model.structure say the same: leave one of them out.")
        part = dataclasses.replace(part, given=(*part.given, "structure"))
    more = part.needs(options) if part.origin else ()
    if "structure" in more:
        raise InputError("This model needs a structure: name one in the table [structure].")
    return dataclasses.replace(part, given=(*part.given, *more))


def _recorded(tables: dict[str, Any], key: str) -> dict[str, str]:
    """What a run has noted of the code of a part."""
    noted = _table(dict(tables), "code").get(key)
    if not isinstance(noted, dict):
        return {}
    return {name: value for name, value in noted.items() if isinstance(value, str)}


def _came_from(noted: dict[str, str]) -> str:
    version = noted.get("version", "unknown")
    if version.startswith("sha256 "):
        version = version[:20]
    return printable(f"{noted.get('module')}, {version}")


def _table(tables: dict[str, Any], key: str) -> dict[str, Any]:
    if not isinstance(tables.setdefault(key, {}), dict):
        raise InputError(f"{key} must be a table: write [{key}] and its options below.")
    return tables[key]


def _is_file(recipe: str) -> bool:
    return recipe.endswith(".toml") or "/" in recipe


def _shipped() -> list[Any]:
    return list(resources.files("nestruct").joinpath("recipes").iterdir())
