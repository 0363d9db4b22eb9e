"""FedCSA: the classifier is averaged class by class."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

from unseen.combine import ClassShares, Mean
from unseen.combine.fedcsa import check_classes, class_of_columns
from unseen.core.client import Client
from unseen.core.exchange import Local, Method, Reference, Reply, Turn
from unseen.core.parts import Wrapper
from unseen.core.types import Inbox, Memory
from unseen.core.vector import Model
from unseen.errors import UnseenError
from unseen.gradient import Backprop
from unseen.local.train import Train
from unseen.methods.base import federated
from unseen.recipe import Training

REFERENCE = Reference(
    "Ma, Zhao, Cai, Jia. Fast-convergent Federated Learning with Class-weighted Aggregation. "
    "Journal of Systems Architecture 117, 2021.",
    """@article{ma2021fedcsa,
  title   = {Fast-convergent federated learning with class-weighted aggregation},
  author  = {Ma, Zezhong and Zhao, Mengying and Cai, Xiaojun and Jia, Zhiping},
  journal = {Journal of Systems Architecture},
  volume  = {117},
  pages   = {102125},
  year    = {2021}
}""",
)


def fedcsa(
    training: Training,
    *,
    weights: Literal["examples", "uniform"] = "examples",
    head: str | None = None,
) -> Method:
    """Average the classifier's row of each class by who has seen that class, the body as FedAvg.

        W_c ← Σ_i (n_ic / Σ_j n_jc) W_ic,  likewise b_c;     body ← Σ_i p_i body_i

    n_ic: examples of class c in client i's training split, which it counts and sends; W_ic, b_ic:
    row c of its last linear layer. A class that nobody has seen goes by p_i. weights: p_i. head:
    the layer, by default the last linear one; it needs one output per class. BatchNorm statistics
    follow the body.

    The paper was not to be had and no code was released. This is GA's description, "reallocates
    weights of the classifier based on the percentage of each class on the client", read as above.
    `fedcsa+ga` is undefined in GA's paper; our reading has a_i in the body and
    a_i n_ic / Σ_j a_j n_jc in row c.
    """
    local = WithCounts(Train(Backprop(training.loss), training), head)
    method = federated("fedcsa", training, ClassShares(head, Mean(weights)), REFERENCE, local)
    return replace(method, shares=("how many examples of each class it has",), asks=("classes",))


@dataclass(frozen=True)
class WithCounts(Wrapper):
    """Adds `counts` [C], the examples of each class in the training split, to another local's
    reply; refuses a head whose rows are not the classes before the first step."""

    inner: Local
    head: str | None = None

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        """Count, then run the other local."""
        if client.classes is None:
            raise UnseenError(
                f"FedCSA counts classes; client {client.name!r} has numbers for labels."
            )
        check_classes(class_of_columns(model.layout, self.head)[0], client.classes)
        counts = torch.bincount(client.split("train").y.cpu(), minlength=client.classes).double()
        reply, memory = self.inner(model, inbox, client, memory, turn)
        return Reply(reply.rows, {**reply.scalars, "counts": counts}), memory
