"""A disk that loses power: records what is done to files, and makes what may be left of it.

The rules are the weakest that POSIX promises. Content is safe once its file was synced, a name once
its folder was. Content that was not synced may be missing, cut anywhere, or zeros. Every change of
a name since the last sync of its folder (creation, rename, removal) may have happened or not, each
without the others.
"""

import contextlib
import itertools
import os
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Tree = dict[str, bytes | None]  # the path of each file and its content; None is a folder
Operation = tuple[str, tuple[Any, ...]]
LOSSES: dict[str, Callable[[bytes, bytes], bytes]] = {
    "dropped": lambda safe, live: safe,
    "torn": lambda safe, live: live[: (len(safe) + len(live) + 1) // 2],
    "short": lambda safe, live: live[:-1] if len(live) > len(safe) else live,
    "zeros": lambda safe, live: live[: len(safe)] + bytes(max(0, len(live) - len(safe))),
    "kept": lambda safe, live: live,
}
_NAMES = ("open", "close", "write", "fsync", "ftruncate", "replace", "mkdir", "rmdir", "unlink")


@dataclass(eq=False)
class File:
    safe: bytes = b""
    live: bytes = b""

    def is_safe(self) -> bool:
        return self.safe == self.live


@dataclass(eq=False)
class Folder:
    safe: dict[str, Any] = field(default_factory=dict)
    live: dict[str, Any] = field(default_factory=dict)
    changes: list[tuple[Any, ...]] = field(default_factory=list)  # that are not safe

    def change(self, *change: Any) -> None:
        _apply(self.live, change)
        self.changes.append(change)


def _apply(names: dict[str, Any], change: tuple[Any, ...]) -> None:
    kind, name, *more = change
    if kind == "add":
        names[name] = more[0]
    elif kind == "remove":
        names.pop(name, None)
    else:  # a rename: the new name leads to what was renamed, also if its creation is lost
        other, one = more
        if names.get(name) is one:
            del names[name]
        names[other] = one


class Disk:
    """What is on a disk, and what is only on its way there.

    Args:
        tree: What is there safely.
    """

    def __init__(self, tree: Tree) -> None:
        self.root = Folder()
        self._open: dict[int, File | Folder] = {}
        for path, content in sorted(tree.items()):
            where, name = self._find(path)
            made = Folder() if content is None else File(content, content)
            where.safe[name] = where.live[name] = made

    def do(self, operation: Operation) -> None:
        """Carries out a recorded operation."""
        kind, words = operation
        getattr(self, f"_{kind}")(*words)

    def tree(self) -> Tree:
        """What there is while the power is on."""
        return _walk(self.root, lambda folder: folder.live, lambda file: file.live)

    def losses(self) -> Iterator[Tree]:
        """All that a loss of power can leave now; some come more than once."""
        folders, files = self._unsafe()
        for subset in itertools.product(*(_subsets(folder.changes) for folder in folders)):
            names = {}
            for folder, changes in zip(folders, subset, strict=True):
                names[folder] = dict(folder.safe)
                for change in changes:
                    _apply(names[folder], change)
            for kinds in itertools.product(LOSSES, repeat=len(files)):
                content = {
                    file: LOSSES[kind](file.safe, file.live)
                    for file, kind in zip(files, kinds, strict=True)
                }
                yield _walk(
                    self.root,
                    lambda folder, names=names: names.get(folder, folder.live),
                    lambda file, content=content: content.get(file, file.live),
                )

    def loss(self, draw: random.Random) -> Tree:
        """One of them."""
        folders, files = self._unsafe()
        names = {folder: dict(folder.safe) for folder in folders}
        for folder in folders:
            for change in folder.changes:
                if draw.random() < 0.5:
                    _apply(names[folder], change)
        content = {file: draw.choice(list(LOSSES.values()))(file.safe, file.live) for file in files}
        return _walk(
            self.root,
            lambda folder: names.get(folder, folder.live),
            lambda file: content.get(file, file.live),
        )

    def _unsafe(self) -> tuple[list[Folder], list[File]]:
        """Folders and files that are not safe, also those that only lost changes lead to."""
        folders: list[Folder] = []
        files: list[File] = []
        seen: set[Any] = set()
        stack: list[Any] = [self.root]
        while stack:
            one = stack.pop()
            if one in seen:
                continue
            seen.add(one)
            if isinstance(one, File):
                files += [] if one.is_safe() else [one]
                continue
            folders += [one] if one.changes else []
            added = [change[-1] for change in one.changes if change[0] != "remove"]
            stack += [*one.safe.values(), *one.live.values(), *added]
        return folders, files

    def _find(self, path: str) -> tuple[Folder, str]:
        """The folder that a path is in, and its name there."""
        *above, name = path.split("/")
        where = self.root
        for part in above:
            where = where.live[part]
        return where, name

    def _get(self, path: str) -> Any:
        if path == ".":
            return self.root
        where, name = self._find(path)
        return where.live.get(name)

    # The operations.

    def _create(self, path: str) -> None:
        where, name = self._find(path)
        where.change("add", name, File())

    def _make(self, path: str) -> None:
        where, name = self._find(path)
        where.change("add", name, Folder())

    def _hold(self, handle: int, path: str) -> None:
        self._open[handle] = self._get(path)

    def _append(self, handle: int, content: bytes) -> None:
        file = self._open[handle]
        assert isinstance(file, File)
        file.live += content

    def _cut(self, handle: int, size: int) -> None:
        file = self._open[handle]
        assert isinstance(file, File)
        file.live = file.live[:size]

    def _sync(self, handle: int) -> None:
        one = self._open[handle]
        if isinstance(one, File):
            one.safe = one.live
        else:
            one.safe, one.changes = dict(one.live), []

    def _rename(self, old: str, new: str) -> None:
        (where, name), (there, other) = self._find(old), self._find(new)
        assert where is there, "a rename from one folder to another has other rules"
        where.change("rename", name, other, where.live[name])

    def _remove(self, path: str) -> None:
        where, name = self._find(path)
        where.change("remove", name)


def _walk(folder: Folder, names: Callable, content: Callable, prefix: str = "") -> Tree:
    tree: Tree = {}
    for name, one in names(folder).items():
        if isinstance(one, Folder):
            tree[f"{prefix}{name}"] = None
            tree |= _walk(one, names, content, f"{prefix}{name}/")
        else:
            tree[f"{prefix}{name}"] = content(one)
    return tree


def _subsets(changes: list[Any]) -> Iterable[tuple[Any, ...]]:
    for size in range(len(changes) + 1):
        yield from itertools.combinations(changes, size)


@contextlib.contextmanager
def record(root: Path) -> Iterator[list[Operation]]:
    """Records what this process does to the files below a folder, by the functions of `os`."""
    operations: list[Operation] = []
    real = {name: getattr(os, name) for name in _NAMES}
    places: dict[int, str] = {}  # of open descriptors
    handles: dict[int, int] = {}
    count = itertools.count()

    def inside(path: Any, dir_fd: int | None = None) -> str | None:
        if dir_fd is not None:
            return f"{places[dir_fd]}/{path}" if dir_fd in places else None
        relative = os.path.relpath(os.fspath(path), root)
        return None if relative.startswith("..") else relative

    def note(*words: Any) -> None:
        operations.append((words[0], words[1:]))

    def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        where = inside(path, dir_fd)
        there = where is not None and os.path.lexists(root / where)
        descriptor = real["open"](path, flags, mode, dir_fd=dir_fd)
        if where is not None:
            if not there:
                note("create", where)
            places[descriptor], handles[descriptor] = where, next(count)
            note("hold", handles[descriptor], where)
            if flags & os.O_TRUNC:
                note("cut", handles[descriptor], 0)
        return descriptor

    def close(descriptor: int) -> None:
        places.pop(descriptor, None)
        real["close"](descriptor)

    def write(descriptor: int, content: Any) -> int:
        size = real["write"](descriptor, content)
        if descriptor in places:
            note("append", handles[descriptor], bytes(content[:size]))
        return size

    def fsync(descriptor: int) -> None:
        real["fsync"](descriptor)
        if descriptor in places:
            note("sync", handles[descriptor])

    def ftruncate(descriptor: int, size: int) -> None:
        real["ftruncate"](descriptor, size)
        if descriptor in places:
            note("cut", handles[descriptor], size)

    def replace(old: Any, new: Any) -> None:
        real["replace"](old, new)
        if inside(old) is not None:
            note("rename", inside(old), inside(new))

    def mkdir(path: Any, mode: int = 0o777) -> None:
        real["mkdir"](path, mode)
        if inside(path) is not None:
            note("make", inside(path))

    def removed(name: str) -> Callable:
        def remove(path: Any, *, dir_fd: int | None = None) -> None:
            real[name](path, dir_fd=dir_fd)
            where = inside(path, dir_fd)
            if where is not None:
                note("remove", where)

        return remove

    ours = (opened, close, write, fsync, ftruncate, replace, mkdir)
    watched = dict(zip(_NAMES, (*ours, removed("rmdir"), removed("unlink")), strict=True))
    try:
        for name, function in watched.items():
            setattr(os, name, function)
        yield operations
    finally:
        for name, function in real.items():
            setattr(os, name, function)


def read_tree(root: Path) -> Tree:
    """What is below a folder."""
    return {
        path.relative_to(root).as_posix(): None if path.is_dir() else path.read_bytes()
        for path in root.rglob("*")
    }


def write_tree(tree: Tree, root: Path) -> None:
    """Makes it anew below a folder."""
    root.mkdir()
    for path, content in sorted(tree.items()):
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)
