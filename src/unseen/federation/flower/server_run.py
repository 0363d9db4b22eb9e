"""A study over real sites: who takes part, its jobs, its records, and where it goes on."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unseen.core.atomic import write_atomically
from unseen.core.client import Client, Split
from unseen.core.round import play, start
from unseen.core.vector import Model
from unseen.datasets import info
from unseen.datasets.encoding import feature_names
from unseen.datasets.totals import Totals
from unseen.engine.determinism import reproducible
from unseen.errors import UnseenError
from unseen.expression import parse
from unseen.federation.flower import sealed_sites
from unseen.federation.flower.protocol import PROTOCOL
from unseen.federation.flower.site import ROLES
from unseen.federation.flower.site_backend import Sites
from unseen.federation.flower.site_messages import Grid, Link
from unseen.federation.flower.terms import Facts, Terms
from unseen.methods.compose import method as compose
from unseen.privacy import channel, channelled, kinds
from unseen.results import study_file
from unseen.results.records import Job
from unseen.results.study_results import Results
from unseen.spec import user_code
from unseen.spec.holdout import Fixed, Growing, Task, plan
from unseen.spec.study import StudySpec
from unseen.study.job import run_prepared
from unseen.study.made_with import versions
from unseen.study.plan import (
    Plan,
    check_device,
    check_folder,
    check_selection,
    chosen_metrics,
    initial_weights,
    marked,
)
from unseen.study.prepare import Prepared, statistics
from unseen.study.private_jobs import check_columns
from unseen.study.runner import only_one, results_of
from unseen.study.runtime import composed
from unseen.study.setting import Setting

LOG = logging.getLogger("flwr")
TERMS, STATUS, TABLE = "terms.json", "federation.json", "table.txt"
#: How long a run waits for the one before it to notice that its server is gone, in seconds.
BEFORE = 60.0
#: How long a run that goes on waits for all of its sites before the minimum is enough, in seconds.
REJOIN = 120.0


@dataclass
class Status:
    """What `unseen federation status` reads: the newest of each piece of news, in one file."""

    path: Path
    known: dict[str, Any] = field(default_factory=dict)

    def tell(self, **news: Any) -> None:
        """Note what changed."""
        if any(self.known.get(key) != value for key, value in news.items()):
            if news.get("waiting"):
                LOG.info("waiting %s", news["waiting"])
            self.known |= news
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part = self.path.with_name(self.path.name + ".part")
            part.write_text(json.dumps(self.known, indent=1))
            part.replace(self.path)


def run(study_file: str, out: str, grid: Grid, sites: Sequence[str] = ()) -> Results:
    """Run a study's missing jobs over the sites behind the grid, and write its records to `out`.

    An error ends the run, and its words stand in the status; the same call goes on from the last
    finished round.
    """
    status = Status(Path(out) / STATUS)
    try:
        study = federated(StudySpec.read(study_file))
        with waited(Path(out)):
            status.tell(name=study.name, error="", waiting="", finished=False, connected=[])
            return _run(study, Path(out), grid, sites, status)
    except Exception as error:
        with contextlib.suppress(OSError):  # a full disk must not hide why the run ended
            status.tell(error=f"{error}" or type(error).__name__, waiting="")
        raise


def federated(study: StudySpec) -> StudySpec:
    """The study as a federation runs it: bad replies are left out unless it says otherwise."""
    for setting, why in {
        "cross_evaluation": "local models stay at their sites",
        "weights_bands": "sites take the initial weights from the server",
    }.items():
        if getattr(study, setting):
            raise UnseenError(f"{setting} is for simulation: {why}. Leave it out.")
    chosen = "drop" if "on_bad_reply" not in study.model_fields_set else study.on_bad_reply
    return study.model_copy(update={"on_bad_reply": chosen})


@contextlib.contextmanager
def waited(out: Path) -> Iterator[None]:
    """The folder to ourselves, once a run whose server was killed has ended too."""
    end = time.monotonic() + BEFORE
    while True:
        lock = only_one(out)
        try:
            lock.__enter__()
            break
        except UnseenError:
            if time.monotonic() > end:
                raise
            time.sleep(1)
    try:
        yield
    finally:
        lock.__exit__(None, None, None)


def _run(study: StudySpec, out: Path, grid: Grid, sites: Sequence[str], status: Status) -> Results:
    limits = study.federation
    settings = study.model_dump(mode="json", exclude={"federation", "published"})
    head: dict[str, Any] = {"study": settings, "method": study.methods[0]}
    link = Link(grid, limits, _hello(head), status.tell)
    agreed = _agreed(out)
    wanted = list(sites or limits.sites or named(study))
    if agreed is not None:
        # The sites that began go on; one that does not come back in a while is not waited for.
        wanted = sorted(agreed[1])
        link.facts = dict(agreed[1])
        link.gather(wanted, limits.patience, alone=REJOIN)
    else:
        agreed = _agree(out, link.gather(wanted, limits.patience))
    begun, facts, terms = agreed
    planned = planned_study(study, out, facts, terms)
    head |= {
        "run": begun, "metrics": list(planned.setting.metrics), "model": planned.setting.model,
        "terms": {**vars(terms), "schema": vars(terms.schema) if terms.schema else None},
    }  # fmt: skip
    planned.check_code()
    versions = {n: {"role": f.role, **f.versions} for n, f in facts.items()}
    study_file.write(out, planned.content(), sites=versions)
    tasks = {task.name: task for task in planned.tasks}
    for job in planned.missing:
        with reproducible(study.threads, study.device):
            _job(planned.setting, job, tasks[job.task], facts, terms, link, head)
    results = results_of(planned)
    results.write()
    (out / TABLE).write_text(str(results.table()) + "\n")
    status.tell(finished=True, waiting="", exchange="")
    return results


def _job(
    setting: Setting, job: Job, task: Task, facts: Mapping[str, Facts], terms: Terms, link: Link,
    head: Mapping[str, Any],
) -> None:  # fmt: skip
    """One job; a table's statistics are exchanged before its first round and stored with it."""
    roles = {
        **dict.fromkeys(task.sources, "source"),
        **dict.fromkeys(task.validation, "validation"),
        **dict.fromkeys(task.targets, "target"),
    }
    head = {**head, "method": job.method, "task": job.task, "seed": job.seed}
    folder = job.folder(setting.out)
    totals, columns = Totals.of(terms.empty()), setting.study.privacy.columns
    sums = None
    if totals is not None and columns is not None:
        sums = totals.of_ranges(columns)
    elif totals is not None:
        sums = _statistics(Sites(link, {**head, "layout": "none"}, roles, folder,
                                 Model(nn.Module())), totals, task)  # fmt: skip
    prepared = hollow(task, terms, sums)
    place = partial(placed, setting.study, link, head, roles, folder, sums)
    run_prepared(setting, job, terms.empty(), prepared, place)


