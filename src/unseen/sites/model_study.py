"""The study of one model, as real sites train it: what `train` runs, and what sites approve."""

from __future__ import annotations

from pathlib import Path

from unseen.errors import UnseenError
from unseen.serving.fit import study_of
from unseen.sites.policy.proposals import federated
from unseen.studies.settings.study import StudySpec

#: The selection rule that reads no metric.
LAST = "last"


def model_study(file: str | Path, method: str | None = None) -> StudySpec:
    """Return the study of one model over real sites: one method, one seed, one task.

    Note:
        Under noise no metric leaves a site, since ε would not cover it, and so the last round's
        model is taken.
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
