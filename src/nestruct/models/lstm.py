"""An LSTM of batched products and a loop over time, with the parameters of `torch.nn.LSTM`.

torch's own cannot be vmapped, so a population would have to be evaluated member by member. This one
can, and it can be captured in a CUDA graph; on a CPU it is about as fast.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class LSTM(nn.Module):
    """Layers of an LSTM over padded sequences, in one direction or in both.

    The parameters have the names and shapes of those of `torch.nn.LSTM`, whose ``state_dict`` fits.

    Args:
        input_size: Numbers per place of the input.
        hidden_size: Numbers per place of each direction's output.
        num_layers: Layers.
        bidirectional: Whether each layer also reads from the end.

    Example:
        >>> import torch
        >>> lstm = LSTM(3, 5, bidirectional=True)
        >>> lstm(torch.ones(2, 4, 3), torch.tensor([4, 2])).shape
        torch.Size([2, 4, 10])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_layers: int = 1,
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        self.hidden_size, self.num_layers = hidden_size, num_layers
        self.num_directions = 2 if bidirectional else 1
        for layer in range(num_layers):
            inputs = input_size if layer == 0 else self.num_directions * hidden_size
            for direction in range(self.num_directions):
                w_ih, w_hh, b_ih, b_hh = lstm_names(layer, direction)
                for name, size in ((w_ih, inputs), (w_hh, hidden_size)):
                    weight = nn.Parameter(torch.empty(4 * hidden_size, size))
                    self.register_parameter(name, weight)
                    nn.init.xavier_uniform_(weight)
                for name in (b_ih, b_hh):
                    bias = torch.zeros(4 * hidden_size)
                    bias[hidden_size : 2 * hidden_size] = 0.5  # to remember, at first
                    self.register_parameter(name, nn.Parameter(bias))

    def forward(
        self, x: Float[Tensor, "batch time _"], lengths: Int[Tensor, " batch"]
    ) -> Float[Tensor, "batch time _"]:
        """Each place's output; what comes out beyond ``lengths`` (places, not words) is arbitrary.

        Args:
            x: The inputs.
            lengths: Places of each sequence, from which the second direction starts.
        """
        return read([self], x, lengths)[0]


def read(
    lstms: Sequence[LSTM], x: Float[Tensor, "batch time _"], lengths: Int[Tensor, " batch"]
) -> list[Float[Tensor, "batch time _"]]:
    """What several LSTMs of the same sizes make of the same sequences, in one recurrence.

    A recurrence costs its places, not the width of each: two LSTMs side by side take about as long
    as one of them.
    """
    first = lstms[0]
    backwards = flip_index(lengths, x.shape[1])
    states = [x for _ in lstms]
    for layer in range(first.num_layers):
        gates, weights = [], []
        for lstm, state in zip(lstms, states, strict=True):
            for direction in range(first.num_directions):
                w_ih, w_hh, b_ih, b_hh = (getattr(lstm, n) for n in lstm_names(layer, direction))
                inputs = _take(state, backwards) if direction else state
                gates.append(inputs @ w_ih.mT + (b_ih + b_hh))
                weights.append(w_hh.mT)
        outputs = list(recur(torch.stack(gates), torch.stack(weights)).unbind(0))
        if first.num_directions == 1:
            states = outputs
            continue
        states = [
            torch.cat([forward, _take(backward, backwards)], -1)
            for forward, backward in zip(outputs[::2], outputs[1::2], strict=True)
        ]
    return states


def lstm_names(layer: int, direction: int) -> list[str]:
    """The names of a layer's parameters: input and recurrent weights, and their biases."""
    end = f"_l{layer}{'_reverse' * direction}"
    return [f"{name}{end}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]


def flip_index(lengths: Int[Tensor, " batch"], time: int) -> Int[Tensor, "batch time"]:
    """For each place the one that it changes with when a sequence is reversed; padding stays."""
    place = torch.arange(time, device=lengths.device)
    return torch.where(place < lengths[:, None], lengths[:, None] - 1 - place, place)


def recur(
    gates: Float[Tensor, "directions batch time gates"],
    weights: Float[Tensor, "directions hidden gates"],
) -> Float[Tensor, "directions batch time hidden"]:
    """The recurrence of a layer: input, forget, cell and output gates, in torch's order.

    Args:
        gates: What the inputs add to the gates, biases included.
        weights: What the output of the place before adds.
    """
    outputs = []
    state = hidden = None
    for now in gates.unbind(2):
        if hidden is not None:
            now = now + hidden @ weights
        hidden, state = cell(now, state)
        outputs.append(hidden)
    return torch.stack(outputs, 2)


def cell(gates: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """One place: its output, and the state for the next."""
    enter, keep, new, show = gates.chunk(4, -1)
    inner = enter.sigmoid() * new.tanh()
    if state is not None:
        inner = inner + keep.sigmoid() * state
    return show.sigmoid() * inner.tanh(), inner


def _take(x: Tensor, index: Int[Tensor, "batch time"]) -> Tensor:
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[-1]))
