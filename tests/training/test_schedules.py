"""The learning rate over a training, and after a resume."""

import copy

import pytest
import torch

from nestruct import InputError
from nestruct.training.schedules import LateCosineLR


def make(**options):
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    return optimizer, LateCosineLR(optimizer, **options)


def rates(optimizer, schedule, steps):
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def test_the_rate_stays_and_then_falls_to_zero():
    optimizer, schedule = make(total_steps=8, start=4)
    expected = [2, 2, 2, 2, 2, 1 + 0.5**0.5, 1, 1 - 0.5**0.5, 0, 0]
    assert rates(optimizer, schedule, 10) == pytest.approx(expected)


def test_it_begins_to_fall_after_two_thirds():
    assert make(total_steps=9)[1].start == 6


def test_it_goes_on_after_a_checkpoint():
    whole = rates(*make(total_steps=6), 6)
    optimizer, schedule = make(total_steps=6)
    first = rates(optimizer, schedule, 5)
    saved = copy.deepcopy((optimizer.state_dict(), schedule.state_dict()))
    optimizer, schedule = make(total_steps=6)
    optimizer.load_state_dict(saved[0])
    schedule.load_state_dict(saved[1])
    assert first + rates(optimizer, schedule, 1) == whole


@pytest.mark.parametrize("start", [-1, 6, 7])
def test_a_start_outside_of_the_training_is_refused(start):
    with pytest.raises(InputError, match="start must be from 0 to less than total_steps"):
        make(total_steps=6, start=start)
