"""Of how many rows an answer of training is, and the ε that a site has spent over all studies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from unseen.core import Client, Local, Turn
from unseen.core.exchange import Exchange
from unseen.core.parts import innermost
from unseen.methods.local.train import Train
from unseen.privacy.accounting import Guarantee, Release, releases
from unseen.privacy.dp import NoisedRows, mechanism, steps_of
from unseen.privacy.ledger import finite
from unseen.sites.policy.site_ledger import Line


def trained_counts(client: Client, local: Local, validates: bool) -> tuple[int, int | None, int]:
    """Return the training examples here, the steps of a reply, and the examples that it is of.

    `validates` says whether the answer tells something of the validation rows, too.
    """
    train = len(client.train) if client.train is not None else 0
    behind = min(train, len(client.split("validation"))) if validates else train
    local = innermost(local)
    if not isinstance(local, Train):
        return train, None, behind
    steps = steps_of(train, local.training) if train else 0
    return train, steps, min(behind, steps * local.training.batch_size)


def releases_of(exchange: Exchange, count: int, turn: Turn, fewest: int) -> list[dict[str, Any]]:
    """Return what protects this site's reply in an exchange, as a ledger writes it.

    Args:
        exchange: What the reply is of.
        count: Examples of its training split.
        turn: Which exchange it is.
        fewest: Of how many sites a sum may be that is opened with this one's rows. Where the sum
            alone is private, no more than the noise of these is counted on: a site cannot know
            who is left.
    """
    noised = mechanism(exchange.local, NoisedRows)
    planned = noised.count(turn) if noised is not None else 1
    return [asdict(release) for release in releases(exchange, count, min(fewest, planned), planned)]


def epsilon(lines: Iterable[Line], delta: float) -> dict[str, float]:
    """Return what is protected -> ε of all releases so far, by the RDP accountant at one δ.

    Rows that left more than once count once.

    What is private of whole sites is so of each example, too: for an example both add up.
    """
    answers = [line for line in lines if "answer" in line]
    unique = {line.get("rows", line["answer"]): line.get("releases", ()) for line in answers}
    spending: dict[str, Counter[Release]] = {}
    for fields in (release for several in unique.values() for release in several):
        release = Release(**{**fields, "delta": delta})
        spending.setdefault(release.protects, Counter())[release] += 1
    if "example" in spending:
        spending["example"] += spending.get("client", Counter())
    totals = {name: Guarantee("", tuple(counter.items())) for name, counter in spending.items()}
    return {name: guarantee.epsilon("rdp") for name, guarantee in totals.items()}


def over_budget(
    lines: Sequence[Line], line: Mapping[str, Any], limit: float | None, delta: float
) -> str:
    """Return why one more answer would leave the budget; nothing where it would not.

    `line` is what the ledger would say of it. Without a limit there is no budget.
    """
    if limit is None or not line.get("trained"):
        return ""
    if not line.get("releases"):
        return f"an update without noise would leave, and the budget is ε = {limit:g}"
    total = max(epsilon([*lines, line], delta).values(), default=math.inf)
    if total <= limit:
        return ""
    value = "∞" if finite(total) is None else f"{total:.4g}"
    return f"with this answer ε would be {value} at δ = {delta:g}, and {limit:g} is the most"
