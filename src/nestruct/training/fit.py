"""`fit`: the five-line entry to training, and the loop behind ``nestruct train``.

Every draw comes from (seed, step), the order of the data too, so a checkpoint needs no random
state, and a run that was killed and resumed ends in the same bits as one that was not. (A
DataLoader's order is its own: such a run goes on, and promises no same bits.)
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from nestruct.checks import check_name, check_value
from nestruct.data import (
    Loader,
    Pieces,
    Rows,
    check_same_on_all_ranks,
    make_minibatches,
    read_data,
    read_whole,
    to_device,
)
from nestruct.data.hooks import HasStepsPerEpoch
from nestruct.errors import InputError
from nestruct.estimators import Estimator
from nestruct.models import StructuredModel
from nestruct.models.compiled import load_state, unwrap
from nestruct.models.hooks import HasBegin
from nestruct.noise import Purpose, derive_seed, forked_generators
from nestruct.processes import my_rank, share_model
from nestruct.training.callbacks import Callback, check_callbacks
from nestruct.training.drawings import Drawings
from nestruct.training.evaluate import (
    Metrics,
    device_of_model,
    dtype_of_model,
    evaluate,
    matmul_precision,
)
from nestruct.training.loggers import Logger, check_loggers, closing
from nestruct.training.loop import Loop
from nestruct.training.optimizers import check_estimator, check_optimizer, join_parameters
from nestruct.training.options import Training
from nestruct.training.progress import Console, Display
from nestruct.training.run import Session
from nestruct.training.run.state import Progress
from nestruct.training.settings import describe_call, in_steps, keep_intervals

_FRESH_ORDER = (
    "The data loader begins anew, in an order of its own: this run does not end in the bits of one "
    "that was not interrupted."
)


@dataclass(frozen=True)
class Spent:
    """The cost of what happened before the first step; it is part of the run's cost.

    Args:
        evaluations: Losses evaluated: members x samples x steps.
        decoded: Structures decoded; None where unknown.
        solved: Instances given to an argmax; None where unknown.
        seconds: Wall-clock.
    """

    evaluations: int = 0
    decoded: int | None = 0
    solved: int | None = 0
    seconds: float = 0.0

    def plus(self, result: "FitResult") -> "Spent":
        """This cost plus that of a training."""
        sums: dict[str, Any] = {}
        for name, total in vars(self).items():
            more = getattr(result, name)
            sums[name] = None if total is None or more is None else total + more
        return Spent(**sums)


@dataclass(frozen=True)
class FitResult:
    """How a training ended.

    Args:
        step: Steps done.
        reason: ``finished``, ``stopped early`` (no improvement for ``patience`` evaluations),
            ``stopped in time`` (``max_seconds`` are over),
            ``stopped by a callback``, or ``interrupted``.
        initial: Validation metrics before the first step; None without a validation set.
        best: Validation metrics at ``best_step``.
        best_step: Where the validation metric was best; unless interrupted, the model is left with
            those parameters.
        test: Test metrics at ``best_step``; None without a test set.
        seconds: Wall-clock of all sessions.
        evaluations: Losses evaluated: members x samples x steps.
        decoded: Structures decoded: evaluations x examples; None where unknown.
        solved: Instances given to an argmax; None where unknown.
    """

    step: int
    reason: str
    initial: dict[str, float] | None
    best: dict[str, float] | None
    best_step: int | None
    test: dict[str, float] | None
    seconds: float
    evaluations: int
    decoded: int | None
    solved: int | None


def fit(
    model: nn.Module,
    estimator: Estimator,
    optimizer: torch.optim.Optimizer,
    data: Any,
    *,
    validation: Any = None,
    test: Any = None,
    scheduler: LRScheduler | ReduceLROnPlateau | Any = None,
    seed: int = 0,
    run: str | Path | None = None,
    resume: bool = False,
    metrics: Metrics | Mapping[str, Metrics] | None = None,
    describe: Callable[[Any], dict[str, Any]] | None = None,
    baselines: Callable[[Any], dict[str, Tensor]] | None = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
    config: dict[str, Any] | None = None,
    progress: bool = True,
    first: Callable[[Callable[[str], None]], Spent] | None = None,
    init_from: str | Path | None = None,
    **options: Any,
) -> FitResult:
    """Trains a model.

    With a validation set the model ends with the parameters of its best evaluation, and the test
    set is looked at once, with those (a model that has details notes them with its last parameters
    too, by which nothing is chosen). With a run folder, a process that is killed at any moment
    goes on by the same call with ``resume=True``, to the same bits on the same machine (a
    DataLoader begins a new pass, so those bits are others).

    Args:
        model: Any module with ``loss(batch, noise)``, on the device where it is to be trained. What
            else it may define is in `nestruct.models.hooks`.
        estimator: Where gradients come from, such as `nestruct.NES`. Where it has a method
            ``prepare(model, batch, seed=)``, that is called first, with the first step's batch.
        optimizer: Any torch optimizer over the model's parameters; an estimator's own parameters
            are added to its first group.
        data: All training examples as one batch: tensors or numpy arrays, alone or in a tuple, dict
            or dataclass. Or a torch Dataset, a Hugging Face dataset, a DataLoader (which gives the
            batches, in its own order), or a function that gives the batch of a step.
        validation: Held-out examples, evaluated at intervals; as ``data``, but no function.
        test: Examples for the end, likewise.
        scheduler: A torch scheduler, stepped after every step (on a plateau: every evaluation).
        seed: Decides every draw and the order of the data.
        run: A folder to write checkpoints and logs to; nothing is written when None.
        resume: Whether to go on where the run folder stands; a folder without a run starts one.
            All settings must be those that the run began with, but for how long it is, when and in
            what pieces it is evaluated and saved, the memory that it may take, and the device.
        metrics: A function of (model, batch, noise) for evaluations, see `nestruct.evaluate`; or
            one for each split, by its name (``validation``, ``test``).
        describe: What examples look like, for the report's drawings.
        baselines: Structures found without learning, by name, to compare with in the report.
        callbacks: Called with every record of ``metrics.jsonl``, in rank 0: a
            `nestruct.training.Event`, which has the model and the step, and can stop the training.
        loggers: Get the numbers of every record, in rank 0; see `nestruct.training.Logger`. They
            are closed at the end.
        config: What ``config.toml`` says; put together from the arguments when None.
        progress: Whether to show progress.
        first: Called before the first step of a new run, not of a continued one. It may set the
            model's parameters, and returns what that cost, which is added to the run's cost. Its
            argument is a function that shows a sentence.
        init_from: The run folder that the model's parameters come from, if any. A new run notes it
            with their checksum, and a resumed one refuses others.
        **options: Steps, intervals, early stopping: the fields of `nestruct.training.Training`.

    Example:
        >>> import torch, nestruct
        >>> from nestruct.models import mlp
        >>> vae = nestruct.StructuredVAE(mlp(6, 4), mlp(4, 6), nestruct.Categorical(4))
        >>> nes = nestruct.NES(sigma=0.1, population_size=8)
        >>> adam = torch.optim.Adam(vae.parameters(), lr=0.01)
        >>> nestruct.fit(vae, nes, adam, torch.ones(10, 6), max_steps=3, progress=False).reason
        'finished'
    """
    model = unwrap(model)
    device, dtype = device_of_model(model) or torch.device("cpu"), dtype_of_model(model)
    check_loggers(loggers)
    check_callbacks(callbacks)
    loggers = loggers if my_rank() == 0 else ()
    session = Session(run, resume=resume, device=device)
    settings = Training.from_options(keep_intervals(session.read_config(), options))
    settings.check_for_fit()
    seed = check_value("seed", seed, int)
    validation, test = (
        None
        if split is None
        else to_device(read_whole(split, dtype=dtype, device=device, share=True), device)
        for split in (validation, test)
    )
    data = read_data(data, dtype)
    is_loader = isinstance(data, Loader)
    if not callable(data):
        data = to_device(data, device)
        if isinstance(model, HasBegin) and not isinstance(data, Loader | Rows):
            model.begin(data)
        data = make_minibatches(data, settings.batch_size, seed)
    settings = settings.in_steps(
        data.steps_per_epoch if isinstance(data, HasStepsPerEpoch) else None
    )
    if settings.patience is not None and validation is None:
        raise InputError("training.patience needs a validation set; give validation=...")
    check_optimizer(optimizer, model)
    check_estimator(estimator)
    batch = data(0)  # for the estimator to look at
    check_same_on_all_ranks(batch, device)
    estimator.prepare(model, batch, seed=seed)
    join_parameters(estimator, optimizer)
    share_model(model)
    config = config or describe_call(estimator, optimizer, scheduler, settings, seed)
    if settings.max_epochs is not None:
        config = in_steps(config, settings)
    if is_loader:
        config = {"data": {"source": "DataLoader"}} | config

    def measure(split: str, examples: Any) -> dict[str, float]:
        with matmul_precision(settings.matmul_precision):
            return evaluate(
                model,
                examples,
                seed=derive_seed(seed, Purpose.EVALUATION),
                batch_size=settings.eval_batch_size,
                metrics=metrics.get(split) if isinstance(metrics, Mapping) else metrics,
                share=True,
            )

    untrained = None
    if not session.continues:  # what can go wrong should, before anything is written
        session.check_is_free()
        if validation is not None:
            untrained = measure("validation", validation)
            check_name("training.metric", settings.metric, untrained)
    display = Display(
        Console() if progress and my_rank() == 0 else None,
        max_steps=settings.max_steps,
        metric=settings.metric,
    )
    parts: dict[str, Any] = {
        "model": model,
        "estimator": estimator,
        "optimizer": optimizer,
        "scheduler": scheduler,
    }
    with (
        matmul_precision(settings.matmul_precision),
        session.open(config, **parts, max_steps=settings.max_steps, init_from=init_from),
        forked_generators(device),
        display,
        closing(loggers),
    ):
        for text in session.notes:
            display.note(text)
        now = session.now
        if now.reason is not None:
            display.note(f"This run {now.reason} at step {now.step}: nothing is left to do.")
            if session.best_model is not None:
                load_state(model, session.best_model)
            return _result(now)
        if is_loader and not session.begins:
            display.note(_FRESH_ORDER)
        if session.begins:
            if first is not None:
                spent, untrained = first(display.note), None
                for name, value in vars(spent).items():
                    setattr(now, name, value)
            estimator.plan(model, batch, seed=seed)
            session.begin()
        drawings = None
        if isinstance(model, StructuredModel) and not isinstance(validation, Pieces | None):
            drawings = Drawings(model, validation, describe, baselines)
        Loop(
            **parts,
            minibatch=data,
            measure=measure,
            validation=validation,
            test=test,
            settings=settings,
            seed=seed,
            session=session,
            drawings=drawings,
            callbacks=callbacks if my_rank() == 0 else (),
            loggers=loggers,
            display=display,
            untrained=untrained,
        ).run()
        for text in session.end():
            display.note(text)
        if now.reason == "interrupted" and session.folder is not None:
            how = session.folder.how
            display.note(f"Stopped at step {now.step}, all is saved; continue with {how}.")
    return _result(now)


def _result(now: Progress) -> FitResult:
    return FitResult(**{f.name: getattr(now, f.name) for f in dataclasses.fields(FitResult)})
