"""From a recipe to a trained model, and from a run folder back to the model."""

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from nestruct.data import to_device
from nestruct.data.sentences import collate
from nestruct.data.treebank import read_treebank
from nestruct.errors import InputError, NestructError
from nestruct.models import ParserVAE
from nestruct.noise import Purpose, derive_seed, forked_generators
from nestruct.population.shard import first_rank_decides
from nestruct.training.attachment import can_count, note_attachment
from nestruct.training.evaluate import evaluate, matmul_precision
from nestruct.training.fit import FitResult, Spent, fit
from nestruct.training.recipes.parts import PARTS
from nestruct.training.recipes.recipe import Recipe, Section, resolve_device
from nestruct.training.run import (
    Checkpoint,
    check_is_free,
    fill_model,
    find_checkpoint,
    read_config,
)
from nestruct.training.tensorboard import TensorBoard
from nestruct.wording import number

log = logging.getLogger("nestruct")


@dataclass
class Experiment:
    """What a recipe describes, built."""

    data: Any
    model: nn.Module
    estimator: Any
    optimizer: torch.optim.Optimizer
    scheduler: Any


def build(recipe: Recipe, start: int = 0) -> Experiment:
    """Builds everything but the data's examples, which take time."""
    data = _make("data", recipe.data)
    model = build_model(recipe, data, start).to(recipe.device)
    estimator = _make("estimator", recipe.estimator)
    _rehearse(recipe)
    optimizer = _make("optimizer", recipe.optimizer, list(model.parameters()))
    scheduler = None
    if recipe.scheduler is not None:
        scheduler = _make("scheduler", recipe.scheduler, optimizer)
    return Experiment(data, model, estimator, optimizer, scheduler)


def build_model(recipe: Recipe, data: Any, start: int = 0) -> nn.Module:
    """The untrained model; its first parameters depend on the recipe's seed and the start alone."""
    given = PARTS["model"][recipe.model.name].given
    stream = (Purpose.PARAMETERS, start) if start else (Purpose.PARAMETERS,)
    with forked_generators():
        torch.manual_seed(derive_seed(recipe.seed, *stream))
        return _make("model", recipe.model, **{name: getattr(data, name) for name in given})


def train(
    recipe: Recipe,
    run: str | Path,
    *,
    resume: bool = False,
    init_from: str | Path | None = None,
    tensorboard: bool = False,
    progress: bool = True,
) -> FitResult:
    """Trains a recipe in a run folder; see `fit`.

    Args:
        recipe: What to train.
        run: The run folder.
        resume: Whether to continue what is there.
        init_from: Another run, whose best parameters are the first ones of this.
        tensorboard: Whether to write TensorBoard's files into the run folder too.
        progress: Whether to show progress.
    """
    if not resume:
        check_is_free(Path(run))  # before the data are made
    if init_from is not None and recipe.training.num_starts > 1:
        raise InputError("--init-from gives the first parameters: say training.num_starts=1.")
    experiment = build(recipe)
    if init_from is not None:
        read_config(Path(init_from))
        fill_model(experiment.model, find_checkpoint(init_from, "best")[1].model, init_from)
    splits = experiment.data.splits()
    first = None
    if recipe.training.num_starts > 1:
        first = partial(_try_starts, recipe, experiment.model, splits)
    board = TensorBoard(Path(run)) if tensorboard else None
    try:
        return fit(
            experiment.model,
            experiment.estimator,
            experiment.optimizer,
            splits["train"],
            validation=splits.get("validation"),
            test=splits.get("test"),
            scheduler=experiment.scheduler,
            seed=recipe.seed,
            run=run,
            resume=resume,
            describe=getattr(experiment.data, "drawing", None),
            baselines=getattr(experiment.data, "baselines", None),
            callbacks=() if board is None else (board,),
            config=recipe.to_config(),
            progress=progress,
            first=first,
            **vars(recipe.training) | {"num_starts": 1},
        )
    finally:
        if board is not None:
            board.close()


def _try_starts(
    recipe: Recipe, model: nn.Module, splits: dict[str, Any], say: Callable[[str], None]
) -> Spent:
    """Leaves in the model the parameters of the best of several short trainings."""
    settings, best, spent = recipe.training, None, Spent()
    steps = settings.start_steps
    short = dataclasses.replace(
        settings, max_steps=steps, log_interval=steps, patience=None, num_starts=1
    )
    for start in range(settings.num_starts):
        candidate = build(recipe, start)
        try:
            result = fit(
                candidate.model,
                candidate.estimator,
                candidate.optimizer,
                splits["train"],
                # The training itself has other minibatches and other draws.
                seed=derive_seed(recipe.seed, Purpose.STARTS),
                progress=False,
                **vars(short),
            )
        except InputError:
            raise
        except NestructError as error:
            say(f"Start {start + 1} of {settings.num_starts} failed. {error}")
            continue
        if result.reason == "interrupted":
            raise KeyboardInterrupt
        value = _measure(recipe, candidate.model, splits["validation"])[settings.metric]
        value = first_rank_decides(value, torch.device(recipe.device))
        say(
            f"Start {start + 1} of {settings.num_starts}: validation {settings.metric} "
            f"{number(value)} after {result.step} steps."
        )
        spent = Spent(spent.evaluations + result.evaluations, spent.seconds + result.seconds)
        if settings.is_better(value, best):
            best = value
            model.load_state_dict(candidate.model.state_dict())
    if best is None:
        raise NestructError(
            f"None of {settings.num_starts} starts had a finite {settings.metric} after {steps} "
            "steps; a smaller learning rate may help."
        )
    return spent


