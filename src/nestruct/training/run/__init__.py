"""What is left of a training: a folder, its lock, its logs and its checkpoints.

Nothing here knows how a model is trained; the loop says what to write and when.
"""

from nestruct.training.run.checkpoint import Checkpoint, CheckpointError, read_checkpoint
from nestruct.training.run.environment import describe_environment
from nestruct.training.run.folder import RunFolder, check_is_free, finite, is_run, read_config
from nestruct.training.run.restore import compare_configs, fill_model, find_checkpoint
from nestruct.training.run.session import Session
from nestruct.training.run.state import Record
from nestruct.training.run.verify import check_source, warn_if_changed

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Record",
    "RunFolder",
    "Session",
    "check_is_free",
    "check_source",
    "compare_configs",
    "describe_environment",
    "fill_model",
    "find_checkpoint",
    "finite",
    "is_run",
    "read_checkpoint",
    "read_config",
    "warn_if_changed",
]
