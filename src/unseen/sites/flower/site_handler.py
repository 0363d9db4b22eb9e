"""The site's side of a message: what was asked is checked, done, and answered.

Nothing is kept in the process, which ends with the message. What leaves is the answer alone: of an
error only its kind leaves too, since its words may quote the site's data; they stay in the site's
log.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import nn

from unseen.core import Exchange, Inbox, Model, Reply
from unseen.core.atomic import write_atomically
from unseen.core.exchange import Local
from unseen.core.joint import changed
from unseen.core.metrics.evaluation import Evaluate
from unseen.core.replies import NOT_FINITE, finite
from unseen.engine import client_memories
from unseen.engine.determinism import reproducible
from unseen.engine.inprocess import InProcess
from unseen.engine.messages import Parcel, Value, from_reply, named, to_inbox
from unseen.errors import BadReply, TooFewRows, UnseenError
from unseen.methods.exact import Counts, Derivatives, Histograms, LeftOfCuts
from unseen.privacy import channelled, kinds, wire
from unseen.sites.flower import gate, once, receipts, site_model, terms
from unseen.sites.flower.admitted import Admitted
from unseen.sites.flower.script import before
from unseen.sites.flower.site import Site
from unseen.sites.flower.site_question import HELLO, Question
from unseen.sites.flower.terms import PROTOCOL, Facts, Refused
from unseen.sites.kits.closed import closed
from unseen.sites.kits.signatures import RECEIPT
from unseen.sites.policy.few_rows import without_few
from unseen.sites.policy.site_ledger import SiteLedger
from unseen.studies.execution.checks import check_noised
from unseen.studies.execution.column_statistics import statistics
from unseen.studies.execution.job import versions
from unseen.studies.execution.label_kinds import totals_of
from unseen.studies.execution.method_checks import check_batches
from unseen.studies.execution.prepare import prepare
from unseen.studies.execution.watcher import FINAL, save_tensors, tensors_of

LOG = logging.getLogger("flwr")
#: What answers with sums over rows, of which none is of too few.
OF_ROWS = (Evaluate, Derivatives, Counts, Histograms, LeftOfCuts)
#: Beyond this no number of a model is: its square could not be held.
LARGEST = 1e20
#: By how much machines may differ in a model's first numbers.
ROUNDING = 1e-4


def hello(asked: Admitted) -> dict[str, Value]:
    """Return who the site is and what its data are called."""
    counted = not asked.study.privacy.clients  # with this noise no number leaves a site
    digest = asked.site.digest(asked.own)
    facts = Facts.of(asked.own, asked.site.role, digest, versions(), counted)
    asked.featured(asked.own)  # now, since an exchange has a deadline
    return {"facts": json.dumps(asdict(facts))}


def sums(asked: Admitted) -> dict[str, Value]:
    """Return the sums over the site's training rows by which tables are standardised."""
    totals = totals_of(asked.terms.empty(), asked.study)
    if totals is None:
        raise Refused("was asked for statistics of a table; the data are not a table.")
    if asked.study.privacy.columns is not None or asked.study.privacy.noised:
        raise Refused(
            "was asked for sums over columns, which this study's privacy keeps here.", "privacy"
        )
    plain = asked.study.training.model_copy(update={"oversample": False, "loss": ""})
    study = asked.study.model_copy(update={"training": plain})
    data = replace(asked.data, schema=None, standardise=None)
    raw = prepare(data, asked.task, study, asked.position.seed)
    (collect,) = statistics(totals).exchanges
    client = raw.everyone[asked.site.name]
    reply, _ = collect.local(Model(nn.Module()), {}, client, {}, asked.turn)
    return from_reply(reply)


