"""What methods, data and latent spaces are called, and the names of groups made from that.

By default they are called as configurations call them. A package like `nestruct.reports.paper` adds
a `Naming` with better words for the runs that it knows.
"""

from collections.abc import Mapping, Sequence

from nestruct.reports.groups import Group, differences, own_title, unlike
from nestruct.reports.runs import Run
from nestruct.reports.tables import Cell


class Naming:
    """Words for some runs; each method gives None, or nothing, where it has no word for one."""

    def method(self, run: Run) -> str | None:
        """What a run's method is called."""

    def structure(self, run: Run) -> str | None:
        """What a run's latent space is called."""

    def data(self, run: Run) -> str | None:
        """What a run's data are called."""

    def task(self, run: Run) -> str | None:
        """What a run must share with others to be compared, besides data and latent space."""

    def is_aside(self, run: Run) -> bool:
        """True if a run has other settings than those that its method is compared with."""
        return False

    def goes_on(self, run: Run) -> bool:
        """True if a run starts with what another one learnt."""
        return False

    def place(self, run: Run) -> tuple[int, ...] | None:
        """Where a run stands among others, by order."""

    def printed(self, run: Run) -> Mapping[tuple[str, str], Cell]:
        """What others have published for a run: by who did, and what they measured."""
        return {}


NAMINGS: list[Naming] = []


def method_name(run: Run) -> str | None:
    """What a run's method is called, else its estimator's name."""
    name = run.option("estimator.name")
    found = (words.method(run) for words in NAMINGS)
    return next(filter(None, found), name if isinstance(name, str) else None)


def structure_name(run: Run) -> str | None:
    """What a run's latent space is called, where its configuration says."""
    name = run.option("model.structure") or run.option("structure.name")
    found = (words.structure(run) for words in NAMINGS)
    return next(filter(None, found), name if isinstance(name, str) else None)


def data_name(run: Run) -> str:
    """What a run's data are called, where a recipe is about data of one kind."""
    found = (words.data(run) for words in NAMINGS)
    return next(filter(None, found), str(run.option("data.dataset") or ""))


def space_name(run: Run) -> str | None:
    """What runs must share for their numbers to be compared: data of one kind, latent space."""
    return ", ".join(filter(None, [data_name(run), structure_name(run)])) or None


def task_name(run: Run) -> str | None:
    """What a run's method is compared on: data, latent space, and what else a naming asks for."""
    found = (words.task(run) for words in NAMINGS)
    return ", ".join(filter(None, [space_name(run), *found])) or None


def is_aside(run: Run) -> bool:
    """True if a run has other settings than those that its method is compared with."""
    return any(words.is_aside(run) for words in NAMINGS)


def goes_on(run: Run) -> bool:
    """True if a run starts with what another one learnt."""
    told = "--init-from" in str(run.environment.get("command", ""))
    return told or any(words.goes_on(run) for words in NAMINGS)


def printed(run: Run) -> dict[tuple[str, str], Cell]:
    """What others have published for a run: by who did, and what they measured."""
    return {key: cell for words in NAMINGS for key, cell in words.printed(run).items()}


def named(groups: Sequence[Group]) -> list[Group]:
    """Groups in the order of namings, those without a place last, under short names."""
    groups = sorted(groups, key=_place)
    if len(groups) == 1:
        return groups
    names = short_names([group.runs[0] for group in groups], [group.label for group in groups])
    return [Group(name, group.runs) for name, group in zip(names, groups, strict=True)]


def short_names(runs: Sequence[Run], labels: Sequence[str]) -> list[str]:
    """Names by method, data and latent space, where there are several, and by what else differs.

    Titles are not about these, so they are left out, but where they tell the runs of one method
    apart by themselves.

    Args:
        runs: The first of each group.
        labels: What runs without a method are called, and those of which nothing differs.
    """
    methods = [method_name(run) or "" for run in runs]
    if len(set(methods)) == 1 and len(set(map(own_title, runs))) == len(runs):
        return list(labels)
    briefs = [method.partition(",")[0] for method in methods]
    # "NES, a minibatch per pair" is "NES" where there is no other.
    if len(set(briefs)) == len(set(methods)):
        methods = briefs
    columns = [methods, [*map(data_name, runs)], [structure_name(run) or "" for run in runs]]
    several = [column for column in columns if len(set(column)) > 1]
    names = [", ".join(column[k] for column in several if column[k]) for k in range(len(runs))]
    # Once more for those that the first few differences do not tell apart.
    names = _with_differences(_with_differences(names, runs), runs)
    known = zip(names, methods, labels, strict=True)
    return unlike([name if name and method else label for name, method, label in known])


def _place(group: Group) -> tuple[bool, int, tuple[int, ...]]:
    for order, words in enumerate(NAMINGS):
        place = words.place(group.runs[0])
        if place is not None:
            return False, order, place
    return True, 0, ()


def _with_differences(names: Sequence[str], runs: Sequence[Run]) -> list[str]:
    """Names, with what differs between the runs that share one."""
    found = []
    for name, run in zip(names, runs, strict=True):
        twins = [other for other, its in zip(runs, names, strict=True) if its == name]
        found.append(", ".join(filter(None, [name, *differences(run, twins)])))
    return found
