"""FPL: class prototypes, clustered at the server, that all clients draw their features to."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core import Client, Inbox, Local, Memory, Method, Model, Reply, Slot, Turn
from unseen.core.exchange import Blueprint
from unseen.core.metrics.evaluation import EVALUATION_BATCH
from unseen.core.parts import Wrapper
from unseen.core.rows import RuleState, WithState
from unseen.core.types import Table
from unseen.methods.base import (
    asking,
    cited,
    incompatible,
    trained,
    with_exchange,
    with_gradient,
    with_local,
)
from unseen.methods.combine import Collect
from unseen.methods.gradient.backprop import Gradient, Step
from unseen.methods.gradient.heads import head_layer
from unseen.methods.gradient.moon import features
from unseen.methods.images.features import tapped
from unseen.methods.options import options_from, picked
from unseen.ranges import Checked, Count, NotNegative, Positive, log

#: The slot: a client's class means [C (d + 1)], each with a 1 behind it, or all 0 where it has no
#: such class. The inbox entry [N, C (d + 1)]: the j-th row has the j-th cluster of each class.
PROTOTYPES = "prototypes"


@dataclass(frozen=True)
class PrototypeContrast(Wrapper, named="fpl"):
    """g ← g + ∇ mean_n (contrast · CPCL_n + pull · UPCR_n) over a batch's examples n of class y.

        CPCL = −log (Σ_{c ∈ C_y} e^{s(z, c)/τ} / Σ_{c ∈ C} e^{s(z, c)/τ}),   UPCR = ‖z − u_y‖²

    z: what enters the head; C_y: the cluster prototypes of class y, C: of all; u_y: the mean of
    C_y, the unbiased prototype; s: the cosine. Both are 0 for a class without prototypes.

    Attributes:
        inner: the gradient of the loss.
        temperature: τ; 0.02 by the released default, 0.1 in another version of it.
        contrast: the weight of CPCL; 1 as released.
        pull: the weight of UPCR; 1 as released.
        scale: UPCR over the d features: their `"mean"`, as released, or their `"sum"`, as printed.

    Source:
        Huang, Ye, Shi, Li, Du 2023, "Rethinking Federated Learning with Domain Shift: A Prototype
        View"; its released code.
    """

    inner: Gradient
    temperature: Annotated[Positive, log(0.01, 1)] = 0.02
    contrast: Annotated[NotNegative, log(0.01, 10)] = 1.0
    pull: Annotated[NotNegative, log(0.01, 10)] = 1.0
    scale: Literal["mean", "sum"] = "mean"

    @contextmanager
    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Iterator[Step]:
        clusters = unpacked(inbox[PROTOTYPES], head_layer(model)[1].in_features)
        with (
            self.inner.open(model, inbox, client, memory, turn) as inner,
            tapped(model.module, head_layer(model)[0], "input") as tap,
        ):

            def step(x: Tensor, y: Tensor) -> Tensor:
                value = inner(x, y)
                penalty = self.penalty(features(model, tap, x), y, clusters)
                penalty.backward()  # type: ignore[no-untyped-call]
                return value + penalty.detach()

            on = bool(clusters[..., -1].any()) and (self.contrast > 0 or self.pull > 0)
            yield step if on else inner

    def penalty(self, z: Tensor, y: Tensor, clusters: Tensor) -> Tensor:
        """Return the mean over examples, for features [n, d] and clusters [N, C, d + 1]."""
        points, there = clusters[..., :-1], clusters[..., -1]
        j, classes = there.nonzero(as_tuple=True)
        close = F.normalize(z) @ F.normalize(points[j, classes]).T / self.temperature
        own = close.masked_fill(classes != y[:, None], -torch.inf)
        centre = points.sum(0) / there.sum(0).clamp(min=1)[:, None]
        apart = (z - centre[y]).square()
        apart = apart.mean(1) if self.scale == "mean" else apart.sum(1)
        terms = self.contrast * (close.logsumexp(1) - own.logsumexp(1)) + self.pull * apart
        return terms[there.any(0)[y]].sum() / len(y)


@dataclass(frozen=True)
class WithPrototypes(Wrapper):
    """Another local that adds the trained model's mean features of each class to its reply.

    Attributes:
        inner: the other local.
        least: the fewest examples of a class whose mean is sent; the mean of one example is what
            the network says of that example.
    """

    inner: Local
    least: Count = 1

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        reply, memory = self.inner(model, inbox, client, memory, turn)
        row = self.class_means(model, client, inbox[PROTOTYPES].shape[1])
        return Reply({**reply.rows, PROTOTYPES: row}, reply.scalars), memory

    def class_means(self, model: Model, client: Client, size: int) -> Tensor:
        """Return the row of the training split, its features in evaluation mode."""
        (name, head), split = head_layer(model), client.split("train")
        sums = torch.zeros(size, dtype=torch.float64, device=model.device)
        sums = sums.view(-1, head.in_features + 1)
        mode = model.module.training
        model.module.eval()
        with torch.no_grad(), tapped(model.module, name, "input") as tap:
            for begin in range(0, len(split), EVALUATION_BATCH):
                x, y = split.batch(slice(begin, begin + EVALUATION_BATCH))
                z = features(model, tap, x).double()
                sums.index_add_(0, y.to(sums.device), F.pad(z, (0, 1), value=1))
        model.module.train(mode)
        counts = sums[:, -1:]
        means = torch.where(counts >= self.least, sums / counts.clamp(min=1), 0)
        return means.flatten().to(model.vector)


@dataclass(frozen=True)
class Clusters(Checked):
    """The clients' class means become the means of their clusters, class by class, by FINCH.

    Attributes:
        classes: C; 0: it is not known yet.
    """

    classes: int = 0

    def __call__(self, old: Tensor, new: Tensor, state: RuleState, table: Table) -> WithState:
        width = old.shape[1] // self.classes
        rows, entry = unpacked(new, width - 1), torch.zeros_like(old)
        after = unpacked(entry, width - 1)
        for c in range(self.classes):
            points = rows[rows[:, c, -1] > 0, c]
            if len(points):
                centres = means(points, finch(points[:, :-1]))
                after[: len(centres), c] = centres
        return entry, state


def unpacked(rows: Tensor, d: int) -> Tensor:
    """Return rows [N, C (d + 1)] as [N, C, d + 1], the same memory."""
    return rows.view(len(rows), -1, d + 1)


def first_row(model: Model) -> Tensor:
    """Return a client's row before round 0: no class has a prototype."""
    head = head_layer(model)[1]
    return model.vector.new_zeros(max(2, head.out_features) * (head.in_features + 1))


