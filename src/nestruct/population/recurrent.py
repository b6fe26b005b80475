"""torch's recurrent layers and cells in plain operations, which can be vmapped.

A loop over time; products with the inputs of all times are one. Arguments and results are those of
torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu and of their cells.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from nestruct.errors import InputError

# A state is one tensor, or the two of an LSTM.
State = tuple[Tensor, ...]


class CannotVmapError(InputError):
    """A model holds a layer that cannot be vmapped, and no ``population_losses`` of its own."""


def _lstm(from_input: Tensor, from_state: Tensor, state: State) -> State:
    opened, kept, new, shown = (from_input + from_state).chunk(4, -1)
    cell = kept.sigmoid() * state[1] + opened.sigmoid() * new.tanh()
    return shown.sigmoid() * cell.tanh(), cell


def _gru(from_input: Tensor, from_state: Tensor, state: State) -> State:
    reset, kept, new = from_input.chunk(3, -1)
    state_reset, state_kept, state_new = from_state.chunk(3, -1)
    kept = (kept + state_kept).sigmoid()
    new = (new + (reset + state_reset).sigmoid() * state_new).tanh()
    return (new + kept * (state[0] - new),)


def _tanh(from_input: Tensor, from_state: Tensor, state: State) -> State:
    return ((from_input + from_state).tanh(),)


def _relu(from_input: Tensor, from_state: Tensor, state: State) -> State:
    return ((from_input + from_state).relu(),)


def _layers(update: Callable[[Tensor, Tensor, State], State], num_states: int) -> Callable:
    def run(
        x: Tensor,
        states: Any,
        weights: Any,
        has_biases: Any,
        num_layers: int,
        dropout: float,
        train: Any,
        bidirectional: bool,
        batch_first: Any = None,
    ) -> tuple[Tensor, ...]:
        if batch_first is None:  # then the second argument is the sizes of a packed sequence
            raise CannotVmapError(
                "Recurrent layers cannot be vmapped over packed sequences: pad them, or say "
                "mode='loop'."
            )
        states = tuple(states) if num_states == 2 else (states,)
        if batch_first:
            x = x.transpose(0, 1)
        num_directions = 2 if bidirectional else 1
        count = len(weights) // (num_layers * num_directions)
        last: list[State] = []
        for layer in range(num_layers):
            outputs = []
            for direction in range(num_directions):
                place = layer * num_directions + direction
                own = list(weights[place * count : (place + 1) * count])
                projection = own.pop() if count in (3, 5) else None
                from_input = F.linear(x, own[0], own[2] if has_biases else None)
                bias = own[3] if has_biases else None
                state: State = tuple(each[place] for each in states)
                times = range(len(x)) if direction == 0 else range(len(x) - 1, -1, -1)
                shown: list[Tensor] = [x] * len(x)
                for time in times:
                    state = update(from_input[time], F.linear(state[0], own[1], bias), state)
                    if projection is not None:
                        state = (F.linear(state[0], projection), *state[1:])
                    shown[time] = state[0]
                outputs.append(torch.stack(shown))
                last.append(state)
            x = torch.cat(outputs, -1)
            if dropout and train and layer < num_layers - 1:
                x = F.dropout(x, dropout)
        if batch_first:
            x = x.transpose(0, 1)
        return (x, *(torch.stack(each) for each in zip(*last, strict=True)))

    return run


def _cell(update: Callable[[Tensor, Tensor, State], State]) -> Callable:
    def run(x: Tensor, state: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
        states = (state,) if isinstance(state, Tensor) else tuple(state)
        new = update(F.linear(x, w_ih, b_ih), F.linear(states[0], w_hh, b_hh), states)
        return new[0] if len(new) == 1 else new

    return run


RECURRENT: dict[Any, Callable[..., Any]] = {
    torch.lstm: _layers(_lstm, 2),
    torch.gru: _layers(_gru, 1),
    torch.rnn_tanh: _layers(_tanh, 1),
    torch.rnn_relu: _layers(_relu, 1),
    torch.lstm_cell: _cell(_lstm),
    torch.gru_cell: _cell(_gru),
    torch.rnn_tanh_cell: _cell(_tanh),
    torch.rnn_relu_cell: _cell(_relu),
}
