"""The one place that each question of the server passes at a site, and each answer on its way out.

A question is admitted if the study is signed, if no rule of `site.toml` is broken by the study or
by the question, and if the study was approved. Whatever answer follows, a refusal too, is written
into the site's ledger before it leaves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from unseen.engine.messages import ROW, Value
from unseen.errors import UnseenError
from unseen.privacy import channelled, wire
from unseen.sites.flower import once, receipts, terms
from unseen.sites.flower.admitted import Admitted
from unseen.sites.flower.script import fingerprint
from unseen.sites.flower.site import Site
from unseen.sites.flower.site_question import EXCHANGE, HELLO, SUMS, Question, match
from unseen.sites.flower.terms import FAILED, REFUSED, Refused
from unseen.sites.kits.signatures import check_study
from unseen.sites.policy import few_rows, site_ledger, spending, study_rules
from unseen.sites.policy.approvals import SHORT, Approvals, Request, unapproved
from unseen.sites.policy.site_ledger import SiteLedger
from unseen.studies.settings.study import StudySpec

LOG = logging.getLogger("flwr")
#: Rule -> what of a question breaks it, by kind of question.
Check = Callable[[Admitted], Iterator[str]]
#: Said where nothing else may be: the ledger could not be written, so nothing that it does not
#: know of leaves.
UNACCOUNTED = "its ledger cannot be written, so nothing leaves; its log says why"
#: Said where a day has as many refusals as the ledger takes.
MANY = "refused more questions today than its ledger has room for."


def approved(question: Question, site: Site) -> Request:
    """Return the request of a question's study, which is signed, allowed and approved."""
    proposal = question.proposal
    if site.policy.signed:
        try:
            check_study(site.kit or Path(), proposal.signature, proposal.digest, site.federation)
        except UnseenError as error:
            raise Refused(error.what, "signed", error.remedy) from None
    try:
        request = Approvals(site.account).ask(proposal)
    except UnseenError as error:  # it speaks of the study alone
        raise Refused(str(error), "study") from None
    _check_rules(site, question.agreed)
    if why := unapproved(request, site.policy, question.run):
        name = f"study {question.agreed.name!r}, {proposal.digest[:SHORT]},"
        raise Refused(f"{name} {why} site {site.name!r}.", "approval")
    return request


def admit(question: Question, site: Site, request: Request) -> Admitted:
    """Return a question that no rule of the site forbids, ready to be answered."""
    asked = Admitted(site, question)
    if asked.study is not asked.agreed:
        _check_rules(site, asked.study)
    if question.position is not None:
        _begin(asked, Approvals(site.account), request)
        once.check_new(asked)
    for rule, check in RULES[asked.kind].items():
        for why in check(asked):
            raise Refused(f"{why}.", rule)
    return asked


def _check_rules(site: Site, study: StudySpec) -> None:
    """Refuse a study that breaks a rule of the site, or names what nothing is called."""
    try:
        breach = next(study_rules.breaches(site.policy, study), None)
    except (ValueError, TypeError, KeyError) as error:  # it speaks of the study alone
        raise Refused(f"the study cannot work: {error}", "study") from None
    if breach is not None:
        raise Refused(f"{breach.why}.", breach.rule)


def _begin(asked: Admitted, approvals: Approvals, request: Request) -> None:
    """Refuse another run than the one that was agreed on first, or another state of the data."""
    site, agreement = asked.site, asked.agreement
    if agreement.members.get(site.name) != site.role:
        raise Refused(f"this site is no {agreement.members.get(site.name)!r} of the run.", "role")
    now = {"run": agreement.run, "agreement": fingerprint(agreement)}
    now["data"] = site.digest(asked.own)
    if request.run_begun.get("run") != agreement.run:
        approvals.begin(request, now)
        return
    if request.run_begun["agreement"] != now["agreement"]:
        raise Refused("the run's sites agreed on something else before.", "once")
    match("the digest of the site's data", request.run_begun["data"], now["data"])


