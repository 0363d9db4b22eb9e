"""The `[tune]` table of a study: what is searched, by which criterion, with what budget."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from unseen.errors import UnseenError
from unseen.expression import parse, resolve
from unseen.studies.settings.holdout import Groups, Task
from unseen.studies.settings.length import length
from unseen.studies.settings.search_space import Space
from unseen.studies.settings.wording import Expression, Line, Settings

Count = Annotated[int, Field(ge=1)]


def source_validation() -> int | None:
    """Score a trial on the validation splits of the sources that it was trained on."""
    return None


def lodo(*, groups: int = 5) -> int | None:
    """Score a trial on groups of sources, each trained without."""
    return groups


#: Each returns how many groups of sources are left out in turn, None for none.
CRITERIA = {"source-validation": source_validation, "lodo": lodo, "leave-one-source-out": lodo}


class Tune(Settings):
    """A search inside every (method, target) pair, which reads sources only.

    Attributes:
        space: Setting -> its text with ranges, such as `"training.optimiser" = "sgd(lr=log(0.001,
            1))"`; `METHOD.OPTION` -> another range than the method declares.
        options: Whether the options for which methods declare ranges are searched, too; those that
            an expression sets stay as they are.
        trials: How many settings are tried for each pair; the first are the study's own.
        criterion: `lodo(groups=5)`, or `leave-one-source-out(...)`: trained without a group of
            sources, scored at its sites; `source-validation`: scored on the validation splits of
            the sources.
        metric: What is scored (default: the study's).
        sampler: `tpe`, `random`, or `grid`: all combinations of `one(...)`, whatever `trials` says.
        rounds: How long a trial trains, as the study's `rounds` has it, where that is less than the
            study; None: as long. A number leaves the study's patience as it is. The winner trains
            as long as the study says.
        prune: Trials that are worse than the best so far, by Wilcoxon's test over the sites seen
            with a p below this, are not scored at the other sites; 0 scores all.
        seeds: How many of the study's seeds a trial is played with.
        seed: Of the sampler.
    """

    about: ClassVar[str] = "the search cannot work"
    space: Mapping[str, Any] = {}
    options: bool = True
    trials: Count = 12
    criterion: Expression = "lodo(groups=5)"
    metric: Line | None = None
    sampler: Literal["tpe", "random", "grid"] = "tpe"
    rounds: Count | str | None = None
    prune: Annotated[float, Field(ge=0, lt=1)] = 0.1
    seeds: Count = 1
    seed: Annotated[int, Field(ge=0)] = 0

    @field_validator("space")
    @classmethod
    def _readable(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        for setting, form in value.items():
            Space.read(setting, form)
        return value

    @field_validator("criterion")
    @classmethod
    def _one_of_these(cls, value: str) -> str:
        left_out(value)
        return value

    @field_validator("rounds", mode="before")
    @classmethod
    def _none_if_empty(cls, value: object) -> object:
        # TOML has no null by which a file could take back what its base sets.
        return None if value == "" else value

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.rounds is not None and "rounds" in self.space:
            raise UnseenError(
                "tune.rounds says how long every trial trains, and tune.space searches it.",
                remedy="Leave one of the two out.",
            )
        for name, count in self.length.items():
            if not isinstance(count, int) or count < 1:
                raise UnseenError(
                    f"tune.rounds = {self.rounds!r}: {name} must be an integer of at least 1; "
                    f"found {count!r}."
                )
        return self

    @property
    def length(self) -> dict[str, int]:
        """How long a trial trains, as settings of a study; none of them where as the study does."""
        return {} if self.rounds is None else length(self.rounds)

    def within(self, rounds: int, patience: int | None) -> None:
        """Refuse trials that train for longer than a study.

        Args:
            rounds: Of the study, at most.
            patience: Of the study, if it ends when its loss is flat.
        """
        own = self.length
        if own.get("rounds", 1) > rounds:
            what = f"tune.rounds allows {own['rounds']} rounds, and the study has {rounds}."
            raise UnseenError(what, remedy="Take fewer for the trials, or more for the study.")
        if patience is not None and own.get("patience", 1) > patience:
            raise UnseenError(
                f"tune.rounds waits for {own['patience']} rounds, and the study for {patience}.",
                remedy="Take a smaller patience for the trials, or a larger one for the study.",
            )

    def tasks(self, task: Task) -> tuple[Task, ...]:
        """Return the tasks that a trial is scored at, made of the task's sources alone.

        Raises:
            UnseenError: If there is no second source to leave out.
        """
        groups = left_out(self.criterion)
        if groups is None:
            return (Task(task.name, task.sources, ()),)
        if len(task.sources) < 2:
            raise UnseenError(
                f"tune.criterion = {self.criterion!r} leaves sources out, and task {task.name!r} "
                "has one only.",
                remedy="Take criterion = 'source-validation'.",
            )
        return Groups(groups=groups).tasks(task.sources)


def left_out(criterion: str) -> int | None:
    """Return in how many groups the criterion leaves sources out; None for none."""
    calls = parse(criterion)
    if len(calls) != 1:
        raise UnseenError(f"a search has one criterion; found {criterion!r}.")
    groups = resolve("criterion", calls[0], CRITERIA)
    if groups is not None and (not isinstance(groups, int) or groups < 2):
        raise UnseenError(f"{criterion!r} needs two or more groups.")
    return groups