def exchange(asked: Admitted) -> dict[str, Value]:
    """Do one exchange of the method as `InProcess` does it, with the memory that lies on disk."""
    model, name = asked.model, asked.site.name
    inbox = to_inbox(asked.parcel, model.device)
    if asked.exchange.slots:
        if not asked.runtime.method.fits:
            check_batches(model.module, asked.prepared.sources, asked.study)
        try:
            check_noised(asked.study, asked.data, model.module)
        except UnseenError as error:  # it speaks of the study and the network, not of the data
            raise Refused(str(error), "privacy") from None
    if asked.side is None:
        inbox = asked.exchange.incoming(inbox, len(model.vector))
    check_inbox(inbox, model)
    check_first(asked, inbox)
    memories = client_memories.load(asked.folder)
    received = inbox if asked.side is None else receive(asked, asked.side, inbox)
    client, least = asked.prepared.everyone[name], asked.site.policy.least.examples
    backend = InProcess(model, {name: client}, memories)
    try:
        (reply,) = backend.map(sparing(asked.exchange, least), received, [name], asked.turn)
    except TooFewRows as error:
        raise Refused(str(error), "least.examples") from None
    client_memories.save(asked.folder, memories)
    asked.rows = wire.digest_of(reply.rows).hex()
    codes = {} if asked.exchange.slots else client.split("validation").meta
    reply = without_few(reply, codes, least)
    left = from_reply(reply) if asked.side is None else leave(asked, asked.side, reply, received)
    return left | {RECEIPT: receipts.receipt(asked)} if asked.exchange.slots else left


def sparing(exchange: Exchange, least: int) -> Exchange:
    """Return the exchange, whose local parts answer with no sum that fewer rows make.

    One that evaluates gives no share of fewer rows of a class; one that sends derivatives gives
    none to which fewer rows contribute; one of trees gives no sum over fewer rows.
    """

    def spared(part: Local) -> Local:
        return replace(part, least=least) if isinstance(part, OF_ROWS) else part

    return replace(exchange, local=changed(exchange.local, spared))


def check_first(asked: Admitted, inbox: Inbox) -> None:
    """Refuse before anything was trained another model than the study begins with.

    Where the study has a file of initial weights, the site has none to compare with.
    """
    study, received = asked.study, inbox.get("model")
    if received is None or (study.weights is not None and not study.keeps_weights):
        return
    if before(asked.runtime, asked.position) is None:
        first, exchange = asked.runtime.start().inbox, asked.exchange
        if asked.side is None:  # which sends the parts that the exchange reads
            first = exchange.incoming(exchange.outgoing(first), len(first["model"]))
        own = first["model"]
        if not torch.allclose(received, own, rtol=ROUNDING, atol=ROUNDING):
            raise Refused("the model is not the one that the study begins with.", "study")


def check_inbox(inbox: Inbox, model: Model) -> None:
    """Refuse a model of another type than this one's, or with numbers that are not finite."""
    for name, own in {"model": model.vector, "buffers": model.buffers}.items():
        entry = inbox.get(name)
        if entry is None:
            continue
        if (entry.dtype, entry.shape) != (own.dtype, own.shape):
            what = f"{entry.dtype} {list(entry.shape)}, and here it is {own.dtype}"
            raise Refused(f"{name!r} came as {what} {list(own.shape)}.")
        if not finite(entry):
            raise Refused(f"{name!r} came with {NOT_FINITE}.")
        if entry.numel() and float(entry.abs().max()) > LARGEST:
            raise Refused(f"{name!r} came with numbers beyond {LARGEST:g}.", "model")


def receive(asked: Admitted, side: kinds.Site, inbox: Inbox) -> Inbox:
    """Return the inbox as this site's local part sees it, of what came in the clear and sealed."""
    if not side.remembers:
        asked.side_file.unlink(missing_ok=True)
    elif asked.side_file.exists():  # what it knows of the sums that come now
        side.load(asked.side_file.read_bytes())
    turn = replace(asked.turn, client=asked.site.name)
    try:
        entries = side.receive(inbox, named(asked.parcel, terms.CARGO, bytes), turn)
    except BadReply as error:  # it speaks of labels of exchanges alone
        raise Refused(str(error), "state") from None
    return {name: entry.to(asked.model.device) for name, entry in entries.items()}


