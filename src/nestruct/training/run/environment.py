"""What a run ran on, for ``environment.json``: no names of machines, users or folders."""

import datetime
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from nestruct._version import __version__

PACKAGES = ("torch", "numpy", "numba", "safetensors")


def describe_environment(device: torch.device, world_size: int = 1) -> dict[str, Any]:
    """Versions, device, threads, commit, and the command without its folders."""
    cuda = device.type == "cuda"
    return {
        "nestruct": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        **{package: metadata.version(package) for package in PACKAGES},
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if cuda else "cpu",
        "processes": world_size,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join([_program(), *map(_without_folder, sys.argv[1:])]),
    }


def _program() -> str:
    name = Path(sys.argv[0]).name
    return "nestruct" if name == "__main__.py" else name


def _without_folder(word: str) -> str:
    key, equals, value = word.rpartition("=")
    if "/" in key:  # a folder that is called seed=0, say
        return Path(word).name
    return f"{key}{equals}{Path(value).name}" if "/" in value else word


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def _commit() -> str | None:
    """The commit of a checkout; None for an installed package.

    Where git is not at hand, the variable ``NESTRUCT_COMMIT`` says it.
    """
    said = os.environ.get("NESTRUCT_COMMIT")
    if said:
        return said
    if not (Path(__file__).parents[4] / "pyproject.toml").exists():
        return None
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude", "*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
