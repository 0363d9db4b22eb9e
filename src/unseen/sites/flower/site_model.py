"""A site's part in the model that its study ends with: to measure it, and to keep its directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

from unseen.core import Inbox
from unseen.core.atomic import write_atomically
from unseen.core.exchange import State
from unseen.core.metrics.evaluation import forward
from unseen.core.metrics.row_shares import OF_SOME_ROWS, of_few
from unseen.data.dataset import UNIT
from unseen.engine import client_memories
from unseen.engine.messages import Value, named, to_inbox
from unseen.methods.exact.node_rows import merged
from unseen.serving import directory
from unseen.serving.description import not_in_the_clear
from unseen.serving.evaluation.measures import measured
from unseen.serving.fit import write_pages
from unseen.serving.one_model import RECORDS, in_use, with_trunk
from unseen.serving.thresholds import class_counts
from unseen.sites.flower import terms
from unseen.sites.flower.admitted import Admitted
from unseen.sites.flower.answers import COUNTS, RESULTS
from unseen.sites.flower.site_question import match
from unseen.sites.flower.terms import Refused
from unseen.sites.policy.approvals import APART, SHORT, digest_of
from unseen.studies.execution.setting import Setting
from unseen.studies.execution.watcher import INBOX, SITES, selected_tensors
from unseen.studies.results.records import Job

#: Of a kit: the directories of models that this site took part in.
MODELS = "models"
#: Of a job: the records that every site gets with the model.
FILES = (
    "source.jsonl", "target.jsonl", "rounds.jsonl", "ledger.jsonl", "constant.jsonl", "done.json",
)  # fmt: skip
#: What a site's answers about the model may have.
FINGERPRINT = "fingerprint"
SLOTS = (RESULTS, COUNTS, FINGERPRINT)


def folder_of(asked: Admitted) -> Path:
    """Return where this site keeps the model of a study."""
    name = client_memories.slug(f"{asked.study.name}-{asked.proposal.digest[:SHORT]}")
    folder = (asked.site.kit or asked.site.state) / MODELS
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder / name


def selected_inbox(asked: Admitted) -> Inbox:
    """Return the entries of the selected round: they came in the clear, or sealed by sites."""
    inbox, side = to_inbox(asked.parcel, asked.model.device), asked.side
    if side is None or not side.blind:
        return inbox
    entries = side.receive(inbox, named(asked.parcel, terms.CARGO, bytes), asked.turn)
    return {name: entry.to(asked.model.device) for name, entry in entries.items()}


def own_buffers(asked: Admitted) -> dict[str, torch.Tensor]:
    """Return what this site remembers of the rounds up to the selected one."""
    memories = client_memories.load(asked.folder)
    return memories.before(asked.site.name, (asked.turn.round + 1, -1))


def measure(asked: Admitted) -> dict[str, Value]:
    """Return the model's metrics here with intervals, and for two classes counts by probability."""
    if asked.study.privacy.metrics == "none":
        raise Refused("was asked for metrics, and this study's do not leave a site.", "privacy")
    inbox, model, prepared = selected_inbox(asked), asked.model, asked.prepared
    own = own_buffers(asked).get("buffers", inbox["buffers"])
    model.bind(inbox["model"].clone(), own.clone())
    client = prepared.everyone[asked.site.name]
    split = client.split("validation")
    outputs, y = forward(model, split, asked.runtime.method.predict, inbox), split.y
    if prepared.scale is not None:
        outputs, y = prepared.scale.restored(outputs), prepared.scale.restored(y)
    least = asked.site.policy.least.examples
    intervals = measured(outputs, y, asked.metrics, units=split.meta.get(UNIT))
    values = {name: list(parts) for name, parts in intervals.items()}
    if of_few(outputs, y, least):
        values |= {name: [None] * 3 for name in OF_SOME_ROWS if name in values}
    trains = len(client.train) if client.train is not None else 0
    line = {
        "site": asked.site.name, "role": asked.role, "trained on": trains,
        "examples": len(split), "metrics": values,
    }  # fmt: skip
    content: dict[str, Value] = {RESULTS: json.dumps(line)}
    decides = prepared.classes == 2 and not prepared.masks and asked.role == "source"
    # Of few rows of a class no count leaves: the other class's and that of all rows would say it.
    if decides and _enough(y, least) and not not_in_the_clear(asked.study):
        content[COUNTS] = merged(class_counts(outputs, y), least)
    return content


def _enough(y: torch.Tensor, least: int) -> bool:
    """Return whether every class that occurs has rows enough."""
    return int(y.unique(return_counts=True)[1].min()) >= least


def keep(asked: Admitted) -> dict[str, Value]:
    """Write the model's directory at this site, and return the model's fingerprint."""
    spec = json.loads(str(asked.parcel["spec"]))
    out, runtime = folder_of(asked), asked.runtime
    claimed = {name: value for name, value in spec["study"].items() if name not in APART}
    match("the digest of the model's study", digest_of(claimed), asked.proposal.digest)
    for name, value in described_here(asked).items():
        match(f"the model's {name}", spec.get(name), value)
    tensors = load(content) if isinstance(content := asked.parcel.get("tensors"), bytes) else None
    own = SITES + asked.site.name
    if tensors is None:  # nobody but the sites can open them
        tensors = opened(asked)
    elif "buffers" in (memory := own_buffers(asked)):
        tensors[own] = memory["buffers"].detach().cpu().clone()
    stored = {name: t for name, t in tensors.items() if not name.startswith(SITES) or name == own}
    spec |= {
        "prediction reads": [n.removeprefix(INBOX) for n in stored if n.startswith(INBOX)],
        "sites with statistics": [n.removeprefix(SITES) for n in stored if n.startswith(SITES)],
    }
    same = isinstance(content, bytes) and stored.keys() == load(content).keys()
    directory.write(out, spec, content if same and isinstance(content, bytes) else save(stored))
    read = directory.read(out, allow_code=bool(asked.site.policy.code))
    write_records(out / RECORDS, asked)
    write_pages(out, read.spec, runtime.method)
    return {FINGERPRINT: str(read.spec["fingerprint"])}


def described_here(asked: Admitted) -> Mapping[str, Any]:
    """Return what of a model's description must be as this site says it."""
    classes, position = asked.data.classes, asked.position
    return {
        "model": asked.network, "method": position.method, "seed": position.seed,
        "classes": None if classes is None else list(classes),
        "outputs": asked.prepared.outputs, "precision": asked.study.precision,
    }  # fmt: skip


def opened(asked: Admitted) -> dict[str, torch.Tensor]:
    """Return the tensors of a directory, from what a blind server carried here."""
    inbox = selected_inbox(asked)
    state = State(asked.turn.round + 1, inbox, {}, asked.position.seed)
    split = asked.prepared.everyone[asked.site.name].split("validation")
    x, memories = split.batch(slice(0, 2))[0], client_memories.load(asked.folder)
    method = asked.runtime.method
    content = save(selected_tensors(method, asked.model, state, memories, x))
    setting = Setting(asked.study, Path(), None, "", asked.network, (), weights=asked.weights)
    return load(with_trunk(in_use(content, asked.model.module), setting, asked.prepared))


def write_records(out: Path, asked: Admitted) -> None:
    """Write the training's records, of which the report is made here: they are data, not pages."""
    texts = json.loads(str(asked.parcel["records"]))
    position = asked.position
    job = Job(position.method, position.task, position.seed).folder(out)
    for name, folder in {"study.json": out, **dict.fromkeys(FILES, job)}.items():
        if isinstance(text := texts.get(name), str):
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / name, text.encode())
