"""Examples of pairs: drawn from integers, piece by piece."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nestruct.noise import Noise
from nestruct.population import rows


class Largest(TorchDispatchMode):
    """The size of the largest result of any operation."""

    size = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        if isinstance(result, torch.Tensor):
            self.size = max(self.size, result.numel())
        return result


def test_keys_of_all_examples_are_never_in_memory_at_once(monkeypatch):
    def draw(start, stop):
        return rows.pair_rows(
            Noise(seed=1, step=2), start, stop, count=3, examples=50, device=torch.device("cpu")
        )

    whole = draw(0, 40)
    assert all(len(set(pair)) == 3 for pair in whole.tolist())
    assert torch.equal(draw(10, 20), whole[10:20])
    monkeypatch.setattr(rows, "_KEYS", 400)
    with Largest() as largest:
        assert torch.equal(draw(0, 40), whole)
    assert largest.size <= 400
