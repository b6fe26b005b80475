"""State as JSON plus named tensors: what `state_dict` methods return, without pickle.

Numbers, strings, lists and dictionaries with string keys stay as they are. What JSON cannot say is
wrapped in a dictionary with one key that starts with a dollar sign.
"""

import math
import numbers
from collections import Counter
from typing import Any

from torch import Tensor

from nestruct.errors import InputError


def pack(state: Any, owner: str) -> tuple[Any, dict[str, Tensor]]:
    """A JSON tree, and the tensors that it refers to by name.

    Args:
        state: What a ``state_dict`` method gave.
        owner: Whose state it is, for the error message.

    Raises:
        InputError: The state holds something that is neither data nor a tensor.

    Example:
        >>> import torch
        >>> pack({"betas": (0.9, 0.99), "w": torch.zeros(2)}, "the optimizer")
        ({'betas': {'$tuple': [0.9, 0.99]}, 'w': {'$tensor': 'w'}}, {'w': tensor([0., 0.])})
    """
    tensors: dict[str, Tensor] = {}

    def walk(value: Any, place: str) -> Any:
        if isinstance(value, Tensor):
            name = place or "value"
            while name in tensors:  # a key with a dot can look like a path
                name += "'"
            # A copy on the host: tied weights share memory, which safetensors refuses.
            tensors[name] = value.detach().cpu().contiguous().clone()
            return {"$tensor": name}
        if isinstance(value, float) and not math.isfinite(value):
            return {"$float": repr(float(value))}
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, numbers.Real):  # numpy's too
            return int(value) if isinstance(value, numbers.Integral) else float(value)
        if isinstance(value, list | tuple):
            items = [walk(item, _join(place, i)) for i, item in enumerate(value)]
            return items if isinstance(value, list) else {"$tuple": items}
        if isinstance(value, dict):
            items = [[walk(k, f"{place}$"), walk(v, _join(place, k))] for k, v in value.items()]
            if isinstance(value, Counter):
                return {"$counter": items}
            if all(isinstance(key, str) and not key.startswith("$") for key in value):
                return dict(items)
            return {"$items": items}
        raise InputError(
            f"The state of {owner} holds a {type(value).__name__} at {place!r}: only numbers, "
            "strings, lists, dictionaries and tensors can be saved."
        )

    return walk(state, ""), tensors


def unpack(tree: Any, tensors: dict[str, Tensor]) -> Any:
    """What was packed."""
    if isinstance(tree, list):
        return [unpack(item, tensors) for item in tree]
    if not isinstance(tree, dict):
        return tree
    kind, content = next(iter(tree.items()), ("", None))
    if len(tree) != 1 or not kind.startswith("$"):
        return {key: unpack(value, tensors) for key, value in tree.items()}
    if kind == "$tensor":
        return tensors[str(content)]
    if kind == "$float":
        return float(str(content))
    items = unpack(content, tensors)
    if kind == "$tuple":
        return tuple(items)
    return Counter(dict(items)) if kind == "$counter" else dict(items)


def _join(place: str, key: Any) -> str:
    return f"{place}.{key}" if place else str(key)
