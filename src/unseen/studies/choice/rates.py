"""Learning rates: of an optimiser's expression, of a study, and the range around one."""

from collections.abc import Sequence
from typing import Any

from unseen.errors import UnseenError
from unseen.expression import Call, parse, text
from unseen.methods.compose import method as compose
from unseen.ranges import log
from unseen.studies.choice.trials import Trials
from unseen.studies.execution import Study
from unseen.studies.settings.study import StudySpec

#: Rounds until a network has to be flat, as a multiple of the study's.
LIMIT = 5


def changed(study: StudySpec, methods: Sequence[str], holdout: Any, factor: float) -> Study:
    """Return the study with these methods and plan, at a multiple of its learning rate."""
    rate = learning_rate(study.training.optimiser)
    training = study.training.model_copy(
        update={"optimiser": at_rate(study.training.optimiser, factor * rate)}
    )
    settings = study.model_dump(exclude_defaults=True) | {
        "methods": tuple(methods),
        "holdout": holdout,
        "training": training.model_dump(),
        "selection": "last",
        "reference": None,
        "published": {},
        "evaluate_every": study.rounds if study.patience is None else study.evaluate_every,
        "targets": None,
    }
    return Study(**settings)


def until_flat(study: StudySpec) -> StudySpec:
    """Return the study with networks that train until flat, for at most `LIMIT` times its rounds.

    A network is flat when the sources' validation loss has not fallen for a third of those rounds.
    """
    rounds, patience = LIMIT * study.rounds, max(1, round(study.rounds / 3))
    every = max(1, patience // 5)
    return study.model_copy(
        update={"rounds": rounds, "patience": patience, "evaluate_every": every}
    )


def settings_of(trials: Trials, recipe: str) -> dict[str, Any]:
    """Return the settings of a study that trains a recipe at all sites, at its best rate."""
    by_rounds = trials.flat and compose(recipe).rounds is None
    own = until_flat(trials.settings) if by_rounds else trials.settings
    whole = changed(own, [recipe], "none", trials.by_recipe[recipe].best)
    return whole.model_dump(mode="json", exclude_defaults=True) | {"metric": trials.metric}


def learning_rate(optimiser: str) -> float:
    """Return the rate of an optimiser's expression."""
    (call,) = parse(optimiser)
    rate = call.arguments.get("lr")
    if not isinstance(rate, float | int):
        raise UnseenError(
            f"the optimiser {optimiser!r} names no learning rate to search around.",
            remedy="Write it, as in sgd(lr=0.05).",
        )
    return float(rate)


def at_rate(optimiser: str, rate: float) -> str:
    """Return the optimiser's expression with another rate."""
    (call,) = parse(optimiser)
    return text((Call(call.name, {**call.arguments, "lr": float(f"{rate:.6g}")}),))


def around(optimiser: str) -> str:
    """Return an optimiser with a range of rates, a tenth to ten times its own.

    Example:
        >>> around("sgd(lr=0.05, momentum=0.9)")
        'sgd(lr=log(0.005, 0.5), momentum=0.9)'
    """
    rate, (call,) = learning_rate(optimiser), parse(optimiser)
    values = {key: repr(value) for key, value in call.arguments.items()}
    values["lr"] = str(log(float(f"{rate / 10:.4g}"), float(f"{rate * 10:.4g}")))
    return f"{call.name}({', '.join(f'{key}={value}' for key, value in values.items())})"
