"""One trainer at a time."""

import pytest
from fits import train

from nestruct.errors import NestructError


def test_a_second_trainer_is_refused(tmp_path):
    def second(record):
        train(run=tmp_path, resume=True)

    with pytest.raises(NestructError, match="in use by another trainer"):
        train(run=tmp_path, callbacks=[second])
    train(run=tmp_path, resume=True)  # and the folder is free again
