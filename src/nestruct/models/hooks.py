"""What a model may define beside ``loss``: one Protocol per hook, called ``Has`` and its name.

Each says who calls the hook, when, and what happens without it. Callers ask for a hook with
``isinstance(model, HasTouched)``; a model defines it by having the method, and derives from
nothing. Of torch's own hooks ``get_extra_state`` and ``set_extra_state`` work too: what the first
gives is kept in checkpoints, as numbers, strings, lists, dictionaries and tensors.
"""

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from nestruct.members import Population
from nestruct.noise import Noise


@runtime_checkable
class HasLoss(Protocol):
    """``loss``: all that NES and an evaluation need; without it both refuse the model."""

    def loss(self, batch: Any, noise: Noise) -> Tensor:
        """The loss of each example, ``[batch]``."""
        ...


@runtime_checkable
class HasPopulationLosses(Protocol):
    """``population_losses``: exact savings over evaluating each member by itself.

    `nestruct.population.evaluate` calls it for each chunk of members that share their examples, in
    the mode ``vmap``. Without it, members are evaluated by a vmap, or a loop, over ``loss``.
    """

    def population_losses(self, population: Population, batch: Any, noise: Noise) -> Any:
        """Losses ``[members, batch]``; NotImplemented where the savings do not apply."""
        ...


@runtime_checkable
class HasMemberBytes(Protocol):
    """``member_bytes``: what a member costs, where `population_losses` cuts its work itself.

    NES calls it once, when it chooses how many members to evaluate at a time. Without it, the
    memory that one evaluation of ``loss`` takes is measured.
    """

    def member_bytes(self, batch: Any) -> int | None:
        """Bytes of a member's activations; None to have them measured."""
        ...


@runtime_checkable
class HasTrueScores(Protocol):
    """``true_scores``: the scores that the model should have given, for data that come with them.

    `nestruct.Supervised` calls it where its loss compares scores, and where true structures are
    asked for that the batch has no entry ``z`` of. Without it, such losses are refused.
    """

    def true_scores(self, batch: Any) -> Tensor:
        """Scores of the truth, shaped as those of ``encode``."""
        ...


@runtime_checkable
class HasTouched(Protocol):
    """``touched``: which entries of parameters a batch can move.

    NES calls it at every step and sets the gradient of all other entries to zero, which it is known
    to be. Without it, they have the estimate's noise.
    """

    def touched(self, batch: Any) -> Mapping[str, Tensor]:
        """By parameter name: 1 where losses of the batch depend on an entry, 0 where not."""
        ...


@runtime_checkable
class HasAtStep(Protocol):
    """``at_step``: what a model changes by itself as training goes on.

    Every estimator calls it first of all in a step. Without it, the model stays as it is. It must
    depend on the step alone: a resumed run calls it with the step that it goes on at.
    """

    def at_step(self, step: int) -> Hashable:
        """Prepares a step; steps for which it returns the same may share a CUDA graph."""
        ...


@runtime_checkable
class HasBegin(Protocol):
    """``begin``: a look at the training examples, for what `after_step` does with them.

    `nestruct.fit` calls it once in every session of a run, before the first step, with all training
    examples on the model's device. It does not where the data are a function of the step, a Dataset
    or a DataLoader. Without it, nothing happens.
    """

    def begin(self, data: Any) -> None:
        """May keep the examples at hand; no checkpoint holds them."""
        ...


@runtime_checkable
class HasAfterStep(Protocol):
    """``after_step``: what a model does to parameters and optimizer between steps.

    `nestruct.fit` calls it after every step of the optimizer and before its scheduler's, with the
    number of that step, from 0 on. Without it, nothing happens. What it keeps for later steps
    belongs into buffers or the optimizer's state, which checkpoints hold. Every process calls it
    and must do the same.
    """

    def after_step(self, step: int, optimizer: torch.optim.Optimizer) -> None:
        """May edit the model's parameters and the optimizer's state, in place."""
        ...


@runtime_checkable
class HasCapturable(Protocol):
    """``capturable``: whether ``graph="auto"`` captures a training step in a CUDA graph.

    Estimators ask before they capture. Without it, steps are captured.
    """

    @property
    def capturable(self) -> bool:
        """False where a captured step would be the slower one."""
        ...


@runtime_checkable
class HasMetrics(Protocol):
    """``metrics``: what an evaluation reports.

    `nestruct.evaluate` calls it for each slice of the data, in evaluation mode, without gradients.
    Without it, the loss is reported.
    """

    def metrics(self, batch: Any, noise: Noise) -> dict[str, Any]:
        """By name one value per example, or a pair of them: a share, summed before it is divided.

        Names that records have already (``step``, ``split``, ``timing``, ...) are refused.
        """
        ...


@runtime_checkable
class HasDetails(Protocol):
    """``details``: what each example of the test set came to, for comparisons of two runs.

    `nestruct.fit` calls it at the end of a run that has a folder and a test set, with the last
    parameters and with the best ones, and ``nestruct evaluate`` with those of its checkpoint; both
    keep it in the run's ``details.json``. Without it, there is no such file.
    """

    def details(self, batch: Any) -> dict[str, Any]:
        """Plain JSON. An entry ``examples``, a dictionary, is about the examples and kept once."""
        ...


@runtime_checkable
class HasIllustrate(Protocol):
    """``illustrate``: what a page shows of the model itself.

    `nestruct.fit` calls it at every evaluation of a run with a folder. Without it, the page draws
    structures only.
    """

    def illustrate(self) -> dict[str, Any]:
        """Plain JSON: ``prototypes`` and ``samples``, images as `CategoricalVAE.illustrate`'s."""
        ...


@runtime_checkable
class HasNeedsStart(Protocol):
    """``needs_start``: a model that continues what another run learnt.

    ``nestruct train`` calls it before a new run begins and shows what it says. Without it, a run
    may start from nothing.
    """

    def needs_start(self, start: Mapping[str, Any] | None) -> str | None:
        """What is missing, in a sentence; None where nothing is.

        Args:
            start: The table ``[model]`` of the run that ``--init-from`` names; None without one.
        """
        ...


@runtime_checkable
class HasGivenBy(Protocol):
    """``given_by``: a model class that can be built again without its data.

    `nestruct.load` calls it on the class of a run's model. Without it, the run's data are asked
    for what they decided (``num_inputs``, say), and must be there.
    """

    @staticmethod
    def given_by(state: dict[str, Any]) -> dict[str, Any]:
        """The arguments that the data gave, from the model's ``state_dict``."""
        ...


@runtime_checkable
class HasReadFile(Protocol):
    """``read_file``: examples from a file of one's own.

    ``nestruct evaluate --file`` calls it, with ``max_words`` too where ``--max-words`` is said.
    Without it, a run is evaluated on its own splits only.
    """

    def read_file(self, file: str | Path, *, skip_bad: bool = False) -> Any:
        """The file's examples as one batch, with the truth to compare with.

        Args:
            file: What to read.
            skip_bad: Whether malformed examples are left out, with a warning.
        """
        ...
