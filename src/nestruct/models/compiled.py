"""Models that torch.compile has wrapped: what is trained is the module inside.

Torch compiles a module's ``forward``. Estimators call ``loss``, so a compiled model as a whole runs
as it is. A compiled network inside of a model stays compiled, but for members of a population that
are evaluated by vmap. Checkpoints name parameters as if nothing were compiled.
"""

import contextlib
from typing import Any

import torch
from torch import nn

_INNER = "_orig_mod"  # torch's name for the module inside


def unwrap(model: Any) -> Any:
    """The module that torch.compile was given; any other model as it is.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 2)
        >>> unwrap(torch.compile(model)) is unwrap(model) is model
        True
    """
    return model._modules[_INNER] if _is_compiled(model) else model


def state_of(model: nn.Module) -> dict[str, Any]:
    """A model's ``state_dict``, by the names that it has where nothing is compiled."""
    return {_plain(name): value for name, value in model.state_dict().items()}


def load_state(model: nn.Module, state: dict[str, Any]) -> None:
    """Sets a model to what `state_of` gave, of this model or of one compiled otherwise."""
    own = {_plain(name): name for name in model.state_dict()}
    model.load_state_dict({own.get(_plain(name), name): value for name, value in state.items()})


def uncompiled(model: nn.Module) -> contextlib.AbstractContextManager[Any]:
    """A context in which nothing of a model runs compiled, and nothing is compiled.

    Inside a vmap or a dispatch mode torch compiles nothing, and never again in that process.
    """
    if any(_is_compiled(module) for module in model.modules()):
        return torch.compiler.set_stance("force_eager")
    return contextlib.nullcontext()


def _is_compiled(model: Any) -> bool:
    return type(model).__name__ == "OptimizedModule" and _INNER in model._modules


def _plain(name: str) -> str:
    return name.replace(f"{_INNER}.", "")
