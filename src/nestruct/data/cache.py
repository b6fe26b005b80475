"""Generated data that are kept on disk, one file for each set of options.

The folder is ``NESTRUCT_CACHE``, or ``nestruct`` in the user's cache folder. All that is in it can
be deleted at any time; a file that cannot be read or written, or is not as it was written, only
costs the time to generate the data again.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from nestruct.files import write_whole
from nestruct.noise import derive_key
from nestruct.untrusted import check_regular

log = logging.getLogger("nestruct")


def cached(
    name: str,
    version: int,
    options: dict[str, Any],
    generate: Callable[[], dict[str, Tensor]],
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, Tensor]:
    """What ``generate`` gives, from disk where it was generated before with the same options.

    Args:
        name: Of the kind of data.
        version: Of what generates them: another number, another file.
        options: All that the data depend on, as plain JSON; kept in the file.
        generate: Gives the data by name.
        shapes: What they are called, and the shape of each, where that is known: a file may be a
            stranger's.
    """
    identity = json.dumps([name, version, options], sort_keys=True)
    path = folder() / f"{name}-{derive_key(*identity.encode()):016x}.safetensors"
    try:
        check_regular(path)
        with safe_open(path, "pt") as file:
            known = file.metadata() or {}
            found = {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118
            if shapes is not None and found != {k: list(shape) for k, shape in shapes.items()}:
                raise ValueError("it holds other data")
            data = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        if known == {"identity": identity, "checksum": _checksum(data)}:
            return data
        why = "is not as it was written" if "checksum" in known else "has no checksum"
        log.warning("%s %s: the data are generated again.", path, why)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, SafetensorError) as error:
        log.warning("%s cannot be read (%s): the data are generated again.", path, error)
    data = generate()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, save(data, {"identity": identity, "checksum": _checksum(data)}))
    except OSError as error:
        log.warning("The data could not be kept in %s: %s.", path.parent, error)
    return data


def folder() -> Path:
    """Where generated data are kept."""
    for name, below in (("NESTRUCT_CACHE", ""), ("XDG_CACHE_HOME", "nestruct")):
        if os.environ.get(name):
            return Path(os.environ[name]) / below
    return Path("~/.cache/nestruct").expanduser()  # as it is where there is no home


def _checksum(data: dict[str, Tensor]) -> str:
    """The SHA-256 of names, shapes, types and values."""
    return hashlib.sha256(save(data)).hexdigest()
