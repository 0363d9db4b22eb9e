"""From a federation to a model: one study over real sites, its directory, and who has it.

The server writes the directory of a model that it has. One that it carries sealed is written at the
sites alone, and here are card, report and records without weights.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import Tensor

from unseen.core import Turn
from unseen.core.atomic import write_atomically
from unseen.core.exchange import Method
from unseen.core.record_lines import to_line
from unseen.engine.determinism import reproducible
from unseen.engine.messages import INBOX, Parcel, Value
from unseen.errors import UnseenError
from unseen.privacy import wire
from unseen.serving import directory
from unseen.serving.decisions import KEY, OF, disclosures
from unseen.serving.description import ROLES, described
from unseen.serving.fit import site_rows, write_pages
from unseen.serving.one_model import RECORDS, check_buffers, one_job, trained_job, write_model
from unseen.serving.thresholds import Counts
from unseen.sites.asked_studies import model_study
from unseen.sites.flower import terms
from unseen.sites.flower.answers import Judge, figures_of, text_in
from unseen.sites.flower.pulls import Question
from unseen.sites.flower.server_run import Session, followed, opened
from unseen.sites.flower.site_backend import Sites
from unseen.sites.flower.site_messages import POLL
from unseen.sites.flower.site_model import FILES, FINGERPRINT, SLOTS
from unseen.sites.policy.site_ledger import sizes
from unseen.studies.execution.prepare import Prepared
from unseen.studies.execution.runtime import Runtime, composed
from unseen.studies.execution.watcher import CARRIED, CLEAR, selected_file
from unseen.studies.results.records import AFTER, Job
from unseen.studies.results.selection import beside_constant, value
from unseen.studies.results.study_folder import JobFolder

if TYPE_CHECKING:
    from flwr.serverapp import Grid

LOG = logging.getLogger("flwr")
#: Which sites have the model, and what its directory says of it there; the sites' metrics as text.
DELIVERED, TABLE = "delivered.json", "sites.txt"
#: How often a site that has not the model is looked for, in seconds.
LOOK = 2.0


@dataclass(frozen=True)
class Finished:
    """A study over sites whose only job is done."""

    session: Session
    job: Job
    sites: Sites
    prepared: Prepared
    out: Path

    @property
    def blind(self) -> bool:
        return self.session.planned.setting.study.privacy.server == "blind"

    @property
    def folder(self) -> Path:
        """The job's records."""
        return self.job.folder(self.session.planned.setting.out)

    @property
    def members(self) -> tuple[str, ...]:
        """The sites of the task."""
        return tuple(sorted(self.sites.roles))

    @property
    def method(self) -> Method:
        planned = self.session.planned
        return composed(self.job.method, planned.setting.study, planned.data)

    def selected(self) -> tuple[dict[str, Tensor], int]:
        """Return the selected round's tensors, named as they are stored, and the round from 0."""
        with safe_open(selected_file(self.folder, self.blind), "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, int((file.metadata() or {})["round"])

    def ask(
        self, kind: str, names: Sequence[str], more: Parcel, good: Judge = lambda answer: None
    ) -> dict[str, Question]:
        """Ask sites about the model of the selected round; whoever is away is not waited for."""
        tensors, best = self.selected()
        rounds = max(best + 1, self.session.planned.setting.study.rounds)
        turn = Turn(self.job.seed, best, rounds, kind, roster=tuple(sorted(self.prepared.sources)))
        parcel: dict[str, Value] = {**self.entries(tensors), **more}
        return self.sites.ask(kind, dict.fromkeys(names, parcel), turn, good=good)

    def entries(self, tensors: Mapping[str, Tensor]) -> dict[str, Value]:
        """Return the selected round's entries as a message has them, in the clear or sealed."""
        if self.blind:
            return {
                **{INBOX + name: entry for name, entry in below(CLEAR, tensors).items()},
                **{terms.CARGO + name: wire.from_tensor(content)
                   for name, content in below(CARRIED, tensors).items() if name != "label"},
            }  # fmt: skip
        model = self.sites.model
        own = {name: t for name, t in tensors.items() if "/" not in name}
        model.module.load_state_dict(own)
        entries = {INBOX + "model": model.vector.clone(), INBOX + "buffers": model.buffers.clone()}
        return {**entries, **{n: t for n, t in tensors.items() if n.startswith(INBOX)}}


def below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, without it."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def train(
    study_file: str, out: str, grid: Grid, sites: Sequence[str] = (), method: str = ""
) -> Path:
    """Train the study's one model over the sites behind the grid, and hand it to all of them.

    It waits for `sites`, by default the study's, and trains `method`, by default the file's.

    The same call goes on wherever the last one ended: with the training, or with the sites that
    have not the model yet.
    """
    folder, read = Path(out), partial(model_study, study_file, method or None)
    with followed(folder / RECORDS, read) as (study, status):
        session = opened(study, folder / RECORDS, grid, sites, status)
        job = one_job(session.planned)
        with reproducible(study.threads, study.device):
            place = session.placed(session.planned.setting, job, session.task(job.task))
            check_buffers(session.planned, place[1], job)
            session.play()
            trained_job(job, job.folder(session.planned.setting.out))
            finished = _finished(session, job, folder)
            if not (folder / DELIVERED).exists():
                _write(finished)
            deliver(finished)
        status.tell(finished=True, waiting="", exchange="")
    return folder


