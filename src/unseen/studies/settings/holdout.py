"""Hold-out plans: which domains are sources, which validate, which are never seen."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from unseen.errors import UnseenError, check_known
from unseen.studies.settings.wording import Settings

#: A domain's name; sites that are numbered may be written as numbers.
Name = Annotated[str, Field(coerce_numbers_to_str=True)]


@dataclass(frozen=True)
class Task:
    """One column of a table.

    Attributes:
        name: Its name.
        sources: The domains to train on.
        targets: The domains to report.
        validation: The domains to select on; where there are none, the sources' validation splits.
    """

    name: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    validation: tuple[str, ...] = ()


class Fixed(Settings):
    """Lists of source, validation and target domains, as WILDS, FedILC and eICU have them.

    Attributes:
        source: The domains, or "others": all that neither validate nor are targets, by name.
        target: The domains to report.
        validation: The domains to select on.
        name: The task's name.
    """

    source: tuple[Name, ...] | Literal["others"]
    target: tuple[Name, ...]
    validation: tuple[Name, ...] = ()
    name: str = "target"

    def tasks(self, domains: Sequence[str]) -> tuple[Task, ...]:
        source = self.source
        if source == "others":
            source = tuple(sorted(set(domains) - {*self.target, *self.validation}))
        return (Task(self.name, source, self.target, self.validation),)


class Growing(Settings):
    """One target; sources join one by one in the given order, from `first` of them on."""

    growing: tuple[Name, ...]
    target: tuple[Name, ...]
    first: Annotated[int, Field(ge=1)] = 1

    def tasks(self, domains: Sequence[str]) -> tuple[Task, ...]:
        counts = range(self.first, len(self.growing) + 1)
        return tuple(Task(str(n), self.growing[:n], self.target) for n in counts)


class Groups(Settings):
    """Groups of domains, each left out in turn: leave-one-domain-out for many domains.

    Attributes:
        groups: How many groups G; the domains at places g, g + G, ... of the sorted names are one.
        of: The domains that are left out in turn; all others are sources always. None: all domains.
    """

    groups: Annotated[int, Field(ge=2)]
    of: tuple[Name, ...] | None = None

    def tasks(self, domains: Sequence[str]) -> tuple[Task, ...]:
        """One task for each group, named by its first domain; of one each where G is larger."""
        check_known("domain", domains, *self.of or ())
        ordered = sorted(domains)
        leave = [d for d in ordered if self.of is None or d in self.of]
        G = min(self.groups, len(leave))
        left_out = [tuple(leave[g::G]) for g in range(G)]
        return tuple(
            Task(out[0], tuple(d for d in ordered if d not in out), out) for out in left_out
        )


class Alone(Settings):
    """Every domain as the only source, and all others as targets: a site's own model elsewhere."""

    alone: Literal[True]

    def tasks(self, domains: Sequence[str]) -> tuple[Task, ...]:
        """One task for each domain, named by it."""
        return tuple(Task(own, (own,), tuple(d for d in domains if d != own)) for own in domains)


#: The plans that are tables of a study's file, by a key that only they have.
TABLES = {"growing": Growing, "groups": Groups, "alone": Alone}
Holdout = Literal["leave-one-domain-out", "none"] | Fixed | Growing | Groups | Alone
#: Plans by name; another name is that of the one domain to hold out.
PLANS = ("leave-one-domain-out", "none")
#: The task of a plan that holds nothing out.
EVERYTHING = "all"


def plan(
    holdout: Holdout, domains: Sequence[str], only: Sequence[str] | None = None
) -> tuple[Task, ...]:
    """Return the tasks of a plan; `none` holds nothing out.

    Args:
        holdout: The plan.
        domains: The names of all domains, in the data set's order.
        only: The names of the tasks to return; None for all.

    Example:
        >>> [task.sources for task in plan("leave-one-domain-out", ["a", "b", "c"], only=["b"])]
        [('a', 'c')]
    """
    if holdout == "none":
        tasks: tuple[Task, ...] = (Task(EVERYTHING, tuple(domains), ()),)
    elif isinstance(holdout, str):
        if len(domains) < 2:
            what = f"leave-one-domain-out needs at least two domains; found {list(domains)}. With "
            what += "one domain there is nothing unseen."
            raise UnseenError(what, remedy="Give each site its own domain.")
        tasks = tuple(
            Task(target, tuple(d for d in domains if d != target), (target,)) for target in domains
        )
    else:
        tasks = holdout.tasks(domains)
    for task in tasks:
        _check(task, domains, holdout == "none")
    if not tasks:
        raise UnseenError(
            f"a growing plan needs at least first = {getattr(holdout, 'first', 1)} sources in "
            "`growing`; it has fewer."
        )
    if only is not None and not only:
        raise UnseenError("targets names no task.", remedy="Leave it out to have them all.")
    names = [task.name for task in tasks]
    asked = tuple(only or ())
    if (whole := ", ".join(asked)) in names and not {*asked} & {*names}:
        raise UnseenError(
            f"the target {whole!r} has a comma in its name, and was taken for {len(asked)}.",
            remedy=f"Write it in quotes: --targets \"'{whole}'\" (in Python: targets=[{whole!r}]).",
        )
    check_known("target", names, *asked)
    return tuple(task for task in tasks if only is None or task.name in only)


def _check(task: Task, domains: Sequence[str], whole: bool) -> None:
    used = (*task.sources, *task.validation, *task.targets)
    check_known("domain", domains, *used)
    if twice := sorted({name for name in used if used.count(name) > 1}):
        raise UnseenError(
            "a domain may be source, validation or target, and only one of them; found "
            f"{', '.join(twice)} twice."
        )
    if not task.sources or not (task.targets or whole):
        raise UnseenError(f"task {task.name!r} needs at least one source and one target domain.")
