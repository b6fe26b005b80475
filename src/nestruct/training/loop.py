"""The training loop: data, step, log, evaluate, save. It reads in the order in which it runs."""

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from nestruct.checks import check_name
from nestruct.data import Pieces
from nestruct.errors import NestructError, first_line, is_out_of_memory
from nestruct.estimators import Estimator, StepReport
from nestruct.models.compiled import load_state, state_of
from nestruct.models.hooks import HasAfterStep
from nestruct.noise import Purpose, derive_seed
from nestruct.processes import any_rank, first_rank_decides, is_launched, is_lost_process
from nestruct.training.callbacks import Callback, Event, call
from nestruct.training.details import note_details
from nestruct.training.drawings import Drawings
from nestruct.training.interrupt import catch_interrupt
from nestruct.training.loggers import Logger, log_to
from nestruct.training.options import Training
from nestruct.training.progress import Display
from nestruct.training.run import Checkpoint, Record, Session
from nestruct.training.run.state import Reason
from nestruct.training.timing import Stopwatch

_COUNTED = ("failed", "decoded", "solved", "looked_up")  # by every step's report


@dataclass
class Loop:
    """What a training works on, and where it is."""

    model: nn.Module
    estimator: Estimator
    optimizer: torch.optim.Optimizer
    scheduler: Any
    minibatch: Callable[[int], Any]
    measure: Callable[[str, Any], dict[str, float]]  # of a split, given its name
    validation: Any
    test: Any
    settings: Training
    seed: int
    session: Session
    drawings: Drawings | None
    callbacks: Sequence[Callback]
    loggers: Sequence[Logger]
    display: Display
    untrained: dict[str, float] | None = None  # what an evaluation before the first step gave

    def run(self) -> None:
        """Trains to the end, to an early stop, or until asked to stop."""
        now, settings = self.session.now, self.settings
        self._watch = Stopwatch(now.seconds, self.session.device)
        self._unread: dict[str, Any] = dict.fromkeys(_COUNTED, 0)
        # A new run saves after its first step: where memory was short, that has changed the plan.
        self._saved_at = time.monotonic() if now.step else -math.inf
        self._restored = not self.session.begins  # and no step was made since
        self._stopped = False  # by a callback, which only rank 0 has
        with catch_interrupt(twice=not is_launched()) as interrupt:
            if self.validation is not None and now.initial is None:
                if self.session.folder is not None and self.drawings is not None:
                    self.session.append("structures.jsonl", self.drawings.header())
                self._evaluate()
            self.display.begin(now.step)
            # Asked once: to look for a hook takes as long as launching a kernel or two.
            after_step = self.model.after_step if isinstance(self.model, HasAfterStep) else None
            while now.step < settings.max_steps and not self._is_stuck():
                if self._is_late():
                    if self.validation is not None and not settings.is_eval_step(now.step):
                        self._evaluate()
                    return self._finish("stopped in time")
                if any_rank(bool(interrupt) or self._stopped, self.session.device):
                    if any_rank(self._stopped, self.session.device):
                        return self._finish("stopped by a callback")
                    self._save("last")
                    now.reason = "interrupted"
                    return
                # For data and models that draw from torch's own generator: no checkpoint holds it.
                torch.manual_seed(derive_seed(self.seed, Purpose.STEP, now.step))
                batch = self.minibatch(now.step)
                report = self._step(batch)
                if after_step is not None:
                    after_step(now.step, self.optimizer)
                if self.scheduler is not None and not self._on_plateau:
                    self._schedule()
                now.step += 1
                self._count(report)
                if settings.is_log_step(now.step):
                    self._log(report)
                if self.validation is not None and settings.is_eval_step(now.step):
                    self._evaluate()
                if time.monotonic() - self._saved_at >= settings.checkpoint_seconds:
                    self._save("last")
            self._finish("stopped early" if self._is_stuck() else "finished")

    def _step(self, batch: Any) -> StepReport:
        """Estimates the gradient and steps; what a checkpoint brought may turn out unusable."""
        try:
            report = self.estimator.backward(
                self.model, batch, seed=self.seed, step=self.session.now.step
            )
            self.optimizer.step()
        except Exception as error:
            known = isinstance(error, NestructError) or is_out_of_memory(error)
            if known or is_lost_process(error) or not self._restored:
                raise
            raise NestructError(
                f"The first step after the checkpoint failed ({first_line(error)}): it may be of "
                "another model, optimizer or estimator."
            ) from error
        self._restored = False
        return report

    def _count(self, report: StepReport) -> None:
        """Adds a step's costs to the run's; those on the device are not looked at yet."""
        self.session.now.evaluations += int(report.num_evaluations)
        for name, value in _on_device(report).items():
            self._unread[name] = _plus(self._unread[name], value)
        self._watch.count(report)

    def _read(self) -> None:
        """Adds what the device counted, which waits for it."""
        for name, value in self._unread.items():
            total = getattr(self.session.now, name)
            setattr(self.session.now, name, _plus(total, None if value is None else int(value)))
        self._unread = dict.fromkeys(self._unread, 0)

    def _log(self, report: StepReport) -> None:
        """Reads the step's report, which is what waits for the device."""
        self._read()
        record = {
            "step": self.session.now.step,
            "split": "train",
            "loss": float(report.loss),
            "loss_std": float(report.loss_std),
            "grad_norm": float(report.grad_norm),
            "lr": float(self.optimizer.param_groups[0]["lr"]),
            **self._costs(),
            "failed": self.session.now.failed,
            "timing": self._watch.read(),
        }
        self._keep(record)
        self.display.step(record)

    def _evaluate(self) -> None:
        """Looks at the validation set, and keeps the parameters where they are the best so far."""
        now, metric = self.session.now, self.settings.metric
        values = self.untrained if now.step == 0 else None
        values = self.measure("validation", self.validation) if values is None else values
        check_name("training.metric", metric, values)
        value = first_rank_decides(values[metric], self.session.device)
        if now.initial is None:
            now.initial = values
        elif self._on_plateau:
            self._schedule(value)
        self._record("validation", values)
        if self.session.folder is not None and self.drawings is not None:
            self.session.append("structures.jsonl", self.drawings.line(now.step))
        if self.settings.is_better(value, None if now.best is None else now.best.get(metric)):
            now.best, now.best_step, now.unimproved = values | {metric: value}, now.step, 0
            self.session.best_model = copy.deepcopy(state_of(self.model))
            self._save("best")
        else:
            now.unimproved += 1

    def _schedule(self, *value: float) -> None:
        try:
            self.scheduler.step(*value)
        except Exception as error:
            raise NestructError(
                f"The scheduler cannot go on at step {self.session.now.step}: {error}."
            ) from error

    def _finish(self, reason: Reason) -> None:
        """Saves the end, then tests the best parameters once and leaves them in the model."""
        now = self.session.now
        end = self._save("last")
        end.model = copy.deepcopy(end.model)  # what it holds is the model's own memory
        self._note_details("last", now.step)
        if self.session.best_model is not None:
            load_state(self.model, self.session.best_model)
        elif self.validation is not None:
            self.display.note(
                f"No {self.settings.metric} on validation data was finite, so no parameters are "
                "the best: look for NaN in these data, and for a solver without answers."
            )
        if self.test is not None:
            now.test = self.measure("test", self.test)
            self._record("test", now.test, best_step=now.best_step)
        self._note_details("best", now.step if now.best_step is None else now.best_step)
        now.reason = reason
        now.seconds = self._watch.seconds
        # The logs' lines stay as they were: a longer training cuts the test record off.
        if self.session.folder is not None:
            now.whole_logs = self.session.folder.digests
        after = ("reason", "test", "seconds", "whole_logs")
        end.loop |= {name: getattr(now, name) for name in after}
        self.session.write("last", end)

    def _note_details(self, name: str, step: int) -> None:
        """Details of the test set, with the parameters that the model has now."""
        folder = self.session.folder
        if folder is not None and self.test is not None and not isinstance(self.test, Pieces):
            with folder.one_sentence():
                note_details(folder.path, name, step, self.model, self.test)

    def _save(self, name: str) -> Checkpoint:
        self._read()
        self.session.now.seconds = self._watch.seconds
        checkpoint = self.session.save(name)
        if name == "last":
            self._saved_at = time.monotonic()
        return checkpoint

    def _costs(self) -> Record:
        names = ("evaluations", "decoded", "solved", "looked_up")
        return {name: getattr(self.session.now, name) for name in names}

    def _record(self, split: str, values: dict[str, float], **more: Any) -> None:
        record = {"step": self.session.now.step, "split": split, **more, **values}
        self._read()
        record |= self._costs()
        record["timing"] = {"seconds": round(self._watch.seconds, 3)}
        self._keep(record)
        self.display.evaluated(record)

    def _keep(self, record: Record) -> None:
        self.session.append("metrics.jsonl", record)
        log_to(self.loggers, record)
        event = Event(record, model=self.model, step=self.session.now.step)
        call(self.callbacks, event)
        self._stopped = self._stopped or event.stopped

    @property
    def _on_plateau(self) -> bool:
        return isinstance(self.scheduler, ReduceLROnPlateau)

    def _is_stuck(self) -> bool:
        patience = self.settings.patience
        return patience is not None and self.session.now.unimproved >= patience

    def _is_late(self) -> bool:
        limit = self.settings.max_seconds
        return limit is not None and any_rank(self._watch.seconds >= limit, self.session.device)


def _on_device(report: StepReport) -> dict[str, Any]:
    """What a step counted that may still be under way on the device."""
    return {name: getattr(report, f"num_{name}") for name in _COUNTED}


def _plus(total: Any, more: Any) -> Any:
    """The sum of two costs; None if one of them is not known."""
    return None if total is None or more is None else total + more