def let_out(
    ledger: SiteLedger, question: Question | None, asked: Admitted | None,
    echo: Mapping[str, Value], content: Mapping[str, Value],
) -> dict[str, Value]:  # fmt: skip
    """Return an answer, once the site's ledger has it.

    The question is None where it could not be read, and `asked` where it is refused.
    """
    answer = {**echo, **content}
    try:
        line = {**head_of(question, echo), "answer": site_ledger.digest_of_parcel(answer)}
        if REFUSED in content or FAILED in content:
            line |= {"rule": content.get(terms.RULE, FAILED)}
            apart = {REFUSED: (REFUSED, "plain"), FAILED: (FAILED, "plain")}
            content = {name: content[name] for name in apart if name in content}
            line["left"] = site_ledger.items_of(content, apart)
            if (entry := ledger.refuse(**line)) is None:
                return {**echo, REFUSED: MANY, terms.RULE: "most.questions"}
            return {**answer, terms.ENTRY: site_ledger.entry_of(entry)}
        assert asked is not None
        apart, more = forms(asked, content)
        line |= more
        policy = asked.site.policy.most
        before = asked.lines if policy.epsilon is not None else []
        if why := spending.over_budget(before, line, policy.epsilon, policy.delta):
            words = {REFUSED: f"{why}.", terms.RULE: "most.epsilon"}
            LOG.warning("refused by most.epsilon: %s", why)
            return let_out(ledger, question, None, echo, words)
        line["left"] = site_ledger.items_of(content, apart)
        answer = {**answer, terms.ENTRY: site_ledger.entry_of(ledger.append(**line))}
        if asked is not None and asked.kind != HELLO:
            once.keep(asked, answer)
        return answer
    except (UnseenError, ValueError, KeyError, TypeError):
        LOG.exception("the answer of this site could not be accounted for")
        return {**echo, FAILED: UNACCOUNTED}


def head_of(question: Question | None, echo: Mapping[str, Value]) -> dict[str, Any]:
    """Return which question of which study a line of the ledger is about."""
    line: dict[str, Any] = {"kind": echo["kind"]}
    if question is None:
        return line
    line |= {"study": question.proposal.digest, "name": question.agreed.name}
    if (position := question.position) is not None:
        job = position.job(question.run)
        line |= {"job": job, "round": position.round, "exchange": position.exchange}
    return line


def forms(
    asked: Admitted, content: Mapping[str, Value]
) -> tuple[dict[str, tuple[str, str]], dict[str, Any]]:
    """Return the slots and forms of an answer that is not plain, and what its noise protects."""
    apart: dict[str, tuple[str, str]] = {}
    by_prefix = {ROW: "plain", terms.SEALED: asked.channel.form, terms.CARGO: "encrypted"}
    for name in content:
        for prefix, form in by_prefix.items():
            if name.startswith(prefix):
                apart[name] = (name.removeprefix(prefix), form)
    if isinstance(reply := content.get("answer"), bytes):
        head, _ = wire.unpack(reply, "the answer")
        slot, form = channelled.ANSWERS.get(head.get("kind", ""), ("{} answer", "plain"))
        apart["answer"] = (slot.format(head.get("slot", "")), form)
    if asked.kind == HELLO:
        return apart, {}
    statement = once.said_of(asked)
    if asked.kind not in (EXCHANGE, terms.ASK) or not asked.exchange.slots:
        return apart, statement
    releases = spending.releases_of(asked.exchange, asked.counts[0], asked.turn, asked.fewest)
    if releases:
        for name, (slot, form) in apart.items():
            apart[name] = slot, "noised" if form == "plain" else f"noised+{form}"
    if asked.kind == terms.ASK:
        return apart, statement
    noised = {"releases": releases, "rows": asked.rows} if releases else {}
    return apart, {"trained": True, **noised, **statement}


def _study(asked: Admitted) -> Iterator[str]:
    """Yield where a position is none of the study that was agreed to."""
    position, kind = asked.position, asked.kind
    asked.terms.check(asked.own)
    if position.seed not in asked.study.seed_list:
        yield f"the study has no seed {position.seed!r}"
    alone = {SUMS: SUMS, terms.MEASURE: terms.MEASURE, terms.KEEP: terms.KEEP}
    if kind in alone and position.exchange != alone[kind]:
        yield f"the question of the kind {kind!r} is about {position.exchange!r}"
    if kind == SUMS and (position.round or asked.role != "source"):
        yield "sums over columns are asked for of sources, once, before the first round"
    _ = asked.turn  # refuses what is no exchange of the study, or is not due


