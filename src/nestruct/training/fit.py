"""`fit`: the five-line entry to training, and the loop behind ``nestruct train``.

Every draw comes from (seed, step), the order of the data too, so a checkpoint needs no random
state, and a run that was killed and resumed ends in the same bits as one that was not.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from nestruct.data import batch_size, make_minibatches, select_rows, to_device
from nestruct.errors import InputError, check_name
from nestruct.estimators.nes import NES
from nestruct.estimators.smoothing import smoothing_gap
from nestruct.models import StructuredModel
from nestruct.noise import Purpose, derive_seed, forked_generators
from nestruct.population.shard import (
    first_rank_decides,
    my_rank,
    share_model,
    wait_for_all,
    world_size,
)
from nestruct.training.attachment import can_count, note_attachment
from nestruct.training.checks import check_value
from nestruct.training.drawings import Drawings
from nestruct.training.evaluate import Metrics, as_in_use, evaluate, matmul_precision
from nestruct.training.loop import Loop
from nestruct.training.optimizers import check_optimizer, join_parameters
from nestruct.training.options import Training
from nestruct.training.progress import Console, Display
from nestruct.training.run import (
    Progress,
    Record,
    RunFolder,
    check_is_free,
    compare_configs,
    describe_environment,
    find_best_model,
    newest_checkpoint,
    read_config,
    restore,
)
from nestruct.training.settings import describe_call, describe_training, keep_intervals

_GAP_EXAMPLES = 1000  # that the distance of the smoothed loss is measured on


@dataclass(frozen=True)
class Spent:
    """What was spent on a model before its training, and counts: losses evaluated, and seconds."""

    evaluations: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class FitResult:
    """How a training ended.

    Args:
        step: Steps done.
        reason: ``finished``, ``stopped early`` (no improvement for ``patience`` evaluations), or
            ``interrupted``.
        initial: Validation metrics before the first step; None without a validation set.
        best: Validation metrics at ``best_step``.
        best_step: Where the validation metric was best; unless interrupted, the model is left with
            those parameters.
        test: Test metrics at ``best_step``; None without a test set.
        seconds: Wall-clock of all sessions.
        evaluations: Losses evaluated: members x samples x steps.
    """

    step: int
    reason: str
    initial: dict[str, float] | None
    best: dict[str, float] | None
    best_step: int | None
    test: dict[str, float] | None
    seconds: float
    evaluations: int


def fit(
    model: nn.Module,
    estimator: Any,
    optimizer: torch.optim.Optimizer,
    data: Any,
    *,
    validation: Any = None,
    test: Any = None,
    scheduler: LRScheduler | ReduceLROnPlateau | Any = None,
    seed: int = 0,
    run: str | Path | None = None,
    resume: bool = False,
    metrics: Metrics | None = None,
    describe: Callable[[Any], dict[str, Any]] | None = None,
    baselines: Callable[[Any], dict[str, Tensor]] | None = None,
    callbacks: Sequence[Callable[[Record], None]] = (),
    config: dict[str, Any] | None = None,
    progress: bool = True,
    first: Callable[[Callable[[str], None]], Spent] | None = None,
    **options: Any,
) -> FitResult:
    """Trains a model.

    With a validation set the model ends with the parameters of its best evaluation, and the test
    set is looked at once, with those (a parser also notes what its last parameters attach there, by
    which nothing is chosen). With a run folder, a process that is killed at any moment
    goes on by the same call with ``resume=True``, to the same bits on the same machine.

    Args:
        model: Any module with ``loss(batch, noise)``, on the device where it is to be trained.
        estimator: Where gradients come from, such as `nestruct.NES`. Where it has a method
            ``prepare(model, batch, seed=)``, that is called first, with the first step's batch.
        optimizer: Any torch optimizer over the model's parameters; an estimator's own parameters
            are added to its first group.
        data: All training examples as one batch (see `nestruct.select_rows`), or a function that
            gives the batch of a step.
        validation: Held-out examples, evaluated at intervals.
        test: Examples for the end.
        scheduler: A torch scheduler, stepped after every step (on a plateau: every evaluation).
        seed: Decides every draw and the order of the data.
        run: A folder to write checkpoints and logs to; nothing is written when None.
        resume: Whether to go on where the run folder stands; a folder without a run starts one.
            All settings must be those that the run began with, but for how long it is, when and in
            what pieces it is evaluated and saved, the memory that it may take, and the device.
        metrics: A function of (model, batch, noise) for evaluations; see `nestruct.evaluate`.
        describe: What examples look like, for the report's drawings.
        baselines: Structures found without learning, by name, to compare with in the report.
        callbacks: Called with every record of ``metrics.jsonl``, in rank 0.
        config: What ``config.toml`` says; put together from the arguments when None.
        progress: Whether to show progress.
        first: Called before the first step of a run, but not where one is continued: may set the
            model's parameters, and gives what that cost, which is counted. It is given a function
            that shows a sentence.
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
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    path = None if run is None else Path(run)
    continues = resume and path is not None and (path / "config.toml").exists()
    continues = bool(first_rank_decides(float(continues), device))
    if continues and path is not None:
        options = keep_intervals(read_config(path), options)
    settings = Training.from_options(options)
    seed = check_value("seed", seed, int)
    validation = None if validation is None else to_device(validation, device)
    test = None if test is None else to_device(test, device)
    if not callable(data):
        data = make_minibatches(to_device(data, device), settings.batch_size, seed)
    settings = settings.in_steps(getattr(data, "steps_per_epoch", None))
    if settings.num_starts > 1:
        raise InputError("training.num_starts is for recipes: fit has only this one model.")
    if settings.patience is not None and validation is None:
        raise InputError("training.patience needs a validation set; give validation=...")
    if settings.smoothing_gap and not isinstance(estimator, NES):  # SNES is one
        raise InputError(
            "training.smoothing_gap needs an estimator that smooths the loss by a sigma of the "
            f"parameters, such as NES; {type(estimator).__name__} has none."
        )
    check_optimizer(optimizer, model)
    if hasattr(estimator, "prepare"):
        estimator.prepare(model, data(0), seed=seed)
    join_parameters(estimator, optimizer)
    share_model(model)
    config = config or describe_call(estimator, optimizer, scheduler, settings, seed)
    if settings.max_epochs is not None:  # what it came to in steps
        config = config | {"training": config["training"] | describe_training(settings)}

    def measure(examples: Any) -> dict[str, float]:
        own = derive_seed(seed, Purpose.EVALUATION)
        with matmul_precision(settings.matmul_precision):
            values = evaluate(
                model, examples, seed=own, batch_size=settings.eval_batch_size, metrics=metrics
            )
            if settings.smoothing_gap and examples is validation:
                rows = torch.arange(min(_GAP_EXAMPLES, batch_size(validation)), device=device)
                some, number = select_rows(validation, rows), settings.smoothing_gap
                options = {"sigma": estimator.sigma, "num_perturbations": number, "seed": own}
                with as_in_use(model):
                    values["smoothing_gap"] = smoothing_gap(model, some, **options).gap
        return values

    untrained = None
    if not continues:  # what can go wrong should, before anything is written
        if path is not None and my_rank() == 0:
            check_is_free(path)
        if validation is not None:
            untrained = measure(validation)
            check_name("training.metric", settings.metric, untrained)
    display = Display(
        Console() if progress and my_rank() == 0 else None,
        max_steps=settings.max_steps,
        metric=settings.metric,
    )
    threads = torch.get_num_threads()
    with contextlib.ExitStack() as stack:
        stack.callback(torch.set_num_threads, threads)
        stack.enter_context(matmul_precision(settings.matmul_precision))
        folder = None
        if path is not None and my_rank() == 0:
            folder = RunFolder(path, config)
            stack.callback(folder.close)
            if not continues:
                folder.create(describe_environment(device, world_size()))
        wait_for_all()  # rank 0 holds the folder before anyone reads it
        now, best_model, notes, begins = Progress(), None, [], True
        if continues and path is not None:
            compare_configs(read_config(path), config)
            found, refused = newest_checkpoint(path)
            notes += [f"Not used: {reason}." for reason in refused]
            if found is not None:
                begins = False
                now = restore(found, model, optimizer, scheduler, estimator)
                if now.reason == "finished" and now.step < settings.max_steps:
                    now.reason = now.test = None  # asked to go on for longer
                best_model = find_best_model(path, now, notes)
                if now.reason is None:
                    notes.append(f"Continuing at step {now.step}.")
            else:
                notes.append("There is no checkpoint to continue from: starting anew at step 0.")
            if now.threads != threads:
                notes.append(f"Using {now.threads} threads, as before: others round otherwise.")
                torch.set_num_threads(now.threads)
        wait_for_all()  # everyone has read before rank 0 writes
        if folder is not None and now.reason is None:
            notes += folder.take_up(now.step, now.lines)
        drawings = None
        if isinstance(model, StructuredModel) and validation is not None:
            drawings = Drawings(model, validation, describe, baselines)
        note_details = None
        if folder is not None and test is not None and can_count(model, test):
            note_details = partial(_note, folder, model, test, settings.eval_batch_size)
        loop = Loop(
            model=model,
            estimator=estimator,
            optimizer=optimizer,
            scheduler=scheduler,
            minibatch=data,
            measure=measure,
            validation=validation,
            test=test,
            settings=settings,
            seed=seed,
            device=device,
            folder=folder,
            drawings=drawings,
            callbacks=callbacks if my_rank() == 0 else (),
            display=display,
            now=now,
            untrained=untrained,
            best_model=best_model,
            note_details=note_details,
        )
        stack.enter_context(forked_generators(device))
        stack.enter_context(display)
        for text in notes:
            display.note(text)
        if now.reason is None:
            try:
                if begins and first is not None:
                    spent = first(display.note)
                    now.evaluations, now.seconds = spent.evaluations, spent.seconds
                    loop.untrained = None
                loop.run()
            except InputError:
                if folder is not None and not continues and now.step == 0:
                    folder.undo()  # refused at its first step: there is nothing to continue
                raise
        else:
            display.note(f"This run {now.reason} at step {now.step}: nothing is left to do.")
            if best_model is not None:
                model.load_state_dict(best_model)
        if now.reason == "interrupted" and folder is not None:
            display.note(f"Stopped at step {now.step}, all is saved; continue with {folder.how}.")
    return FitResult(**{f.name: getattr(now, f.name) for f in dataclasses.fields(FitResult)})


def _note(folder: RunFolder, model: Any, test: Any, batch_size: int, name: str, step: int) -> None:
    with folder.one_sentence():
        note_attachment(folder.path, name, step, model, test, batch_size=batch_size)
