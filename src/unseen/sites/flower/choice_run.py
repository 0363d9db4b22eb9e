"""The choice among recipes over real sites: every recipe is played without each group of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unseen.core.atomic import write_atomically
from unseen.sites.asked_studies import RATE
from unseen.sites.flower.server_run import TABLE, Session, followed, opened
from unseen.sites.flower.site_plan import planned_study
from unseen.sites.policy.approvals import federated
from unseen.studies.choice import Candidates, choose, play
from unseen.studies.choice.choice_html import write
from unseen.studies.choice.choice_page import paragraph
from unseen.studies.choice.rates import learning_rate
from unseen.studies.execution import Study
from unseen.studies.execution.runner import results_of
from unseen.studies.execution.setting import Trial
from unseen.studies.execution.spaces import spaces_of, with_values
from unseen.studies.results import study_file
from unseen.studies.results.study_results import Results
from unseen.studies.settings.named import toml
from unseen.studies.settings.study import StudySpec

if TYPE_CHECKING:
    from flwr.serverapp import Grid

#: The study of the recommended recipe, for `unseen federation train`.
RECIPE = "recipe.toml"


@dataclass(frozen=True)
class Played:
    """Plays studies of recipes over the sites that agreed to the choice."""

    session: Session

    def __call__(self, study: Study, out: Path) -> Results:
        """Play a study that differs from what was agreed to in rate, methods and plan."""
        spec = StudySpec(**study.model_dump(exclude_defaults=True))
        planned = planned_study(spec, out, self.session.facts, self.session.terms)
        study_file.write(out, planned.content())
        session = replace(self.session, planned=planned)
        for job in planned.missing:
            setting = replace(
                planned.setting, trial=Trial(job.method, self.values(spec, job.method))
            )
            session.job(setting, job, session.task(job.task))
        return results_of(planned)

    def values(self, study: StudySpec, method: str) -> dict[str, Any]:
        """Return what the study sets of the agreed ranges; nothing for a method without rounds."""
        agreed = self.session.agreed
        if not any(RATE in space.ranges for space in spaces_of(agreed, method)):
            return {}
        return {RATE: learning_rate(study.training.optimiser)}


def run(study: str, out: str, grid: Grid, options: str, sites: Sequence[str] = ()) -> None:
    """Choose among the recipes of a study by the sites behind the grid.

    `options` are groups and rates, as JSON.

    The same call goes on from the last finished round.
    """
    folder, plan = Path(out), json.loads(options)
    records, rates = folder / "records", plan["rates"]
    with followed(records, lambda: federated(StudySpec.read(study))) as (agreed, status):
        session = opened(agreed, records, grid, sites, status)
        base = with_values(agreed, {})
        candidates = Candidates(base, base.methods, plan["groups"], rates, pool=False, alone=False)
        trials = play(candidates, records, run=Played(session))
        choice = choose(trials)
        write(choice, rates, folder)
        federation = base.model_dump(mode="json", include={"federation"}, exclude_defaults=True)
        recipe = toml({**choice.study, **federation})
        write_atomically(folder / RECIPE, recipe.encode())
        (records / TABLE).write_text(paragraph(choice) + "\n", encoding="utf-8")
        status.tell(finished=True, waiting="", exchange="")
