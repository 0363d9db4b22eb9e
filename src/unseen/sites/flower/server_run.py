"""A study over real sites: who takes part, its jobs, its records, and where it goes on."""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from unseen.core import Model, play, start
from unseen.core.atomic import write_atomically
from unseen.core.record_lines import to_line
from unseen.data.dataset import Totals
from unseen.engine.determinism import reproducible
from unseen.engine.messages import Parcel
from unseen.errors import UnseenError
from unseen.sites.control import MESSAGES, SIGNATURE, STANDING, TERMS
from unseen.sites.flower.script import Agreement, Position, tasks_by_plan
from unseen.sites.flower.site_backend import Sites, placed
from unseen.sites.flower.site_messages import Link
from unseen.sites.flower.site_plan import named, placeholders, planned_study, required, stated
from unseen.sites.flower.terms import PROTOCOL, Facts, Terms
from unseen.sites.kits.signatures import SUFFIX
from unseen.sites.policy.approvals import federated, settings_of
from unseen.studies.execution import plan as plans
from unseen.studies.execution.checks import check_measured
from unseen.studies.execution.column_statistics import statistics
from unseen.studies.execution.doubts import of_unscaled, unscaled_columns
from unseen.studies.execution.job import Running, versions
from unseen.studies.execution.label_kinds import totals_of
from unseen.studies.execution.prepare import Prepared
from unseen.studies.execution.runner import only_one, results_of
from unseen.studies.execution.search import search, winners
from unseen.studies.execution.setting import Setting
from unseen.studies.results import study_file
from unseen.studies.results.records import Job
from unseen.studies.results.study_results import Results
from unseen.studies.settings.holdout import Task
from unseen.studies.settings.study import StudySpec

if TYPE_CHECKING:
    from flwr.serverapp import Grid

LOG = logging.getLogger("flwr")
TABLE = "table.txt"
#: How long a run waits for the one before it to notice that its server is gone, in seconds.
BEFORE = 60.0
#: How long a run that goes on waits for all of its sites before the minimum is enough, in seconds.
REJOIN = 120.0


@dataclass
class Status:
    """What `unseen federation status` reads: the newest of each piece of news, in one file."""

    path: Path
    newest: dict[str, Any] = field(default_factory=dict)

    def tell(self, **news: Any) -> None:
        if any(self.newest.get(key) != value for key, value in news.items()):
            if news.get("waiting"):
                LOG.info("waiting %s", news["waiting"])
            for note in news.get("remarks", ()):
                if note not in self.newest.get("remarks", ()):
                    LOG.warning("of the data: %s", note)
            self.newest |= news
            write_atomically(self.path, json.dumps(self.newest, indent=1).encode())


