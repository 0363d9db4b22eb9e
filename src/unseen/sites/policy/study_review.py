"""What a study would read at a site and send from it, in words, before it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from unseen.data.dataset import DataSet
from unseen.errors import UnseenError
from unseen.methods.compose import method as compose
from unseen.privacy.ledger import SCALARS
from unseen.serving.description import not_in_the_clear
from unseen.sites.flower.site import Site, load
from unseen.sites.flower.site_plan import roles_of
from unseen.sites.kits.signatures import check_study
from unseen.sites.policy import preflight
from unseen.sites.policy.approvals import SHORT, Proposal
from unseen.sites.policy.few_rows import named_values, rare
from unseen.sites.policy.study_rules import columns_of, label_of, sight_of
from unseen.studies.execution.runtime import Runtime
from unseen.studies.execution.spaces import spaces_of
from unseen.studies.results.records import TEST, VALIDATE
from unseen.studies.settings.holdout import Groups
from unseen.studies.settings.length import in_words
from unseen.studies.settings.study import StudySpec
from unseen.visible import visible

#: What the server can read of an update, by channel, and of the model.
SEEN = {
    "clear": "the server reads every update",
    "masks": "a server that follows the protocol reads the sum of the updates",
    "ckks": "a server that follows the protocol reads the decrypted sum of the updates",
}
#: Who only evaluates -> the exchange in which it does.
EXCHANGES = {"validation": VALIDATE, "target": TEST}
BLIND = "a server that follows the protocol reads no update, no sum and no model"
#: How many names of values are listed.
LISTED = 12


def review(site: Site, proposal: Proposal) -> list[str]:
    """Return the lines that tell a site what it would take part in, whatever the study's texts."""
    return [visible(line) for line in _lines(site, proposal)]


def _lines(site: Site, proposal: Proposal) -> list[str]:
    study = proposal.study
    roles = roles_of(study, site.name, site.role == "train")
    lines = [f"study {study.name}, digest {proposal.digest[:SHORT]}"]
    lines.append(f"  signed      {_signer(site, proposal)}")
    lines.append(f"  role        {_role(study, site, roles)}")
    faults = [*map(str, broken := preflight.of_study(site, study))]
    if any(refusal.rule == "code" for refusal in broken):  # nothing of it may be called
        return [*lines, *(f"  refused     {fault}" for fault in faults)]
    try:
        data = load(site, study)
        lines += _data(study, data, "source" in roles)
        if "source" in roles:
            train, rest = preflight.rows_by_split(study, data, site.name)
            lines.append(f"  rows        {train} to train on, {rest} held back")
        lines += _alone(site, data) if "source" in roles else []
        faults += map(str, preflight.of_data(site, study, data, roles)) if not broken else ()
    except (UnseenError, OSError) as error:
        faults.append(f"the data cannot be read as it says: {error}")
        data = None
    lines += [*_channel(study), *_noise(study)]
    for text in study.methods:
        lines += _method(site, study, text, data, roles)
    lines += _search(study)
    if study.save:
        lines += _future(study)
    lines.append(f"  how long    {_length(study)}")
    if not faults:
        return [*lines, "  rules       site.toml allows it"]
    return [*lines, *(f"  refused     {fault}" for fault in faults)]


def _signer(site: Site, proposal: Proposal) -> str:
    arguments = proposal.signature, proposal.digest, site.federation
    try:
        return f"by {check_study(site.kit or Path(), *arguments)}, coordinator"
    except UnseenError as error:
        return f"no: {error.what}" + (" (the rule `signed` refuses it)" * site.policy.signed)


def _role(study: StudySpec, site: Site, roles: Sequence[str]) -> str:
    """What this site does in the study, in words."""
    name = " and ".join(roles) or "none"
    if site.role == "evaluate":
        return f"{name}: this site never trains" + ("" if roles else ", and is not a target")
    if not roles:
        return "none: the plan names other sites"
    if len(roles) == 1:
        return f"{name}: it {'trains' if name == 'source' else 'only evaluates'}"
    turn = "each group of sites is" if isinstance(study.holdout, Groups) else "each site is"
    alone = study.holdout == "leave-one-domain-out" and study.targets is None
    but = "; where sites take part that never train, these alone are targets" * alone
    return f"{name}: {turn} a target in turn, and trains in the other tasks{but}"


def _data(study: StudySpec, data: DataSet, trains: bool) -> Iterator[str]:
    (domain,) = data.domains
    yield f"  data        {study.dataset}: {len(domain.y):,} rows are read here"
    uses = columns_of(study.dataset)
    if data.schema is not None:
        features = [*data.schema.columns, *data.schema.texts]
        yield f"  features    {', '.join(features)}"
    for name, use in uses:
        if use not in ("feature", "text", "domain"):
            yield f"  {use:11} {name}"
    for column, _, names in named_values(data, label_of(study.dataset)):
        more = f" and {len(names) - LISTED:,} more" if len(names) > LISTED else ""
        yield f"  leaves      the names of {column}: {', '.join(names[:LISTED])}{more}"
    if trains and data.schema is not None and study.privacy.columns is None:
        yield "  leaves      sums over the training rows of every column, in the clear, once"


