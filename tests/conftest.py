"""Set-up of the test run: shape types checked by beartype, reproducible hypothesis draws."""

import os
import shutil
from pathlib import Path

import hypothesis
import pytest
import shapes

# Workers share the cores: threads of their own would wait for each other (measured: four times
# slower). Before torch is imported, and for the processes that tests start.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# What trainings write is synced, file by file: waits of a disk that are most of a short training.
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

shapes.install()

hypothesis.settings.register_profile(
    "nestruct", derandomize=True, deadline=None, max_examples=60, database=None
)
hypothesis.settings.load_profile("nestruct")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    absent = {}
    if not torch.cuda.is_available():
        absent["cuda"] = "no CUDA device"
    if not os.environ.get("NESTRUCT_DATA"):
        absent["data"] = "NESTRUCT_DATA is not set"
    for item in items:
        for marker, reason in absent.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))