def _finished(session: Session, job: Job, out: Path) -> Finished:
    """Return the job with the network as its method trains it."""
    setting, data = session.planned.setting, session.planned.data
    sites, prepared = session.placed(setting, job, session.task(job.task))
    runtime = Runtime.of(setting, data, prepared, job.method, job.seed, evaluates=False)
    position = replace(sites.position, layout=terms.fingerprint(runtime.model))
    sites = replace(sites, model=runtime.model, position=position)
    return Finished(session, job, sites, prepared, out)


def _write(finished: Finished) -> None:
    """Write the directory, or without the model what may be known of it."""
    planned, job, out = finished.session.planned, finished.job, finished.out
    study, tensors = planned.setting.study, b""
    if finished.blind:
        spec = described(planned, finished.prepared, job, False)
    else:
        fitted = write_model(planned, finished.prepared, job, out, LOG.info, False)
        spec, tensors = fitted.spec, fitted.tensors
    sources = ", ".join(finished.prepared.sources)
    spec["data"] |= {"source": f"rows of {sources}, which stayed there", "licence": "theirs"}
    spec["left the sites"]["federated"] = True
    # As approved: a target that is nobody's site is left out of what is played alone.
    spec["study"] = finished.session.agreed.model_dump(mode="json", exclude={"published"})
    spec["warnings"] = list(planned.warnings)
    if study.privacy.metrics == "none":
        spec |= {"metrics": [], "results": []}
    else:
        _measured(finished, spec)
    if finished.blind:
        write_atomically(out / DELIVERED, json.dumps({"spec": spec}).encode())
        spec = {**spec, "fingerprint": "as each site has it: the server has no model"}
    else:
        directory.write(out, spec, tensors)
        spec = dict(directory.read(out, allow_code=True).spec)
        write_atomically(out / DELIVERED, json.dumps({"spec": spec}).encode())
    write_pages(out, spec, finished.method)
    rows = site_rows(spec["results"], spec["metrics"])
    write_atomically(out / TABLE, "\n".join(_aligned(rows)).encode() + b"\n")