def _rounds(asked: Admitted) -> Iterator[str]:
    rounds, most = asked.turn.rounds, asked.site.policy.most.rounds
    if rounds > most:
        yield f"the method takes {rounds} rounds, and {most} are the most"


def _evaluate(asked: Admitted) -> Iterator[str]:
    if asked.kind not in (terms.MEASURE, terms.KEEP) and asked.reads_validation:
        if "validation" not in asked.site.policy.evaluate:
            yield f"{asked.method} sends figures of its held-back rows, and these do not leave"
    elif asked.kind == terms.MEASURE or not asked.exchange.slots:
        # Of a validation domain, which trains nothing, all rows are measured.
        role = "validation" if asked.role == "source" else "target"
        if role not in asked.site.policy.evaluate:
            yield f"metrics of its rows as {role} do not leave"


def _sites(asked: Admitted) -> Iterator[str]:
    count, least = len(asked.turn.roster), asked.site.policy.least.sites
    if asked.role == "source" and count < least:
        yield f"{count} sites train together, and {least} are the least"
    if strangers := asked.strangers:
        yield f"this site has no key to mask its rows from {', '.join(strangers)}"


def _steps(asked: Admitted) -> Iterator[str]:
    steps, least = asked.counts[1], asked.site.policy.least.steps
    if steps is not None and steps < least:
        yield f"the reply would be of {steps} steps, and {least} are the least"


def _examples(asked: Admitted) -> Iterator[str]:
    """Yield whether too few examples are behind a reply, a sum or a metric."""
    count, least = asked.counts[2], asked.site.policy.least.examples
    if count < least:
        yield f"the answer would be made of {count} examples, and {least} are the least"


def _methods(asked: Admitted) -> Iterator[str]:
    return study_rules.method_breaches(asked.site.policy, asked.runtime.method)


def _questions(asked: Admitted) -> Iterator[str]:
    limit, digest = asked.site.policy.most.questions, asked.proposal.digest
    own = (x for x in asked.lines if x.get("study") == digest and "answer" in x)
    if sum(x.get("rule") not in site_ledger.BEFOREHAND for x in own) >= limit:
        yield f"{limit} questions of this study were answered or refused, which are the most"


def _rows(asked: Admitted) -> Iterator[str]:
    """Yield whether a site that is to train has fewer rows than any answer may be made of."""
    (domain,), least = asked.own.domains, asked.site.policy.least.examples
    if asked.site.role == "train" and len(domain.y) < least:
        yield f"{len(domain.y)} rows are here, and {least} are the least to train on"


def _levels(asked: Admitted) -> Iterator[str]:
    """Yield the columns whose values would leave by name, and may not."""
    label = study_rules.label_of(asked.study.dataset)
    return (why for why, _ in few_rows.kept_names(asked.site.policy, asked.own, label))


#: What of a question breaks which rule, by kind of question, in the order in which they are
#: looked at. Those of the study alone are `study_rules.RULES`.
RULES: Mapping[str, Mapping[str, Check]] = {
    "hello": {"most.questions": _questions, "least.examples": _rows, "columns": _levels},
    "statistics": {
        "study": _study, "most.questions": _questions, "least.sites": _sites,
        "least.examples": _examples,
    },
    "exchange": {
        "study": _study, "most.questions": _questions, "most.rounds": _rounds,
        "evaluate": _evaluate, "least.sites": _sites, "methods": _methods, "least.steps": _steps,
        "least.examples": _examples, receipts.RULE: receipts.breaches,
    },
    terms.ASK: {"study": _study, "most.questions": _questions, "least.sites": _sites},
    terms.MEASURE: {
        "study": _study, "most.questions": _questions, "evaluate": _evaluate,
        "least.examples": _examples,
    },
    terms.KEEP: {"study": _study, "most.questions": _questions},
}  # fmt: skip