def placed(study: StudySpec, *arguments: Any) -> Any:
    """Return the backend of one job, behind the study's channel if it has one."""
    sites = Sites.place(*arguments)
    if study.privacy.channel == "clear":
        return sites
    files = sealed_sites.server_files()
    if not files and study.privacy.channel.startswith("ckks"):
        raise UnseenError(
            f"privacy.channel = {study.privacy.channel!r} needs {kinds.PUBLIC} in the server's "
            "kit: make the kits with ckks = true."
        )
    kind = channel.read(study.privacy.channel, study.privacy.server)
    serve = partial(channel.server_side, kind, study.privacy.server, files)
    return channelled.Channelled(sealed_sites.SealedSites(sites), serve, arguments[-1])


def _statistics(sites: Sites, totals: Totals, task: Task) -> Tensor:
    """The sources' sums over their training rows, from the sites or from an earlier start."""
    path = sites.folder / "statistics.json"
    if path.exists():
        return torch.tensor(json.loads(path.read_text()), dtype=torch.float64)
    method, roster = statistics(totals), sorted(task.sources)
    begun = start(method, sites.model, roster, seed=0)
    backend = replace(sites, kind="statistics")
    state, _ = play(method, begun, backend, roster, 1, on_bad_reply="drop")
    sums = state.inbox["statistics"]
    write_atomically(path, json.dumps(sums.tolist()).encode())
    return sums


def hollow(task: Task, terms: Terms, sums: Tensor | None) -> Prepared:
    """The clients of a task without their data: names, and two empty examples to look at shapes."""
    shape, columns, scale = terms.shape, None, None
    totals = Totals.of(terms.empty())
    if totals is not None and sums is not None:
        columns, scale = totals.of_table(sums), totals.scale(sums)
    if terms.schema is not None and columns is not None:
        shape = (len(feature_names(terms.schema, columns)),)
    classes = len(terms.classes) if terms.classes is not None else None
    y = torch.zeros(2, dtype=torch.int64 if classes else torch.float32)
    blank = Split(torch.zeros(2, *shape), y)

    def clients(names: Sequence[str], train: bool) -> dict[str, Client]:
        return {n: Client(n, blank if train else None, blank, classes) for n in names}

    sources, validators = clients(task.sources, True), clients(task.validation, False)
    targets = clients(task.targets, False)
    return Prepared(
        sources, validators, targets, shape, classes or 1, classes, columns, scale, sums
    )