@dataclass(frozen=True)
class Session:
    """A study over sites that have agreed on its terms.

    `agreed` is the study that the sites approved, `head` what every message says.
    """

    planned: plans.Plan
    terms: Terms
    link: Link
    head: Mapping[str, Any]
    out: Path
    agreed: StudySpec
    facts: Mapping[str, Facts]

    def placed(self, setting: Setting, job: Job, task: Task) -> tuple[Sites, Prepared]:
        """Return a job's sites, and what is prepared of them where no row is.

        A table's statistics are exchanged before its first round and stored with it.
        """
        terms = self.terms
        members = {"source": task.sources, "validation": task.validation, "target": task.targets}
        roles = {name: role for role, names in members.items() for name in names}
        folder, position = job.folder(setting.out), self.position(setting, job, task)
        sites = Sites(self.link, self.head, position, roles, folder, Model(nn.Module()))
        totals, columns = totals_of(terms.empty(), setting.study), setting.study.privacy.columns
        without: Mapping[str, str] = {}
        if totals is not None:
            if columns is not None:
                sums = totals.of_ranges(columns)
            else:
                robust = setting.study.standardise == "robust"
                sums, without = column_sums(sites, totals, task, robust)
            sites = replace(sites, statistics=sums)
        prepared = placeholders(task, terms, sites.statistics, setting)
        flat = of_unscaled({task.name: unscaled_columns(prepared, terms.schema)})
        left_out = [
            f"columns are standardised without the sums of site {name}, which sent {fault}"
            for name, fault in without.items()
        ]
        self.link.tell(remarks=[*self.planned.data.notes, *flat, *left_out])
        return sites, prepared

    def position(self, setting: Setting, job: Job, task: Task) -> Position:
        """Return where messages of a job begin: before its first round."""
        members = {name: fact.role for name, fact in self.facts.items()}
        tasks = tasks_by_plan(self.agreed, members)
        plan = next(plan for (plan, _), own in tasks.items() if own == task)
        folder = setting.out.relative_to(self.out)
        place = folder.as_posix() if folder.parts else ""
        trial = setting.trial if self.agreed.tune is not None else None
        return Position(job.method, job.task, job.seed, 0, "", plan, trial, place)

    def task(self, name: str) -> Task:
        """Return the task of a name."""
        return next(task for task in self.planned.tasks if task.name == name)

    def play(self) -> None:
        """Run the jobs that are missing, after the study's search if it has one."""
        planned, searches = self.planned, dict[tuple[str, str], Setting]()
        if planned.setting.study.tune is not None:
            able = [name for name in planned.methods if name not in planned.not_applicable]
            records = search(
                planned.setting, able, planned.tasks, lambda orders: starmap(self.job, orders)
            )
            searches = winners(planned.setting, records)
        for job in planned.missing:
            setting = searches.get((job.method, job.task), planned.setting)
            self.job(setting, job, self.task(job.task))

    def job(self, setting: Setting, job: Job, task: Task) -> Job:
        """Run a job."""
        study = setting.study
        with reproducible(study.threads, study.device):
            sites, prepared = self.placed(setting, job, task)
            place = partial(placed, study, sites)
            return Running(setting, job, self.terms.empty(), prepared, place).to_end()


def column_sums(
    sites: Sites, totals: Totals, task: Task, robust: bool
) -> tuple[Tensor, Mapping[str, str]]:
    """Return the sources' sums over their training rows, and whose are left out, with the reason.

    They come from the sites or from an earlier start.
    """
    path, reasons = sites.folder / "statistics.json", sites.folder / "statistics.without.json"
    if path.exists():
        without = json.loads(reasons.read_text()) if reasons.exists() else {}
        return torch.tensor(json.loads(path.read_text()), dtype=torch.float64), without
    method, roster = statistics(totals, robust), sorted(task.sources)
    first = start(method, sites.model, roster, seed=0)
    backend = replace(sites, kind="statistics")
    state, (outcome,) = play(method, first, backend, roster, 1, on_bad_reply="drop")
    sums, without = state.inbox["statistics"], dict(outcome.dropped)
    if without:
        write_atomically(reasons, json.dumps(without).encode())
    write_atomically(path, json.dumps(sums.tolist()).encode())
    return sums, without


def run(study_file: str, out: str, grid: Grid, sites: Sequence[str] = ()) -> Results:
    """Run a study's missing jobs over the sites behind the grid, and return its results.

    It waits for `sites`, by default the study's.

    An error ends the run, and its words are in the status; the same call goes on from the last
    finished round.
    """
    folder = Path(out)
    with followed(folder, lambda: federated(StudySpec.read(study_file))) as (study, status):
        check_measured(study)
        adopt_signature(Path(study_file), folder)
        session = opened(study, folder, grid, sites, status)
        session.play()
        results = results_of(session.planned)
        results.write()
        (folder / TABLE).write_text(str(results.table()) + "\n")
        status.tell(finished=True, waiting="", exchange="")
    return results


