"""The studies that sites approve for one model, and once for a choice among recipes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from unseen.data import info
from unseen.errors import UnseenError
from unseen.expression import parse
from unseen.ranges import one
from unseen.serving.fit import study_of
from unseen.sites.policy.approvals import federated
from unseen.studies.choice.playing import IMAGES, TABLES
from unseen.studies.choice.rates import at_rate, learning_rate
from unseen.studies.choice.trials import BASE
from unseen.studies.settings.search_plan import Tune
from unseen.studies.settings.study import StudySpec

#: The selection rule that reads no metric, and the range of the learning rate in a choice.
LAST, RATE = "last", "training.optimiser.lr"


def model_study(file: str | Path, method: str | None = None) -> StudySpec:
    """Return the study of one model over real sites: one method, one seed, one task.

    Under noise no metric leaves a site, since ε would not cover it, and so the last round's model
    is taken.
    """
    study = federated(study_of(str(file), {}, method))
    privacy = study.privacy
    if privacy.noised:
        privacy = privacy.model_copy(update={"metrics": "none"})
    unmeasured = privacy.metrics == "none"
    if unmeasured and "selection" in study.model_fields_set and study.selection != LAST:
        raise UnseenError(
            f"selection = {study.selection!r} reads metrics, and none leaves a site of this study.",
            remedy=f"Leave it out: the last round's model is taken, selection = {LAST!r}.",
        )
    if study.training.buffers == "local" and study.selection != LAST and not unmeasured:
        raise UnseenError(
            "training.buffers = 'local' leaves each site with BatchNorm statistics of its last "
            f"round, and selection = {study.selection!r} may take an earlier round's model.",
            remedy=f"Set selection = {LAST!r}.",
        )
    changes = {"privacy": privacy, **({"selection": LAST} if unmeasured else {})}
    return study.model_copy(update=changes)


def choosing_study(
    file: str | Path, recipes: Sequence[str], groups: int, rates: Sequence[float], seeds: int
) -> StudySpec:
    """Return the study in which sites try every recipe at every rate, without each group of sites.

    The file's data, network, training and privacy are taken. `rates` are factors of its learning
    rate.
    """
    study = StudySpec.read(file)
    if study.tune is not None:
        what = f"{file} has a [tune] table, and a choice searches by itself."
        raise UnseenError(what, remedy="Leave it out: the rates of --rates are tried.")
    entry = info(parse(study.dataset)[0].name)
    named = recipes or (TABLES if (study.model or entry.model).startswith("mlp") else IMAGES)
    rate, optimiser = learning_rate(study.training.optimiser), study.training.optimiser
    tried = sorted({learning_rate(at_rate(optimiser, factor * rate)) for factor in rates})
    changes = {
        "methods": tuple(dict.fromkeys((BASE, *named))), "holdout": {"groups": groups},
        "seeds": seeds, "selection": "last", "evaluate_every": study.rounds, "reference": None,
        "published": {}, "targets": None, "name": f"{study.name}-choice",
    }  # fmt: skip
    if tried != [rate]:
        # A range has two values or more; the study's own setting may be played anyhow.
        tried = tried if len(tried) > 1 else sorted({rate, *tried})
        (call,) = parse(optimiser)
        rest = {name: value for name, value in call.arguments.items() if name != "lr"}
        others = "".join(f", {name}={value!r}" for name, value in rest.items())
        space = {"training.optimiser": f"{call.name}(lr={one(*tried)}{others})"}
        tune = Tune(space=space, options=False, sampler="grid", criterion="source-validation")
        changes["tune"] = tune.model_dump(exclude_defaults=True)
    settings = study.model_dump(exclude_defaults=True) | changes
    return federated(StudySpec(**settings))
