"""How a study deals its domains out to several clients each: labels, amounts, mixtures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol, cast

import torch
from pydantic import AfterValidator
from torch import Tensor

from unseen.core.client import Client, Split, concatenated
from unseen.core.turn import keyed
from unseen.errors import UnseenError
from unseen.expression import parse, resolve
from unseen.ranges import Checked, Count, Positive, Share

#: Client's name -> a code [n] for each training row and each validation row; rows of one code stay
#: together.
Units = Mapping[str, tuple[Tensor, Tensor]]
PURPOSES = {"train": "train on", "validation": "validate on"}


class Partition(Protocol):
    """Says which share of each domain's rows goes to which client."""

    @property
    def per(self) -> int:
        """How many clients there are for each domain."""

    def shares(
        self, place: int, domains: int, classes: int | None, generator: torch.Generator
    ) -> Tensor:
        """Return each client's share of the rows of one domain, [1, K], or of its classes [C, K].

        The clients of the domain at a place are those from place · per on.
        """


@dataclass(frozen=True)
class Domains(Checked, named="domains"):
    """Equal clients, of one domain each or of a mixture: λ of the FedDG benchmark.

        client k of domain d:  (1 − λ) n_d / per + λ n_d / K rows of d,  λ n_e / K of any other e

    Attributes:
        per: clients for each domain.
        mix: λ; 0: every client has rows of one domain (the most heterogeneous federation), 1: all
            have the same mixture of all sources (homogeneous).

    Source:
        Bai et al. 2024, "Benchmarking Algorithms for Federated Domain Generalization", and its
        code, which calls λ `iid`.

    Departs from:
        the code, which gives large domains more clients; here each has the same number.
    """

    per: Count = 4
    mix: Share = 0.0

    def shares(
        self, place: int, domains: int, classes: int | None, generator: torch.Generator
    ) -> Tensor:
        shares = torch.full((1, domains * self.per), self.mix / (domains * self.per)).double()
        own_clients(shares, place, self.per).add_((1 - self.mix) / self.per)
        return shares


@dataclass(frozen=True)
class Dirichlet(Checked, named="dirichlet"):
    """Clients of one domain whose labels differ: each class is dealt by shares ~ Dirichlet(α).

    Attributes:
        alpha: α; near 0 a class lies at one client, at infinity all clients have the same labels.
        per: clients for each domain.

    Source:
        Hsu et al. 2019, "Measuring the Effects of Non-Identical Data Distribution for Federated
        Visual Classification"; by classes, as Li et al. 2022, "Federated Learning on Non-IID Data
        Silos", have it.
    """

    alpha: Positive = 0.5
    per: Count = 4

    def shares(
        self, place: int, domains: int, classes: int | None, generator: torch.Generator
    ) -> Tensor:
        if classes is None:
            what = "partition = 'dirichlet' deals classes, and these labels are numbers."
            raise UnseenError(what, remedy="Take quantity(alpha=...).")
        return _dirichlet(self.alpha, self.per, place, domains, classes, generator)


@dataclass(frozen=True)
class Quantity(Checked, named="quantity"):
    """Clients of one domain whose sizes differ: its rows are dealt by shares ~ Dirichlet(α).

    Attributes:
        alpha: α; near 0 one client has nearly all rows, at infinity all have as many.
        per: clients for each domain.

    Source:
        Li et al. 2022, "Federated Learning on Non-IID Data Silos", quantity skew.
    """

    alpha: Positive = 0.5
    per: Count = 4

    def shares(
        self, place: int, domains: int, classes: int | None, generator: torch.Generator
    ) -> Tensor:
        return _dirichlet(self.alpha, self.per, place, domains, 1, generator)


PARTITIONS = {"domains": Domains, "dirichlet": Dirichlet, "quantity": Quantity}


def own_clients(shares: Tensor, place: int, per: int) -> Tensor:
    """Return the view of the shares [..., K] of a domain's own clients [..., per]."""
    return shares[:, place * per : (place + 1) * per]


def _dirichlet(
    alpha: float, per: int, place: int, domains: int, classes: int, generator: torch.Generator
) -> Tensor:
    shares = torch.zeros(classes, domains * per, dtype=torch.float64)
    # torch's own Dirichlet takes no generator. Gamma(α) is Gamma(α + 1) U^(1/α), whose logarithm
    # stays finite where α is small.
    above = torch.full((classes, per), alpha + 1, dtype=torch.float64)
    logs = torch._standard_gamma(above, generator).log()
    logs += torch.rand(logs.shape, dtype=logs.dtype, generator=generator).log() / alpha
    own_clients(shares, place, per).copy_(logs.softmax(1))
    return shares