def leave(asked: Admitted, side: kinds.Site, reply: Reply, inbox: Inbox) -> dict[str, Value]:
    """Return all that leaves the site: scalars as they are, rows and state sealed."""
    exchange, turn = asked.exchange, replace(asked.turn, client=asked.site.name)
    last = turn.round == turn.rounds - 1
    if side.blind and not exchange.slots and last and not asked.study.save:
        position = asked.position
        notes = {"run": asked.agreement.run, "method": position.method, "task": position.task,
                 "seed": str(position.seed), "model": asked.network}  # fmt: skip
        trained = tensors_of(asked.model, inbox["model"], inbox["buffers"])
        save_tensors(asked.folder / FINAL, trained, notes)  # nobody else has it
    sealed = channelled.leave(side, exchange, reply, inbox, turn)
    if exchange.slots:
        write_atomically(asked.side_file, side.save())
    parcel = from_reply(Reply(scalars=sealed.scalars))
    if sealed.state:
        parcel[terms.CARGO + kinds.STATE] = sealed.state
    return parcel | {terms.SEALED + slot: row for slot, row in sealed.rows.items()}


def answer(asked: Admitted) -> dict[str, Value]:
    """Return a site's answer to a question about the rows that it sealed last."""
    side, question = asked.side, asked.parcel["question"]
    if side is None or not asked.side_file.exists() or not isinstance(question, bytes):
        raise UnseenError("no question is answered before rows were sealed here.")
    side.load(asked.side_file.read_bytes())
    reply = side.answer(question)
    write_atomically(asked.side_file, side.save())
    return {"answer": reply}


#: Who answers each kind of message.
ANSWERS: Mapping[str, Callable[[Admitted], Mapping[str, Value]]] = {
    "hello": hello, "statistics": sums, "exchange": exchange, terms.ASK: answer,
    terms.MEASURE: site_model.measure, terms.KEEP: site_model.keep,
}  # fmt: skip


def handle(parcel: Parcel, site: Site) -> dict[str, Value]:
    """Return the answer to a message: what was asked for, a refusal, or that it failed."""
    ledger = SiteLedger(site.account)
    kind = str(parcel.get("kind", ""))
    echo: dict[str, Value] = {"site": site.name, "protocol": PROTOCOL, "kind": kind}
    try:
        with closed(), ledger.lock():
            return _answered(parcel, site, ledger, echo)
    except OSError:  # no room for it, say
        LOG.exception("the ledger of site %s cannot be written", site.name)
        return {**echo, terms.FAILED: gate.UNACCOUNTED}


def _answered(
    parcel: Parcel, site: Site, ledger: SiteLedger, echo: dict[str, Value]
) -> dict[str, Value]:
    """The answer to a message; one that left before, if the same was asked before."""
    question, asked = None, None
    try:
        question = Question.read(parcel)
        request = gate.approved(question, site)
        with reproducible(question.agreed.threads, question.agreed.device):
            asked = gate.admit(question, site, request)
            if asked.kind != HELLO and (answer := once.before(asked)) is not None:
                return answer
            content = ANSWERS[asked.kind](asked)
            return gate.let_out(ledger, question, asked, {**echo, "about": question.about}, content)
    except Refused as error:
        LOG.warning("refused by %s: %s", error.rule, error)
        words: dict[str, Value] = {terms.REFUSED: str(error), terms.RULE: error.rule}
    except OSError:
        raise
    except Exception as error:
        LOG.exception("site %s could not answer", site.name)
        why = f"{type(error).__name__} at site {site.name!r}; its log says what happened"
        words = {terms.FAILED: why}
    return gate.let_out(ledger, question, None, echo, words)


def answer_from(kit: Path, parcel: Parcel) -> dict[str, Value]:
    """Return the answer of a kit's site to a message; settings that cannot be read are said so."""
    try:
        site = Site.read(kit)
    except UnseenError:
        LOG.exception("the settings of this site cannot be read")
        kind = str(parcel.get("kind", ""))
        why = "the settings of this site cannot be read; its log says why"
        return {"site": "", "protocol": PROTOCOL, "kind": kind, terms.FAILED: why}
    return handle(parcel, site)
