"""The shape types of the package are checked in this test run, and no other annotation is."""

import sys
import typing

import pytest
import shapes
import torch
from jaxtyping import Float, TypeCheckError
from torch import Tensor

import nestruct
from nestruct.estimators.shaping import pair_weights
from nestruct.structures.edge_swap import swap_edges
from nestruct.structures.solvers.prim import prim_kernel


def test_every_module_of_the_package_is_checked():
    # Packages aside: pytest may load an `__init__` by itself, to look for examples.
    modules = [module for name, module in sys.modules.items() if name.startswith("nestruct.")]
    modules = [m for m in modules if not hasattr(m, "__path__")]
    assert len(modules) > 50
    assert [m.__name__ for m in modules if not isinstance(m.__loader__, shapes.Loader)] == []


def test_wrong_shapes_are_refused():
    tree, scores = nestruct.SpanningTree(4), torch.zeros(5, 6)
    options = {"num_steps": 1, "draws": torch.Generator()}
    swap_edges(tree, tree.argmax(scores), scores, **options)
    with pytest.raises(TypeCheckError, match="swap_edges"):
        swap_edges(tree, tree.argmax(scores), scores[:4], **options)
    with pytest.raises(TypeCheckError, match="swap_edges"):
        swap_edges(tree, tree.argmax(scores), scores.long(), **options)


def test_kernels_and_functions_without_shapes_are_left_alone():
    assert not hasattr(prim_kernel.py_func, "__wrapped__")
    assert not hasattr(nestruct.fit, "__wrapped__")
    assert typing.get_type_hints(pair_weights)["mirrored"] is bool


def join(
    first: Float[Tensor, " size"], more: list[Float[Tensor, " size"]], name: str
) -> tuple[Float[Tensor, "rows size"], int] | None:
    return (torch.stack([first, *more]).squeeze(), len(more)) if more else None


def test_shapes_inside_other_types_are_checked_and_the_rest_is_not():
    checked, row = shapes.checked(join), torch.zeros(3)
    assert checked(row, [row], name=5)
    assert checked(row, [], name="") is None
    with pytest.raises(TypeCheckError, match="'more'"):
        checked(row, [row[:2]], name="")
    with pytest.raises(TypeCheckError, match="return value"):
        checked(row[:1], [row[:1]], name="")  # squeeze took both axes
