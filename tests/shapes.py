"""Checks the shape types of the package in the test run, and no other annotation.

jaxtyping's own import hook would wrap every function of a module: compiled kernels and the ops of
torch cannot be wrapped, and beartype would refuse a bad option before our own error could.
"""

import ast
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, get_args

import beartype
import jaxtyping


def install() -> None:
    """From here on, every module of the package is loaded with its shapes checked."""
    assert "nestruct" not in sys.modules, "imported too early: its shapes would go unchecked"
    sys.meta_path.insert(0, Finder())


def checked(function: Callable) -> Callable:
    """The function itself where it names no shape, else one that checks the shapes it names."""
    if not any(map(_has_shape, function.__annotations__.values())):
        return function
    import torch  # now: conftest.py first sets its number of threads

    checking = jaxtyping.jaxtyped(function, typechecker=_check_shapes)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        # torch.compile cannot trace the check; what it traces has no shapes of its own to check.
        return (function if torch.compiler.is_compiling() else checking)(*args, **kwargs)

    return call


def _has_shape(hint: Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(map(_has_shape, get_args(hint)))  # inside a union, a tuple, a dict


def _check_shapes(stub: Callable) -> Callable:
    # jaxtyped hands over an empty function of the same signature: the real one keeps its hints.
    hints = stub.__annotations__.items()
    stub.__annotations__ = {name: hint for name, hint in hints if _has_shape(hint)}
    return beartype.beartype(stub)


class Finder(MetaPathFinder):
    """Finds the modules of the package, and no others."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] != "nestruct":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = Loader(name, spec.origin)
        return spec


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    """All but those inside a function: they name no shape, and torch.compile may trace them."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield node
        else:
            yield from _functions(node)


class Loader(SourceFileLoader):
    """Puts ``checked`` below the decorators of the functions; leaves compiled files alone."""

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__checked__"] = checked
        super().exec_module(module)

    def get_code(self, fullname: str) -> CodeType:
        tree = ast.parse(self.get_data(self.path))
        for node in _functions(tree):
            decorator = ast.Name("__checked__", ast.Load())
            node.decorator_list.append(ast.copy_location(decorator, node))
        return compile(tree, self.path, "exec", dont_inherit=True)