def load(
    run: str | Path,
    model: nn.Module | None = None,
    *,
    checkpoint: str = "best",
    device: str = "auto",
) -> nn.Module:
    """A trained model back from its run folder, ready to ``infer`` and ``sample``.

    Args:
        run: The run folder.
        model: For a run made by `fit`: the model, built as it was; its parameters are filled in.
        checkpoint: ``best`` (on validation) or ``last``.
        device: Where to put it.

    Raises:
        InputError: The folder is no run, has no good checkpoint, or fits another model.
    """
    return _load(run, model, checkpoint, device)[1]


def _load(
    run: str | Path, model: nn.Module | None, checkpoint: str, device: str
) -> tuple[int, nn.Module]:
    """The step of the parameters, and the model."""
    config = read_config(Path(run))
    _, found = find_checkpoint(run, checkpoint)
    if model is None:
        if "recipe" not in config:
            raise InputError(
                f"{run} was made by fit(), which cannot know how the model was built: build it "
                "again and say nestruct.load(run, model)."
            )
        recipe = Recipe.from_tables(config | {"device": resolve_device(device)})
        model = _rebuild(recipe, found)
    fill_model(model, found.model, run)
    return found.step, model.to(resolve_device(device)).eval()


def _rebuild(recipe: Recipe, checkpoint: Checkpoint) -> nn.Module:
    """The model of a run, without its data where the checkpoint knows what they decided."""
    part = PARTS["model"][recipe.model.name]
    if not hasattr(part.make, "given_by"):
        return build_model(recipe, _make("data", recipe.data))
    return _make("model", recipe.model, **part.make.given_by(checkpoint.model))


def evaluate_run(
    run: str | Path, *, split: str = "test", checkpoint: str = "best", device: str = "auto"
) -> tuple[int, dict[str, float]]:
    """The step of a run's checkpoint, and the metrics of its model on one of its splits.

    Of a parser on test data, what it attaches is noted in the run folder; see
    `nestruct.training.attachment`.
    """
    config = read_config(Path(run))
    if "recipe" not in config:
        raise InputError(
            f"{run} was made by fit() in a program, which alone has its data: call "
            "nestruct.evaluate there."
        )
    recipe = Recipe.from_tables(config | {"device": resolve_device(device)})
    data = _make("data", recipe.data)
    model = build_model(recipe, data)
    name, found = find_checkpoint(run, checkpoint)
    fill_model(model, found.model, run)
    model.to(recipe.device)
    splits = data.splits()
    if split not in splits:
        raise InputError(f"The data of {run} have no {split} split; there are {', '.join(splits)}.")
    if split in getattr(data, "hidden", ()):
        raise InputError(
            f"{run} trains on sentences without their trees, so there is nothing to compare with; "
            "say --split test or validation."
        )
    examples = splits[split]
    values = _measure(recipe, model, examples)
    if split == "test" and can_count(model, examples):
        try:
            size = recipe.training.eval_batch_size
            with matmul_precision(recipe.training.matmul_precision):
                note_attachment(Path(run), name, found.step, model, examples, batch_size=size)
        except OSError as error:
            log.warning("What it attaches was not noted: %s.", error)
    return found.step, values


def evaluate_file(
    run: str | Path,
    file: str | Path,
    *,
    skip_bad: bool = False,
    checkpoint: str = "best",
    device: str = "auto",
) -> tuple[int, dict[str, float]]:
    """The step of a parser's checkpoint, and its metrics on the trees of a CoNLL-U file.

    The data of the run are not needed.
    """
    step, model = _load(run, None, checkpoint, device)
    if not isinstance(model, ParserVAE):
        raise InputError(f"{run} holds no parser but a {type(model).__name__}: no file to compare.")
    sentences = read_treebank(file, skip_bad=skip_bad)
    if not sentences:
        raise InputError(f"{file} has no sentences.")
    recipe = Recipe.from_tables(read_config(Path(run)) | {"device": resolve_device(device)})
    batch = collate(sentences, model.vocabulary, trees=True)
    return step, _measure(recipe, model, batch)


def _measure(recipe: Recipe, model: nn.Module, examples: Any) -> dict[str, float]:
    """What an evaluation of the recipe's run gives."""
    with matmul_precision(recipe.training.matmul_precision):
        return evaluate(
            model,
            to_device(examples, torch.device(recipe.device)),
            seed=derive_seed(recipe.seed, Purpose.EVALUATION),
            batch_size=recipe.training.eval_batch_size,
        )


def _rehearse(recipe: Recipe) -> None:
    """One step of optimizer and scheduler on a dummy: torch checks some options only there."""
    dummy = nn.Parameter(torch.zeros(2, 2, device=recipe.device))
    dummy.grad = torch.ones_like(dummy)
    part, scheduler = recipe.optimizer, None
    optimizer = _make("optimizer", part, [dummy])
    if recipe.scheduler is not None:
        scheduler = _make("scheduler", recipe.scheduler, optimizer)
    try:
        optimizer.step()
        if recipe.scheduler is not None and scheduler is not None:
            part = recipe.scheduler
            scheduler.step(*[0.0] * isinstance(scheduler, ReduceLROnPlateau))
    except Exception as error:
        raise InputError(f"{part.name} cannot take a step with these options: {error}.") from None


def _make(key: str, section: Section, *given: Any, **more: Any) -> Any:
    try:
        return PARTS[key][section.name].make(*given, **more, **section.options)
    except InputError:
        raise
    except Exception as error:  # torch's own checks of an option
        raise InputError(f"[{key}] {section.name}: {error}") from None
