"""Our LSTM against torch's: same parameters, same numbers, any lengths; and it can be vmapped."""

import pytest
import torch
from torch import nn

from nestruct.models.lstm import LSTM, flip_index, read


def packed(lstm: nn.LSTM, x, lengths):
    """torch's LSTM over sequences of these lengths, zeros beyond."""
    sequences = nn.utils.rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False)
    return nn.utils.rnn.pad_packed_sequence(lstm(sequences)[0], True, total_length=x.shape[1])[0]


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("both", [False, True])
def test_is_torchs(layers, both):
    torch.manual_seed(0)
    peer = nn.LSTM(5, 7, layers, batch_first=True, bidirectional=both).double()
    ours = LSTM(5, 7, num_layers=layers, bidirectional=both).double()
    assert [name for name, _ in ours.named_parameters()] == [n for n, _ in peer.named_parameters()]
    ours.load_state_dict(peer.state_dict())
    x = torch.randn(4, 6, 5, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([6, 1, 3, 5])
    expected, found = packed(peer, x, lengths), ours(x, lengths)
    real = (torch.arange(6) < lengths[:, None])[..., None]
    torch.testing.assert_close(torch.where(real, found, 0), expected)
    weights = torch.randn_like(expected)
    one = torch.autograd.grad((expected * weights).sum(), [x, *peer.parameters()])
    other = torch.autograd.grad((found * weights * real).sum(), [x, *ours.parameters()])
    torch.testing.assert_close(one, other)


def test_vmap_over_parameters():
    torch.manual_seed(0)
    lstm = LSTM(3, 4, num_layers=2, bidirectional=True)
    x, lengths = torch.randn(2, 5, 3), torch.tensor([5, 2])
    members = {n: p + 0.1 * torch.randn(3, *p.shape) for n, p in lstm.named_parameters()}

    def call(state):
        return torch.func.functional_call(lstm, state, (x, lengths))

    together = torch.func.vmap(call)(members)
    alone = torch.stack([call({n: p[k] for n, p in members.items()}) for k in range(3)])
    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("both", [False, True])
def test_several_side_by_side_are_each_alone(both):
    torch.manual_seed(0)
    lstms = [LSTM(3, 4, num_layers=2, bidirectional=both).double() for _ in range(3)]
    x, lengths = torch.randn(2, 5, 3, dtype=torch.float64), torch.tensor([5, 2])
    together, alone = read(lstms, x, lengths), [lstm(x, lengths) for lstm in lstms]
    torch.testing.assert_close(together, alone)
    assert not torch.equal(alone[0], alone[1])


def test_reversal_is_its_own_inverse():
    index = flip_index(torch.tensor([4, 0, 2]), 4)
    assert index.tolist() == [[3, 2, 1, 0], [0, 1, 2, 3], [1, 0, 2, 3]]
    assert index.gather(1, index).tolist() == [[0, 1, 2, 3]] * 3
