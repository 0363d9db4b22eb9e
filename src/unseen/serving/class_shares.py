"""How often training saw each class, as its method counts rows and sites."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from unseen.combine import Combine, Mean, Sum
from unseen.core import Client, Method, Slot
from unseen.methods.bag import Shares

#: What counts alike: rows in an exact fit from sums, rows where a network descends, or sites.
Alike = Literal["sums", "rows", "sites"]


def class_shares(
    method: Method, clients: Mapping[str, Client], classes: int, balanced: bool
) -> Tensor:
    """Return each class's share [C] of what training descended by.

    The share of all training rows where rows count alike: in exact fits from sums over rows
    (`glm`, `boost`, `forest`), on pooled rows, and where the method's mean is by examples. The mean
    over sites of each site's shares where sites count alike: in a uniform mean, and under a rule
    that starts from no mean. Of a network whose loss weighs classes alike: equal for all that
    occur; exact fits do not weigh them. Of a mixture (`ensemble`, `stack`, `portfolio`): the plain
    mean of its members' shares, whichever weights the sources gave these.

    Args:
        method: The method, completed for its network.
        clients: Those that train.
        classes: C.
        balanced: Whether the loss weighs classes alike.
    """
    labels = [client.split("train").y.cpu() for client in clients.values()]
    counts = torch.stack([torch.bincount(y, minlength=classes) for y in labels]).double()
    rows = counts.sum(0) / counts.sum()
    by = {"sums": rows, "rows": rows, "sites": (counts / counts.sum(1, keepdim=True)).mean(0)}
    if balanced:
        by["rows"] = by["sites"] = (rows > 0) / (rows > 0).sum().double()
    return torch.stack([by[alike] for alike in counted_alike(method)]).mean(0)


def counted_alike(method: Method) -> list[Alike]:
    """Return what counts alike in the method, or in each member of a mixture."""
    slots = [pair for exchange in method.exchanges for pair in exchange.row_slots.items()]
    named = dict(slots)
    members = dict[str, Alike]()
    for name, slot in slots:
        what, _, where = name.partition("@")
        if what != "model" or slot.combine is None or "@others." in name:
            continue  # others: trained without some sites, or tried, and no part of the answer
        weights = named.get(f"weights{name.removeprefix('model')}")
        members[where.rpartition("@")[2]] = _alike(method, slot.combine, weights)
    return list(members.values())


def _alike(method: Method, rule: Combine, weights: Slot | None) -> Alike:
    while rule.source is not None:
        rule = rule.source
    if isinstance(rule, Sum):
        return "sums"
    by_rows = isinstance(rule, Mean) and rule.by == "examples"
    if by_rows or method.gather is not None or (weights and isinstance(weights.apply, Shares)):
        return "sums" if method.fits else "rows"
    return "sites"