def named(study: StudySpec) -> tuple[str, ...]:
    """Return the sites that the hold-out plan names; targets need not be there."""
    if isinstance(study.holdout, Fixed) and study.holdout.source != "others":
        return (*study.holdout.source, *study.holdout.validation)
    if isinstance(study.holdout, Growing):
        return study.holdout.growing
    return ()


def tasks_of(study: StudySpec, facts: Mapping[str, Facts]) -> tuple[Task, ...]:
    """The study's tasks among these sites. A target that does not take part is not evaluated."""
    able = {name for name, fact in facts.items() if fact.role == ROLES[0]}
    watching = sorted(set(facts) - able)
    only = study.targets
    if study.holdout == "leave-one-domain-out" and only is None and watching:
        only = tuple(watching)
    targets = () if isinstance(study.holdout, str) else study.holdout.target
    domains = sorted({*facts, *(only or ()), *targets})
    if study.holdout == "none":
        domains = sorted(able)
    tasks = []
    for task in plan(study.holdout, domains, only):
        sources = [name for name in task.sources if name in facts]
        if isinstance(study.holdout, str) or getattr(study.holdout, "source", ()) == "others":
            sources = [name for name in sources if name in able]
        if unable := sorted(set(sources) - able):
            raise UnseenError(
                f"{', '.join(unable)} only evaluates (role in the kit's site.toml), and is a "
                f"source of task {task.name!r}."
            )
        if not sources:
            raise UnseenError(f"task {task.name!r} has no source among {', '.join(sorted(facts))}.")
        here = [tuple(n for n in names if n in facts) for names in (task.targets, task.validation)]
        tasks.append(Task(task.name, tuple(sources), *here))
    return tuple(tasks)


def planned_study(study: StudySpec, out: Path, facts: Mapping[str, Facts], terms: Terms) -> Plan:
    """Return the study, checked as far as it can be without data, and its jobs."""
    check_device(study.device)
    data, entry = terms.empty(), info(parse(study.dataset)[0].name)
    check_columns(study, data)
    metrics = chosen_metrics(study, data, entry.metrics)
    weights = initial_weights(study, out)
    model = study.model or entry.model
    tasks = tasks_of(study, facts)
    if not any(task.targets for task in tasks):
        study = study.model_copy(update={"holdout": "none", "targets": None})
    lines = "\n".join(f"{name} {fact.digest}" for name, fact in sorted(facts.items()))
    digest = hashlib.sha256(lines.encode()).hexdigest()[:16]
    setting = Setting(study, out, None, digest, model, metrics, 0.0, weights)
    methods = {m.name: m for m in (composed(text, study, data) for text in study.methods)}
    for name in methods:
        if compose(name).gather is not None:
            raise UnseenError(f"{name} pools the sites' data, which is what a federation forbids.")
    check_selection(study, metrics, tasks)
    refused = {
        name: "needs images"
        for name, method in methods.items()
        if "images" in method.asks and len(terms.shape) != 3
    }
    code = user_code.code_of(methods, model=model)  # the data set's own code is at the sites
    planned = Plan.of(setting, data, [*methods], tasks, refused, code)
    # The sites keep what belongs to a run: its settings are fixed from its start.
    check_folder(planned, strict=True)
    return marked(planned, any(f.stand_in for f in facts.values()))


def _agree(out: Path, facts: Mapping[str, Facts]) -> tuple[str, dict[str, Facts], Terms]:
    """Return the terms of a new study, written down before anything is trained by them."""
    here = dict(sorted(facts.items()))
    terms, begun = Terms.agree(list(here.values())), secrets.token_hex(8)
    content = {"run": begun, "facts": {name: vars(fact) for name, fact in here.items()}}
    write_atomically(out / TERMS, json.dumps(content, indent=1).encode())
    LOG.info("%s agreed with %s", ", ".join(here), versions())
    return begun, here, terms


def _agreed(out: Path) -> tuple[str, dict[str, Facts], Terms] | None:
    """Return the terms of a study that was begun here before; None if none was."""
    path = out / TERMS
    if not path.exists():
        return None
    content = json.loads(path.read_bytes())
    facts = {name: Facts.read(fields) for name, fields in content["facts"].items()}
    return content["run"], facts, Terms.agree(list(facts.values()))


def _hello(head: Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": "hello", "protocol": PROTOCOL, "about": "hello", "head": json.dumps(head)}
