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

import torch
from torch import Tensor

from unseen.datasets import info
from unseen.datasets.dataset import DataSet
from unseen.engine.messages import ROW, Value
from unseen.errors import UnseenError
from unseen.expression import parse
from unseen.federation.flower import terms
from unseen.federation.flower.desk import Desk
from unseen.federation.flower.terms import FAILED, REFUSED, Refused
from unseen.federation.kits.signatures import check_study
from unseen.federation.policy import site_ledger, spending, study_rules
from unseen.federation.policy.approvals import Approvals
from unseen.federation.policy.proposals import SHORT
from unseen.federation.policy.site_ledger import SiteLedger
from unseen.methods.compose import method as compose
from unseen.privacy import channelled, kinds, wire
from unseen.study.label_kinds import chosen_metrics

LOG = logging.getLogger("flwr")
#: Rule -> what of a question breaks it, by kind of question.
Check = Callable[[Desk], Iterator[str]]
#: Said where nothing else may be: the ledger could not be written, so nothing that it does not
#: know of leaves.
UNACCOUNTED = "its ledger cannot be written, so nothing leaves; its log says why"
#: Said where a day has as many refusals as the ledger takes.
MANY = "refused more questions today than its ledger has room for."


def admit(desk: Desk) -> None:
    """Refuse a question that a rule of the site forbids.

    Args:
        desk: The question, opened; nothing was computed for it yet.

    Raises:
        Refused: With the rule's name. The words are about study and question, not about the data.
    """
    site, proposal = desk.site, desk.proposal
    if site.policy.signed:
        try:
            check_study(site.kit or Path(), proposal.signature, proposal.digest, site.federation)
        except UnseenError as error:
            raise Refused(error.what, "signed", error.remedy) from None
    try:
        request = Approvals(site.account).ask(proposal)
    except UnseenError as error:  # it speaks of the study alone
        raise Refused(str(error), "study") from None
    for breach in study_rules.breaches(site.policy, desk.agreed):
        raise Refused(f"{breach.why}.", breach.rule)
    if site.policy.approval == "wait" and not request.approval:
        name = f"study {desk.agreed.name!r}, {proposal.digest[:SHORT]},"
        raise Refused(f"{name} waits for the approval of site {site.name!r}.", "approval")
    if desk.study is not desk.agreed:
        for breach in study_rules.breaches(site.policy, desk.study):
            raise Refused(f"{breach.why}.", breach.rule)
    for rule, check in RULES[desk.kind].items():
        for why in check(desk):
            raise Refused(f"{why}.", rule)


def let_out(
    ledger: SiteLedger, desk: Desk | None, echo: Mapping[str, Value], content: Mapping[str, Value]
) -> dict[str, Value]:
    """Return an answer, once the site's ledger has it.

    Args:
        ledger: The site's.
        desk: The question; None where it could not be opened.
        echo: What every answer repeats of its question.
        content: The answer, or why there is none.
    """
    answer = {**echo, **content}
    try:
        line = {**head_of(desk, echo), "answer": site_ledger.digest_of_parcel(answer)}
        if REFUSED in content or FAILED in content:
            line |= {"rule": content.get(terms.RULE, FAILED)}
            apart = {REFUSED: (REFUSED, "plain"), FAILED: (FAILED, "plain")}
            content = {name: content[name] for name in apart if name in content}
            line["left"] = site_ledger.items_of(content, apart)
            if (entry := ledger.refuse(**line)) is None:
                return {**echo, REFUSED: MANY, terms.RULE: "most.questions"}
            return {**answer, terms.ENTRY: site_ledger.entry_of(entry)}
        assert desk is not None
        apart, more = forms(desk, content)
        line |= more
        policy = desk.site.policy.most
        before = ledger.lines() if policy.epsilon is not None else []
        if why := spending.over_budget(before, line, policy.epsilon, policy.delta):
            words = {REFUSED: f"{why}.", terms.RULE: "most.epsilon"}
            LOG.warning("refused by most.epsilon: %s", why)
            return let_out(ledger, desk, echo, words)
        line["left"] = site_ledger.items_of(content, apart)
        return {**answer, terms.ENTRY: site_ledger.entry_of(ledger.append(**line))}
    except (UnseenError, ValueError, KeyError, TypeError):
        LOG.exception("the answer of this site could not be accounted for")
        return {**echo, FAILED: UNACCOUNTED}