@contextlib.contextmanager
def followed(out: Path, read: Callable[[], StudySpec]) -> Iterator[tuple[StudySpec, Status]]:
    """Hold the folder of a run, whose standing is written there; so is the error that ends it."""
    status = Status(out / STANDING)
    try:
        study = read()
        with waited(out):
            fresh = {"finished": False, "ended": False, "connected": []}
            status.tell(name=study.name, error="", waiting="", **fresh)
            yield study, status
    except Exception as error:
        with contextlib.suppress(OSError):  # a full disk must not hide why the run ended
            status.tell(error=f"{error}" or type(error).__name__, waiting="", ended=True)
        raise


@contextlib.contextmanager
def waited(out: Path) -> Iterator[None]:
    """Hold the folder, once a run whose server was killed has ended too."""
    end = time.monotonic() + BEFORE
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(only_one(out))
                break
            except UnseenError:
                if time.monotonic() > end:
                    raise
                time.sleep(1)
        yield


def opened(
    study: StudySpec, out: Path, grid: Grid, sites: Sequence[str], status: Status
) -> Session:
    """Return a study that can begin, or go on: its sites are there and agreed on its terms."""
    limits, path = study.federation, out / TERMS
    earlier = json.loads(path.read_bytes()) if path.exists() else {}
    facts = {name: Facts.read(fields) for name, fields in earlier.get("facts", {}).items()}
    run, without = earlier.get("run") or secrets.token_hex(8), dict(earlier.get("without", {}))
    head: dict[str, Any] = {"study": settings_of(study), "signature": _signature(out)}
    hello: Parcel = {"kind": "hello", "protocol": PROTOCOL, "about": "hello"}
    hello = {**hello, "head": json.dumps({**head, "run": run})}
    link = Link(grid, limits, hello, status.tell, account=partial(account, out))
    if earlier:
        # The sites that began go on; one that does not come back in a while is not waited for.
        link.facts, link.lacking = dict(facts), dict(without)
        link.agreed = {name: fact.digest for name, fact in facts.items()}
        link.gather(sorted(facts), limits.patience, alone=REJOIN)
    else:
        names, needed = sites or limits.sites or named(study), required(study)
        facts = dict(sorted(link.gather(names, limits.patience, needed=needed).items()))
        without = dict(link.lacking)
    link.agreed = {name: fact.digest for name, fact in facts.items()}
    link.stated = stated(study, facts)
    terms = Terms.agree(list(facts.values()))
    planned = planned_study(study, out, facts, terms)
    members = {name: fact.role for name, fact in facts.items()}
    weights = str(planned.setting.weights or "") if study.keeps_weights else ""
    head["agreement"] = asdict(Agreement(run, members, terms, weights))
    planned.check_code()
    if not earlier:
        every = {name: asdict(fact) for name, fact in facts.items()}
        content = {"run": run, "facts": every, "without": without}
        write_atomically(path, json.dumps(content, indent=1).encode())
        LOG.info("%s agreed with %s", ", ".join(facts), versions())
    status.tell(remarks=list(planned.data.notes))
    ran = {n: {"role": f.role, **f.versions} for n, f in facts.items()}
    study_file.write(out, planned.content(), sites=ran, without=without)
    return Session(planned, terms, link, head, out, study, facts)


def account(out: Path, site: str, entry: str) -> None:
    """Write down the answer to the first question of all, by its line in the site's ledger."""
    with (out / MESSAGES).open("ab") as file:
        file.write(to_line({"site": site, "kind": "hello", "entry": entry}))


def adopt_signature(study_file: Path, out: Path) -> None:
    """Take the signature beside a study's file, where no command left one among the records."""
    beside = study_file.with_name(study_file.name + SUFFIX)
    if beside.is_file() and not (out / SIGNATURE).is_file():
        write_atomically(out / SIGNATURE, beside.read_bytes())


def _signature(out: Path) -> Mapping[str, Any]:
    """The coordinator's signature under the study, which `run` left among the records."""
    path = out / SIGNATURE
    return dict(json.loads(path.read_bytes())) if path.is_file() else {}