def finch(points: Tensor) -> Tensor:
    """Return the cluster [n] of each of the points [n, d], numbered in the order of their firsts.

    Two are linked if one is the other's nearest by cosine, or both have the same nearest; clusters
    are what is connected. The same again joins clusters by their means. The last partition of more
    than one cluster is returned, or the first one if that is a single cluster.

    Source:
        Sarfraz, Sharma, Stiefelhagen 2019, "Efficient Parameter-free Clustering Using First
        Neighbor Relations", Eq. 1; which partition is the choice of FPL's released code.

    Example:
        >>> finch(torch.tensor([[1.0, 0.1], [1.0, 0.0], [0.0, 1.0], [0.1, 1.0]])).tolist()
        [0, 0, 1, 1]
    """
    labels = linked(points)
    while int(labels.max()) > 0:
        onward = linked(means(points, labels))[labels]
        if int(onward.max()) == 0:
            break
        labels = onward
    return labels


def linked(points: Tensor) -> Tensor:
    """Return the connected component [n] of each point, by nearest neighbours."""
    n = len(points)
    if n == 1:
        return torch.zeros(1, dtype=torch.long, device=points.device)
    unit = F.normalize(points.double(), dim=1)
    near = (unit @ unit.T).fill_diagonal_(-torch.inf).argmax(1)
    labels = torch.arange(n, device=points.device)
    while True:  # points that share a nearest one are linked through it
        least = labels.scatter_reduce(0, near, labels, "amin")
        least = torch.minimum(least, least[near])
        if torch.equal(least, labels):
            numbered: Tensor = labels.unique(return_inverse=True)[1]
            return numbered
        labels = least


def means(points: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of the points of each cluster [J, d]."""
    own = F.one_hot(labels).to(points.dtype)
    sums: Tensor = own.T @ points
    return sums / own.sum(0)[:, None]


SOURCE = "huang2023fpl"
SHARES = (
    "the mean features of each class at the trained model, to the server",
    "means of clusters of these, to every client",
)


@options_from(PrototypeContrast, WithPrototypes)
def add_fpl(method: Method, **options: Any) -> Method:
    """Draw features to prototypes of their class from all clients.

        min  mean_n [ℓ_n − log (Σ_{c ∈ C_y} e^{s(z, c)/τ} / Σ_{c ∈ C} e^{s(z, c)/τ}) + ‖z − u_y‖²/d]

    z: the d features that enter the head; C_y: the cluster prototypes of class y, C: of all; u_y:
    the mean of C_y. Each client sends the mean features of its classes, the server clusters those
    of each class (FINCH) and sends the clusters' means, so that a domain with many clients counts
    no more in u_y than one with few.

    Note:
        Prototypes are of those who took part in the last round; in round 0 there are none. The two
        terms take a pass of their own. Classes are clustered in the clear: no channel that hides
        single replies can carry this method.

    Departs from:
        the released code in that the means are of the trained model on the whole training split, in
        evaluation mode, and not of what passed while the last epoch changed it.
    """
    if cited(SOURCE) in method.references:
        raise incompatible(method, "fpl", "draws to prototypes already.", "Set its own pull.")
    contrast = picked(PrototypeContrast, options)
    changed = with_gradient(method, lambda g: PrototypeContrast(g, **contrast), SOURCE)
    changed = with_local(changed, lambda local: WithPrototypes(local, options["least"]))
    before, shares = changed.sized, (*changed.shares, *SHARES)

    def counted(whole: Method, model: Model, blueprint: Blueprint) -> Method:
        if before is not None:
            whole = before(whole, model, blueprint)
        return replace(with_clusters(whole, blueprint.classes or 2), sized=None)

    return asking(replace(with_clusters(changed, 0), sized=counted, shares=shares), "classes")


def with_clusters(method: Method, classes: int) -> Method:
    """Return the method whose server clusters the prototypes of so many classes."""
    exchange, name = trained(method), PROTOTYPES
    apply = Clusters(classes)
    slot = Slot(Collect(), apply=apply, sends="value", start=first_row)
    return with_exchange(method, replace(exchange, slots={**exchange.slots, name: slot}))
