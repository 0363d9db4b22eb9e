"""What the server reads in a site's answer: who it is, why it refused, what cannot be used."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from unseen.core import Exchange, Reply
from unseen.core.metrics.evaluation import Evaluate
from unseen.core.parts import innermost
from unseen.core.replies import NOT_FINITE
from unseen.engine.messages import Value
from unseen.errors import BadReply
from unseen.serving.thresholds import EDGES
from unseen.sites.flower.terms import FAILED, PROTOCOL, REFUSED, RULE, Facts, Refused
from unseen.studies.settings.wording import short
from unseen.version import __version__
from unseen.visible import visible

LOG = logging.getLogger("flwr")
#: Of an answer about a model: a site's figures with intervals, and its rows by probability.
RESULTS, COUNTS = "results", "counts"
#: Columns of a table that no site sends.
GIVEN = {"client", "progress", "rounds"}
#: Returns what is wrong with an answer that was read, or nothing.
Judge = Callable[[Mapping[str, Value]], str | None]


def introduced(parcel: Mapping[str, Value] | None, fault: str, keyed: str) -> Facts:
    """Return what a new node says of itself.

    `fault` is why it gave no answer, `keyed` the name that its key is registered for, if any.
    """
    answer = parcel or {}
    if "facts" not in answer:
        raise Refused(ruled(reason_in(answer) or fault, answer), text_in(answer, RULE))
    try:
        facts = Facts.read(json.loads(str(answer["facts"])))
    except Exception as error:
        raise Refused(f"its description of its data cannot be read ({error!r})") from None
    if keyed and facts.site != keyed:
        other = f"its key is registered for {keyed!r}: each site needs its own kit"
        raise Refused(f"it says that it is {facts.site!r}, and {other}")
    return facts


def check_same(facts: Facts, agreed: Mapping[str, str]) -> None:
    """Refuse a site whose data are not those with which the run began."""
    if facts.digest != agreed.get(facts.site, facts.digest):
        what = f"the data of site {facts.site!r} changed since this run began"
        remedy = "Bring them back, or start a run of its own in another folder."
        raise Refused(f"{what}: {agreed[facts.site]} then, {facts.digest} now.", "study", remedy)


def fault_of(answer: Mapping[str, Value], site: str, about: str, good: Judge) -> str:
    """Why an answer cannot be used, with both values where it answers something else; or ""."""
    if reason := reason_in(answer):
        return ruled(reason, answer)
    for key, expected in {"site": site, "protocol": PROTOCOL, "about": about}.items():
        value = answer.get(key)
        if type(value) is not type(expected) or value != expected:
            other = f"key {key!r}: {short(value)} where {expected!r} was asked"
            return f"an answer to something else: {other} (unseen {__version__})"
    try:
        return good(answer) or ""
    except BadReply as error:
        return str(error)
    except Exception as error:
        LOG.info("what site %s sent cannot be used", site, exc_info=True)
        return f"an answer of another form than the question asks for ({type(error).__name__})"


def text_in(answer: Mapping[str, Value], key: str) -> str:
    """Return a text of an answer; nothing where a site sent anything else under its name."""
    value = answer.get(key, "")
    return value if isinstance(value, str) else ""


def reason_in(answer: Mapping[str, Value]) -> str:
    """Return why a site gave no answer; nothing where it gave one."""
    reason = visible(text_in(answer, REFUSED) or text_in(answer, FAILED))
    if reason or not {REFUSED, FAILED} & answer.keys():
        return reason
    return "it refused without words that can be read"


def ruled(reason: str, answer: Mapping[str, Value]) -> str:
    """Return why a site refused, with the rule that it named."""
    rule = visible(text_in(answer, RULE))
    return f"refused by its rule {rule}: {reason}" if rule else reason


def figures_of(
    answer: Mapping[str, Value], role: str, metrics: Sequence[str], stated: int | None
) -> tuple[dict[str, Any], Tensor | None]:
    """Return a site's figures of a model, and its counts of rows by probability if it sent any.

    `stated` is how many rows it can have, None where it did not say.
    """
    try:
        content = json.loads(text_in(answer, RESULTS))
        line = {key: content[key] for key in ("site", "role", "trained on", "examples", "metrics")}
        names = [*line["metrics"]]
    except (ValueError, TypeError, KeyError) as error:
        raise BadReply(f"figures that cannot be read ({type(error).__name__})") from None
    for key, value in {"site": answer["site"], "role": role}.items():
        if line[key] != value:
            raise BadReply(f"{short(line[key])} as {key!r}, where {value!r} answers")
    for key in ("trained on", "examples"):
        count = line[key]
        if type(count) is not int or count < 0:
            raise BadReply(f"no whole number as {key!r}: {short(count)}")
        if stated is not None and count > stated:
            raise BadReply(f"{count} rows, and it said that it has {stated}")
    if not isinstance(line["metrics"], dict) or {*names} != {*metrics}:
        raise BadReply(f"figures of {short(names)}; asked for were {', '.join(metrics)}")
    own = {name: _interval(name, line["metrics"][name]) for name in names}
    return {**line, "metrics": own}, _counts(answer.get(COUNTS), int(line["examples"]))


def _interval(name: str, parts: Any) -> list[float | None]:
    """A value and the two ends of its interval, each None where it is undefined."""
    number = (int, float, type(None))
    if not isinstance(parts, list) or len(parts) != 3 or not all(type(x) in number for x in parts):
        raise BadReply(f"{name!r} must be three numbers or nulls; found {short(parts)}")
    if not all(x is None or math.isfinite(x) for x in parts):
        raise BadReply(f"{NOT_FINITE} as {name!r}")
    if None not in parts[1:] and parts[1] > parts[2]:
        raise BadReply(f"an interval of {name!r} that ends before it begins: {short(parts[1:])}")
    return [None if x is None else float(x) for x in parts]


def _counts(counts: Value | None, rows: int) -> Tensor | None:
    if counts is None:
        return None
    form = torch.int64, (2, len(EDGES) + 1)
    if not isinstance(counts, Tensor) or (counts.dtype, tuple(counts.shape)) != form:
        raise BadReply("counts of rows by probability of another form")
    if bool((counts < 0).any()):
        raise BadReply("counts of rows by probability below 0")
    if int(counts.sum()) > rows:
        raise BadReply(f"counts of {int(counts.sum())} rows by probability, and it has {rows}")
    return counts


def reasons(faults: Mapping[str, object]) -> str:
    """Return what became of each, to follow a message."""
    return "".join(f"; {site}: {str(why).rstrip('.')}" for site, why in sorted(faults.items()))


def beyond(reply: Reply, stated: int | None) -> str | None:
    """Return how a reply claims another number of examples than its site can have, or None.

    `stated` is the most that it may claim, None where the site did not say.
    """
    for name, count in reply.scalars.items():
        if name.partition("@")[0] != "examples":
            continue
        if (name == "examples") == isinstance(count, Tensor):
            return f"{'a list' if name == 'examples' else 'one number'} as {name!r}"
        counts = torch.as_tensor(count, dtype=torch.float64)
        if bool((counts < 0).any() | (counts % 1 != 0).any()):
            return f"{_listed(counts)} as {name!r}, where whole numbers from 0 on belong"
        if stated is not None and float(counts.sum()) > stated:
            return f"{_listed(counts)} as {name!r}, and it said that it has {stated}"
    return None


def _listed(counts: Tensor) -> str:
    return ", ".join(f"{count:.12g}" for count in counts.flatten().tolist()[:8])


def unlike(reply: Reply, exchange: Exchange) -> str | None:
    """Return how scalars are others than those that an exchange asks for, or None.

    Where few sites answer, what most of them sent says nothing of what was asked for.
    """
    own = [slot.combine for slot in exchange.row_slots.values() if slot.view is None]
    for rule in filter(None, own):
        for name in set(rule.all_needs()) - GIVEN - reply.scalars.keys():
            return f"no {name!r} among its scalars, which {type(rule).__name__} reads"
    local = innermost(exchange.local)
    if not isinstance(local, Evaluate):
        return None
    expected = scalars_of(local)
    sizes = {n: tuple(s.shape) if isinstance(s, Tensor) else () for n, s in reply.scalars.items()}
    for name in sorted({*expected, *sizes}):
        if name not in sizes:
            return f"no {name!r} among its metrics"
        if sizes[name] != expected.get(name):
            return f"{name!r} among its metrics, which nobody asked for so"
    return None


def scalars_of(local: Evaluate) -> dict[str, tuple[int, ...]]:
    """Return the name and the shape of every scalar of an evaluation's reply."""
    metrics = (f"{metric}{end}" for metric in local.metrics for end in ("", ".undefined"))
    names = ("examples", *metrics)
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(names, ())
    for column, count in local.groups.items():
        shapes |= {f"{name}@{column}": (count,) for name in names}
    return shapes
