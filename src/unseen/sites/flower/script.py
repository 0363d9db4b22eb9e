"""What a site derives from the study that it approved: tasks, roles, rosters, and what is due.

A message names a position: a method, a task, a seed, a round and an exchange. All else follows from
the study and from what the sites of the run agreed on before its first round.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from pydantic import ConfigDict

from unseen.core import Exchange, Turn
from unseen.core.round import due, recipients, sample
from unseen.sites.flower.site_plan import tasks_of
from unseen.sites.flower.terms import Terms
from unseen.studies.execution.runtime import Runtime
from unseen.studies.execution.setting import Trial
from unseen.studies.settings.holdout import Task
from unseen.studies.settings.study import StudySpec

STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class Agreement:
    """What all sites of a run agreed on. A site takes part in one such run for each approval.

    `members` have a role, `train` or `evaluate`. `weights` is the digest of the frozen weights.
    """

    __pydantic_config__ = STRICT

    run: str
    members: Mapping[str, str]
    terms: Terms
    weights: str = ""


@dataclass(frozen=True)
class Position:
    """The one thing that a message asks for.

    Attributes:
        method: Name of what is played.
        task: Name of the task.
        seed: The job's seed.
        round: The round, counted from 0.
        exchange: The exchange's name.
        plan: Which plan the task is of, see `tasks_by_plan`; "" for the study's own.
        trial: What a search put in the place of the study's ranges, if one did.
        place: Where the server keeps the records of a trial. It decides nothing.
        layout: How the server's model lies in its vector.
    """

    __pydantic_config__ = STRICT

    method: str
    task: str
    seed: int
    round: int
    exchange: str
    plan: str = ""
    trial: Trial | None = None
    place: str = ""
    layout: str = "none"

    def job(self, run: str) -> str:
        """Return what ledgers call the job."""
        place = [self.place + "/"] if self.place else []
        return "/".join([run, *place, self.method, self.task, str(self.seed)])

    def key(self, run: str) -> str:
        """Return sixteen digits of the job, of all that its rows follow from."""
        trial = self.trial
        played = [self.method] if trial is None else [trial.method, dict(trial.values)]
        searching = trial is not None and trial.searching
        job = [run, played, searching, self.plan, self.task, self.seed]
        return hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()[:16]


def tasks_by_plan(study: StudySpec, members: Mapping[str, str]) -> dict[tuple[str, str], Task]:
    """Return (plan, name) -> every task that a study may play among these sites.

    These are its own (plan ""), and those of a search inside each (its name).
    """
    own = tasks_of(study, members)
    tasks = {("", task.name): task for task in own}
    if study.tune is not None:
        tasks |= {(t.name, inner.name): inner for t in own for inner in study.tune.tasks(t)}
    return tasks


def role_in(task: Task, name: str) -> str:
    """Return what a site is in a task; "" where it has no part."""
    members = {"source": task.sources, "validation": task.validation, "target": task.targets}
    return next((role for role, names in members.items() if name in names), "")


@dataclass(frozen=True)
class Due:
    """An exchange that the study has at a position.

    `names` are those whom it goes to, as far as this site knows: all where it goes to sources.
    """

    exchange: Exchange
    turn: Turn
    names: tuple[str, ...] = field(default=())


def due_at(runtime: Runtime, task: Task, position: Position) -> Due | str:
    """Return the exchange at a position, or why the study has none there."""
    method, rounds, round = runtime.method, runtime.rounds, position.round
    if not 0 <= round < rounds:
        return f"the study has {rounds} rounds, and this would be {round + 1}"
    roster = sorted(task.sources)
    whole = Turn(position.seed, round, rounds, roster=tuple(roster))
    for order, exchange in enumerate(method.exchanges):
        if exchange.name != position.exchange:
            continue
        if not due(exchange, round, rounds):
            return f"the exchange {exchange.name!r} is not due in round {round + 1}"
        names = recipients(exchange, roster, sample(roster, runtime.participation, whole))
        turn = Turn(position.seed, round, rounds, exchange.name, "", order, tuple(roster))
        return Due(exchange, turn, tuple(names))
    here = ", ".join(exchange.name for exchange in method.exchanges)
    return f"{method.name} has no exchange {position.exchange!r}; here it has {here}"


def before(runtime: Runtime, position: Position) -> tuple[int, str] | None:
    """Return round and name of the last exchange with rows that is due before a position.

    None where nothing was trained before it.
    """
    names = [exchange.name for exchange in runtime.method.exchanges]
    order = names.index(position.exchange) if position.exchange in names else len(names)
    here = position.round, order
    for round in range(position.round, -1, -1):
        for order in range(len(names) - 1, -1, -1):
            exchange = runtime.method.exchanges[order]
            earlier = (round, order) < here and bool(exchange.slots)
            if earlier and due(exchange, round, runtime.rounds):
                return round, exchange.name
    return None


def fingerprint(agreement: Agreement) -> str:
    """Return the digest by which an agreement is known to be the same."""
    text = json.dumps(asdict(agreement), sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()
