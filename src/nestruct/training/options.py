"""The options of a training: the table ``[training]`` of a recipe, the keywords of `fit`."""

import dataclasses
import math
import typing
from dataclasses import dataclass
from typing import Any, Literal

from nestruct.checks import check_choice, check_name, check_value
from nestruct.errors import InputError

# What `fit` does not do by itself, and what a program does instead.
RECIPE_ONLY = {
    "smoothing_gap": "give fit metrics that call nestruct.smoothing_gap",
    "num_starts": "fit has only this one model",
    "start_steps": "fit has only this one model",
}


@dataclass(frozen=True, kw_only=True)
class Training:
    """How long to train, how often to look, when to stop.

    Args:
        max_steps: Steps in all; 0 where `max_epochs` says it.
        max_epochs: Passes over the training data, where there are no `max_steps`. One evaluation
            after each, unless `eval_interval` says otherwise.
        batch_size: Examples per step; all of them when None.
        log_interval: Steps between training records; a hundredth of all when None.
        eval_interval: Steps between evaluations; a twentieth of all when None.
        eval_batch_size: Examples evaluated at once.
        metric: The validation metric that decides which parameters are best.
        maximize: Whether a larger metric is better.
        patience: Evaluations without improvement after which training stops; never when None.
        max_seconds: Wall-clock after which training ends, evaluations and trial starts included; it
            is looked at between steps. No limit when None. Where a run then ends depends on the
            machine.
        checkpoint_seconds: Time between checkpoints of the last state; 0 for one every step.
        matmul_precision: How float32 matrices are multiplied on a GPU: ``highest``, or ``high``,
            which keeps 10 bits of each factor and is several times faster (TF32); see
            `torch.set_float32_matmul_precision`.
        smoothing_gap: Perturbations with which every evaluation measures how far the smoothed loss
            is from the loss (`nestruct.smoothing_gap`), on the first thousand validation examples
            with the estimator's sigma; not at all when 0. Recipes only.
        num_starts: How many first parameters to try; see `start_steps`. Recipes only: `fit` has one
            model.
        start_steps: Steps that each of them is trained for, with the optimizer's own learning rate.
            The training begins, its optimizer and estimator anew, with the parameters whose
            validation metric is then the best. What they cost is counted. With `max_seconds` at
            most half of these are spent on starts.
    """

    max_steps: int = 0
    max_epochs: int | None = None
    batch_size: int | None = None
    log_interval: int | None = None
    eval_interval: int | None = None
    eval_batch_size: int = 1000
    metric: str = "loss"
    maximize: bool = False
    patience: int | None = None
    max_seconds: float | None = None
    checkpoint_seconds: float = 60.0
    matmul_precision: Literal["highest", "high"] = "highest"
    smoothing_gap: int = 0
    num_starts: int = 1
    start_steps: int = 300

    def __post_init__(self) -> None:
        counts = ("batch_size", "log_interval", "eval_interval", "eval_batch_size", "patience")
        for name in (*counts, "max_epochs", "num_starts", "start_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"training.{name} must be at least 1, got {value}.")
        if self.smoothing_gap != 0 and self.smoothing_gap < 4:
            raise InputError(
                f"training.smoothing_gap must be 0 or at least 4, got {self.smoothing_gap}."
            )
        check_choice("training.matmul_precision", self.matmul_precision, ("highest", "high"))
        if self.max_steps < 0:
            raise InputError(f"training.max_steps must not be negative, got {self.max_steps}.")
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise InputError(f"training.max_seconds must be positive, got {self.max_seconds}.")
        if not self.checkpoint_seconds >= 0:
            raise InputError(
                f"training.checkpoint_seconds must not be negative, got {self.checkpoint_seconds}."
            )

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> "Training":
        """From keywords, with a suggestion where one is not known."""
        hints = typing.get_type_hints(cls)
        for name in options:
            check_name("training: the option", name, [f.name for f in dataclasses.fields(cls)])
        values = {k: check_value(f"training.{k}", v, hints[k]) for k, v in options.items()}
        if "max_steps" not in values and values.get("max_epochs") is None:
            raise InputError("training.max_steps is missing: say how many steps to train.")
        settings = cls(**values)
        return settings if settings.needs_epochs else settings.with_intervals()

    @property
    def fit_options(self) -> dict[str, Any]:
        """The options of `fit`: those that only recipes have are left out."""
        return {name: value for name, value in vars(self).items() if name not in RECIPE_ONLY}

    def check_for_fit(self) -> None:
        """Raises where an option is set that only recipes have."""
        for name, instead in RECIPE_ONLY.items():
            if getattr(self, name) != getattr(Training, name):
                raise InputError(f"training.{name} is for recipes: {instead}.")

    @property
    def needs_epochs(self) -> bool:
        """Whether the number of steps depends on the data."""
        return self.max_epochs is not None and self.max_steps == 0

    def with_intervals(self) -> "Training":
        """A copy with its intervals in steps, so that a run continued for longer keeps them."""
        return dataclasses.replace(
            self,
            log_interval=self.log_interval or max(1, self.max_steps // 100),
            eval_interval=self.eval_interval or max(1, self.max_steps // 20),
        )

    def in_steps(self, steps_per_epoch: int | None) -> "Training":
        """A copy with ``max_epochs``, if it is set, turned into steps."""
        if not self.needs_epochs:
            return self
        if steps_per_epoch is None:
            raise InputError("training.max_epochs needs data whose length is known; say max_steps.")
        interval = self.eval_interval or steps_per_epoch
        steps = (self.max_epochs or 0) * steps_per_epoch
        return dataclasses.replace(self, max_steps=steps, eval_interval=interval).with_intervals()

    def is_log_step(self, step: int) -> bool:
        """Whether the training record of a step is kept."""
        return step % (self.log_interval or 1) == 0 or step == self.max_steps

    def is_eval_step(self, step: int) -> bool:
        """Whether the validation set is evaluated after a step."""
        return step % (self.eval_interval or 1) == 0 or step == self.max_steps

    def is_better(self, value: float, best: float | None) -> bool:
        """Whether a metric improves on the best; a value that is not finite never does."""
        if not math.isfinite(value):
            return False
        return best is None or (value > best if self.maximize else value < best)