def head_of(desk: Desk | None, echo: Mapping[str, Value]) -> dict[str, Any]:
    """Return which question of which study a line of the ledger is about."""
    line: dict[str, Any] = {"kind": echo["kind"]}
    if desk is None:
        return line
    line |= {"study": desk.proposal.digest, "name": desk.agreed.name}
    if "turn" in desk.head:
        line |= {"job": desk.job, "round": desk.turn.round, "exchange": desk.turn.exchange}
    return line


def forms(
    desk: Desk, content: Mapping[str, Value]
) -> tuple[dict[str, tuple[str, str]], dict[str, Any]]:
    """Return the slots and forms of an answer that is not plain, and what its noise protects."""
    # Masked rows stay here until the weights are known: of them the head alone leaves.
    sealed = "header" if isinstance(desk.channel, kinds.Masks) else "encrypted"
    apart: dict[str, tuple[str, str]] = {}
    for name in content:
        for prefix, form in ((ROW, "plain"), (terms.SEALED, sealed), (terms.CARGO, "encrypted")):
            if name.startswith(prefix):
                apart[name] = (name.removeprefix(prefix), form)
    if isinstance(reply := content.get("answer"), bytes):
        head, _ = wire.unpack(reply, "the answer")
        slot, form = channelled.ANSWERS.get(head.get("kind", ""), ("{} answer", "plain"))
        apart["answer"] = (slot.format(head.get("slot", "")), form)
    if desk.kind not in ("exchange", terms.ASK) or not desk.exchange.slots:
        return apart, {}
    releases = spending.releases_of(desk.exchange, desk.counts[0], desk.turn, desk.fewest)
    if releases:
        apart = {name: (slot, _noised(form)) for name, (slot, form) in apart.items()}
    if desk.kind == terms.ASK:
        return apart, {}
    noised = {"releases": releases, "rows": desk.rows} if releases else {}
    return apart, {"trained": True, **noised}


def _noised(form: str) -> str:
    return "noised" if form == "plain" else f"noised+{form}"


def _study(desk: Desk) -> Iterator[str]:
    """Yield where a message says something else than the study that was agreed to."""
    head, study = desk.head, desk.study
    agreed = {compose(text).name for text in desk.agreed.methods}
    if desk.study is not desk.agreed:  # a trial, whose options the desk has checked
        agreed = {head["trial"]["method"], compose(desk.method).name}
    if head["method"] not in agreed:
        yield f"the study has no method {head['method']!r}"
    if head["seed"] not in study.seed_list:
        yield f"the study has no seed {head['seed']!r}"
    entry = info(parse(study.dataset)[0].name)
    if head["model"] != (model := study.model or entry.model):
        yield f"the model of the study is {model!r}, and the message says {head['model']!r}"
    metrics = chosen_metrics(study, desk.terms.empty(), entry.metrics)
    if tuple(head["metrics"]) != metrics:
        yield f"the study records {', '.join(metrics)}, and the message asks for others"
    turn = desk.turn
    longest = max(study.rounds, compose(desk.method).rounds or 0)
    if turn.rounds > longest and desk.kind == "exchange":  # a mixture knows once it has its sites
        longest = max(longest, desk.runtime.method.rounds or 0)
    if not 0 <= turn.round < turn.rounds or (turn.rounds > longest and desk.kind == "exchange"):
        yield f"the study has {longest} rounds, and this would be {turn.round + 1} of {turn.rounds}"


def _rounds(desk: Desk) -> Iterator[str]:
    rounds, most = desk.turn.rounds, desk.site.policy.most.rounds
    if rounds > most:
        yield f"the method takes {rounds} rounds, and {most} are the most"


def _evaluate(desk: Desk) -> Iterator[str]:
    if desk.kind not in (terms.MEASURE, terms.KEEP) and desk.reads_validation:
        if "validation" not in desk.site.policy.evaluate:
            yield f"{desk.method} sends figures of its held-back rows, and these do not leave"
    elif desk.kind == terms.MEASURE or not desk.exchange.slots:
        # Of a validation domain, which trains nothing, all rows are measured.
        role = "validation" if desk.head["role"] == "source" else "target"
        if role not in desk.site.policy.evaluate:
            yield f"metrics of its rows as {role} do not leave"