def _measured(finished: Finished, spec: dict[str, Any]) -> None:
    """Ask every site how the model does there, and put it into the description."""
    lines: list[dict[str, Any]] = []
    counted: dict[str, Tensor] = {}

    def good(answer: Mapping[str, Value]) -> None:
        name, stated = str(answer["site"]), finished.sites.link.stated
        asked = finished.sites.roles[name], spec["metrics"], stated.get(name)
        line, counts = figures_of(answer, *asked)
        lines.append(line)
        if counts is not None:
            counted[name] = counts

    questions = finished.ask(terms.MEASURE, finished.members, {}, good)
    order = list(ROLES)
    spec["results"] = sorted(lines, key=lambda line: (order.index(line["role"]), line["site"]))
    recorded = JobFolder(finished.job, finished.folder)
    best = [r for r in (*recorded.source, *recorded.target) if r["round"] == spec["round"] - 1]
    here = {line["site"] for line in spec["results"]}
    for record in best:  # who was away since has the figures of its last answer
        if record["domain"] not in here:
            role = finished.sites.roles[record["domain"]]
            figures = {m: [value(record, m), None, None] for m in spec["metrics"]}
            line = {"site": record["domain"], "role": role, "trained on": 0, "metrics": figures}
            spec["results"].append({**line, "examples": int(record["examples"])})
    if worse := beside_constant(best, recorded.constant)[0].get(spec["metric"]):
        spec["worse than a constant"] = list(worse)
    if counted and set(counted) == set(finished.prepared.sources):
        total = torch.stack([counted[name] for name in sorted(counted)]).sum(0)
        about = {"kind": "validation", "rows": int(total.sum()), "sites": len(counted)}
        spec[KEY] = {
            "evidence": {**about, "of": OF["validation"]}, "thresholds": Counts(total).to_json(),
        }  # fmt: skip
    classes = len(spec["classes"]) if spec["classes"] is not None else None
    words = ["its metrics of the model, with intervals", *disclosures(spec.get(KEY, {}), classes)]
    spec["left the sites"]["what"] += words
    account(finished, terms.MEASURE, questions)


def account(finished: Finished, kind: str, questions: Mapping[str, Question]) -> None:
    """Write down what left the sites after the training, whose own ledger is closed."""
    line: dict[str, Any] = {"round": finished.selected()[1], "exchange": kind}
    line |= {"clients": list(questions), "left": []}
    for slot in SLOTS:
        left = [sizes(q.answer[slot]) if q.answer and slot in q.answer else 0
                for q in questions.values()]  # fmt: skip
        if any(left):
            line["left"].append({"slot": slot, "form": "plain", "bytes": left})
    with (finished.folder / AFTER).open("ab") as file:
        file.write(to_line(line))


def deliver(finished: Finished) -> None:
    """Hand the model to every site of the task, and wait for those that are away."""
    path, link = finished.out / DELIVERED, finished.sites.link
    standing = json.loads(path.read_bytes())
    have: dict[str, str] = standing.setdefault("sites", {})
    texts = {name: (finished.folder / name) for name in FILES}
    texts["study.json"] = finished.session.planned.setting.out / "study.json"
    content = {name: file.read_text("utf-8") for name, file in texts.items() if file.is_file()}
    # Remarks on the data name classes by site, which the sites have told the server alone.
    about = json.loads(content["study.json"])
    content["study.json"] = json.dumps({k: v for k, v in about.items() if k != "notes"}, indent=1)
    more: dict[str, Value] = {"spec": json.dumps(standing["spec"]), "records": json.dumps(content)}
    if not finished.blind:
        more["tensors"] = (finished.out / directory.TENSORS).read_bytes()
    end = time.monotonic() + link.limits.patience
    faults: dict[str, str] = {}
    while missing := [name for name in finished.members if name not in have]:
        link.look()
        here = [name for name in missing if name in link.sites() and name not in faults]
        questions = finished.ask(terms.KEEP, here, more) if here else {}
        account(finished, terms.KEEP, questions)
        for name, q in questions.items():
            if q.answer is not None:
                have[name] = text_in(q.answer, FINGERPRINT)
                LOG.info("site %s has the model %s", name, have[name])
            else:
                faults[name] = q.fault
        write_atomically(path, json.dumps(standing).encode())
        left = [name for name in finished.members if name not in have]
        if not left or not set(left) - faults.keys() or time.monotonic() > end:
            break
        link.tell(waiting=f"for {', '.join(left)}: the model is ready, and not there yet")
        time.sleep(max(POLL, min(LOOK, end - time.monotonic())))
    if left := [name for name in finished.members if name not in have]:
        reasons = "; ".join(f"{name}: {faults.get(name, 'was not connected')}" for name in left)
        raise UnseenError(
            f"the model is trained, and not at every site yet: {reasons}.",
            remedy="Run the same command again when they are back: it hands over the model alone.",
        )


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table as text."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