def partitioned(
    sources: Mapping[str, Client], kind: Partition, seed: int, units: Units | None = None
) -> dict[str, Client]:
    """Return the clients `DOMAIN-1` ... `DOMAIN-per` of each source, with every row at one of them.

    A row that is held back for validation without a partition is so with any. Each client has a
    row to train on and one to validate on: where its share is too small for one, it gets one of the
    client that has most.

    Args:
        sources: Domain -> all its rows, split.
        kind: The partition.
        seed: The job's; draws depend on it and on the names of the domains.
        units: Rows that stay together; None for all by themselves.
    """
    K, splits = kind.per * len(sources), dict[str, list[Split]]()
    for i, part in enumerate(PURPOSES):
        owners = []
        for place, (name, client) in enumerate(sources.items()):
            shares = kind.shares(
                place, len(sources), client.classes, keyed(f"{seed}/partition/{name}")
            )
            split, draw = client.split(part), keyed(f"{seed}/partition/{name}/{part}")
            together = torch.arange(len(split)) if units is None else units[name][i]
            owners.append(deal(split.y, together, shares, draw))
        rows = [client.split(part) for client in sources.values()]
        splits[part] = _cut(rows, filled(owners, K, part), K)
    digits = len(str(kind.per))
    names = [f"{name}-{k + 1:0{digits}}" for name in sources for k in range(kind.per)]
    classes = next(iter(sources.values())).classes
    pairs = zip(names, splits["train"], splits["validation"], strict=True)
    return {n: Client(n, train, validation, classes) for n, train, validation in pairs}


@dataclass(frozen=True)
class Dealt:
    """Who has which row of one domain.

    Attributes:
        owner: The client of each unit [U].
        unit: The unit of each row [n].
    """

    owner: Tensor
    unit: Tensor


def deal(y: Tensor, units: Tensor, shares: Tensor, generator: torch.Generator) -> Dealt:
    """Deal out one domain's rows, whole units at a time, each count next to its share.

    Args:
        y: Labels [n].
        units: The unit of each row [n].
        shares: Each client's share [1, K] of all rows, or [C, K] of the rows of each class; a unit
            is of the class of its first row.
        generator: Draws who gets which.
    """
    codes, unit = units.unique(return_inverse=True)
    sizes = torch.bincount(unit, minlength=len(codes))
    label = torch.zeros(len(codes), dtype=torch.int64)
    if len(shares) > 1:
        rows = torch.arange(len(y))
        label = y[torch.full_like(codes, len(y)).scatter_reduce_(0, unit, rows, "amin")]
    owner = torch.empty(len(codes), dtype=torch.int64)
    for c, share in enumerate(shares):
        members = (label == c).nonzero().flatten()
        members = members[torch.randperm(len(members), generator=generator)]
        order = torch.randperm(len(share), generator=generator)  # no client is always the last
        bounds = share[order].cumsum(0)[:-1] * sizes[members].sum()
        middle = sizes[members].cumsum(0) - sizes[members] / 2
        owner[members] = order[torch.searchsorted(bounds, middle.double(), right=True)]
    return Dealt(owner, unit)


def filled(domains: Sequence[Dealt], K: int, part: str) -> list[Tensor]:
    """Return the client of each row [n] of every domain, after who has none got a unit."""
    owner = torch.cat([domain.owner for domain in domains])
    counts = torch.bincount(owner, minlength=K)
    if len(owner) < K:
        what = f"partition: the sources have {len(owner):,} rows or units to {PURPOSES[part]}, and "
        what += f"{K:,} clients need one each."
        raise UnseenError(what, remedy="Take a smaller per, or another share for validation.")
    for k in (counts == 0).nonzero().flatten().tolist():
        donor = counts.argmax()
        owner[(owner == donor).nonzero()[-1]] = k
        counts[donor], counts[k] = counts[donor] - 1, 1
    parts = owner.split([len(domain.owner) for domain in domains])
    return [own[domain.unit] for own, domain in zip(parts, domains, strict=True)]


def _cut(splits: Sequence[Split], owners: Sequence[Tensor], K: int) -> list[Split]:
    """Return each client's rows of all domains."""
    pairs = list(zip(splits, owners, strict=True))
    own = ([split.take((o == k).nonzero().flatten()) for split, o in pairs] for k in range(K))
    return [concatenated([split for split in parts if len(split)]) for parts in own]


def read(text: str) -> Partition | None:
    """Return the partition that an expression names; None where it is empty.

    Example:
        >>> read("domains(per=25, mix=0.5)")
        Domains(per=25, mix=0.5)
    """
    if not text:
        return None
    calls = parse(text)
    if len(calls) != 1:
        raise UnseenError(f"partition takes one kind; found {len(calls)} in {text!r}.")
    return cast(Partition, resolve("partition", calls[0], PARTITIONS))


def clients_per_domain(text: str) -> int:
    """Return how many clients a partition makes of one domain."""
    kind = read(text)
    return 1 if kind is None else kind.per


def _read(text: str) -> str:
    try:
        read(text)
    except UnseenError as error:  # whose marks of a place take lines of their own
        raise UnseenError(" ".join(str(error).split())) from None
    return text


#: An expression that `read` understands.
Expression = Annotated[str, AfterValidator(_read)]