def _sites(desk: Desk) -> Iterator[str]:
    count, least = len(desk.turn.roster), desk.site.policy.least.sites
    if desk.head["role"] == "source" and count < least:
        yield f"{count} sites train together, and {least} are the least"
    if isinstance(desk.channel, kinds.Masks) and (strangers := desk.strangers):
        yield f"this site has no key to mask its rows from {', '.join(strangers)}"


def _steps(desk: Desk) -> Iterator[str]:
    steps, least = desk.counts[1], desk.site.policy.least.steps
    if steps is not None and steps < least:
        yield f"the reply would be of {steps} steps, and {least} are the least"


def _examples(desk: Desk) -> Iterator[str]:
    """Yield whether too few examples are behind a reply, a sum or a metric."""
    count, least = desk.counts[2], desk.site.policy.least.examples
    if count < least:
        yield f"the answer would be made of {count} examples, and {least} are the least"


def _methods(desk: Desk) -> Iterator[str]:
    return study_rules.method_breaches(desk.site.policy, desk.runtime.method)


def _questions(desk: Desk) -> Iterator[str]:
    limit, digest = desk.site.policy.most.questions, desk.proposal.digest
    lines = SiteLedger(desk.site.account).lines()
    own = (x for x in lines if x.get("study") == digest and "answer" in x)
    if sum(x.get("rule") not in site_ledger.BEFOREHAND for x in own) >= limit:
        yield f"{limit} questions of this study were answered or refused, which are the most"


def _rows(desk: Desk) -> Iterator[str]:
    """Yield whether a site that is to train has fewer rows than any answer may be made of."""
    (domain,), least = desk.own.domains, desk.site.policy.least.examples
    if desk.site.role == "train" and len(domain.y) < least:
        yield f"{len(domain.y)} rows are here, and {least} are the least to train on"


def _levels(desk: Desk) -> Iterator[str]:
    """Yield the columns whose values would leave by name, and may not."""
    policy, data = desk.site.policy, desk.own
    for column, codes, names in named_values(data, desk.label):
        counts = torch.bincount(codes[codes >= 0].long(), minlength=len(names))
        named = policy.columns is not None and data.schema is not None
        if named and "levels" not in policy.uses(column):
            yield f"the names of the values of {column!r} do not leave"
        if column in desk.columns and nearly_unique(counts, policy.least.rows_per_level):
            yield f"the column {column!r} has nearly a value of its own for each row"


def named_values(data: DataSet, label: str) -> Iterator[tuple[str, Tensor, tuple[str, ...]]]:
    """Yield each column whose values leave a site by name: column, codes [N], the names.

    Args:
        data: A data set of the site's one domain.
        label: What its label is called.
    """
    (domain,) = data.domains
    if data.classes is not None:
        yield label, domain.y, data.classes
    schema = data.schema
    for name, names in schema.categories.items() if schema is not None else ():
        assert schema is not None
        values = domain.x[:, schema.columns.index(name)]
        yield name, values.nan_to_num(-1), names
    for name, names in data.levels.items():
        yield name, domain.meta[name], names


def nearly_unique(counts: Tensor, least: int) -> bool:
    """Return whether a column's values would give single rows away by name.

    Args:
        counts: Rows of each value [L].
        least: Rows for each value on the average.

    Note:
        Values that one row alone has may be a minority of all; else a column of notes, most of
        them empty, would pass by its average.
    """
    counts = counts[counts > 0]
    if not len(counts):
        return False
    return int(counts.sum()) < least * len(counts) or 2 * int((counts == 1).sum()) > len(counts)


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
        "least.examples": _examples,
    },
    terms.ASK: {"study": _study, "most.questions": _questions, "least.sites": _sites},
    terms.MEASURE: {
        "study": _study, "most.questions": _questions, "evaluate": _evaluate,
        "least.examples": _examples,
    },
    terms.KEEP: {"study": _study, "most.questions": _questions},
}  # fmt: skip