def _alone(site: Site, data: DataSet) -> Iterator[str]:
    """Yield the values that so few rows have that what is summed of them is of single people."""
    least = site.policy.least.examples
    if columns := rare(data, least):
        more = f" and {len(columns) - LISTED} more columns" if columns[LISTED:] else ""
        yield (
            f"  few rows    sums over rows give these away: {'; '.join(columns[:LISTED])}{more} "
            f"(least.rows_per_value = {least} keeps them here)"
        )


def _channel(study: StudySpec) -> Iterator[str]:
    blind = study.privacy.server == "blind"
    sees = BLIND if blind else SEEN.get(study.privacy.kind, "unknown")
    yield f"  channel     {study.privacy.channel}: {sees}"


def _noise(study: StudySpec) -> Iterator[str]:
    for what, text in (("example", study.privacy.examples), ("site", study.privacy.clients)):
        if text:
            yield f"  noise       of each {what}: {text}"
    if not study.privacy.noised:
        yield "  noise       none: ε is not bounded"


def _method(
    site: Site, study: StudySpec, text: str, data: DataSet | None, roles: Sequence[str]
) -> Iterator[str]:
    method = compose(text)
    if "source" in roles:
        yield from _trained(site, study, text, data)
    else:
        yield f"  method      {method.name}: by the plan this site trains nothing of it"
    every = study.evaluate_every * method.cycle
    stays = " (the rule evaluate keeps them here)"
    for role in roles:
        if role != "source" and study.privacy.metrics != "none":
            what = f"metrics of all its rows as {role}{stays * (role not in site.policy.evaluate)}"
            yield f"  leaves      {EXCHANGES[role]}, {_when((every - 1, every))}: {what}"


def _trained(site: Site, study: StudySpec, text: str, data: DataSet | None) -> Iterator[str]:
    """Yield what a method sends of a site that trains."""
    method = compose(text)
    yield f"  method      {method.name}: the server's rule needs {sight_of(method)} of updates"
    for extra in method.shares:
        yield f"  leaves      {extra}"
    if data is None:
        return
    try:
        prepared, seed = preflight.prepared_here(study, data, site.name), study.seed_list[0]
        runtime = preflight.runtime_here(study, data, prepared, text, seed)
        if runtime.method.rounds is not None:
            yield f"  how long    {runtime.method.rounds} rounds of {method.name}"
        for line in _exchanges(runtime):
            yield f"  leaves      {line}"
    except UnseenError as error:
        yield f"  leaves      not known before it runs: {error}"


def _exchanges(runtime: Runtime) -> Iterator[str]:
    method, inbox = runtime.method, runtime.start().inbox
    for exchange in method.exchanges:
        slots = []
        for name, slot in exchange.row_slots.items():
            shape = slot.row_shape(slot.entry(inbox, name))
            if shape.numel():
                slots.append(f"{name} (about {shape.numel():,} numbers)")
        what = ", ".join([*slots, SCALARS]) if slots else "metrics of its held-back rows"
        yield f"{exchange.name}, {_when(exchange.rounds)}: {what}"


def _when(rounds: tuple[int, int]) -> str:
    first, every = rounds
    if every == 0:
        return "in the last round" if first == -1 else f"in round {first + 1}"
    return "each round" if every == 1 else f"every {every} rounds"


def _search(study: StudySpec) -> Iterator[str]:
    """Yield what is tried; every value of these ranges may be played, within the site's rules."""
    if study.tune is None:
        return
    spaces = [space for text in study.methods for space in spaces_of(study, text)]
    ranges = {name: search for space in spaces for name, search in space.ranges.items()}
    tried = ", ".join(f"{name} {search}" for name, search in ranges.items()) or "nothing"
    score = f"scored by {study.tune.criterion}"
    count = "all values" if study.tune.sampler == "grid" else f"{study.tune.trials} trials"
    if study.tune.rounds is not None:
        trains = in_words(study.tune.rounds, study.patience)
        score = f"each of {trains} where the method has none of its own, {score}"
    yield f"  search      {count} of each method for each task, {score}: {tried}"


def _future(study: StudySpec) -> Iterator[str]:
    """Yield what becomes of the model, and what leaves for its card."""
    who = "the sites alone" if study.privacy.server == "blind" else "the server and all sites"
    yield f"  model       kept by {who}, with a card; saved: {', '.join(study.save)}"
    if study.privacy.metrics != "none":
        yield "  leaves      the model's metrics here, with intervals; every site reads them"
        if not not_in_the_clear(study):
            yield (
                "  leaves      of two classes, validation rows by class and probability, in groups "
                "of least.examples"
            )


def _length(study: StudySpec) -> str:
    seeds, methods = len(study.seed_list), len(study.methods)
    recipe = study.training
    work = f"{recipe.steps} steps" if recipe.steps is not None else f"{recipe.epochs or 1} epochs"
    each = f"{work} of batches of {recipe.batch_size} each round"
    return f"{study.rounds} rounds × {methods} methods × {seeds} seeds for each task; {each}"
