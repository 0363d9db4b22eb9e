"""FedCSA: the classifier is averaged class by class."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from unseen.core import Client, Method, Model
from unseen.errors import UnseenError
from unseen.methods.base import federated
from unseen.methods.combine import ClassShares
from unseen.methods.combine.fedcsa import check_classes, class_of_columns
from unseen.methods.gradient import Backprop
from unseen.methods.local.train import Reports, Train
from unseen.methods.options import options_from, picked
from unseen.methods.recipe import Training


@options_from(ClassShares)
def fedcsa(training: Training, **options: Any) -> Method:
    """Average the classifier's row of each class by who has seen that class, the body as FedAvg.

        W_c ← Σ_i (n_ic / Σ_j n_jc) W_ic,  likewise b_c;     body ← Σ_i p_i body_i

    n_ic: examples of class c in client i's training split, which it counts and sends; W_ic, b_ic:
    row c of its last linear layer, which needs one output per class.

    Note:
        The paper was not available, no code was released. This is GA's description, "reallocates
        weights of the classifier based on the percentage of each class on the client", read as
        above. `fedcsa+ga` is undefined in GA's paper; our reading has a_i in the body and a_i n_ic
        / Σ_j a_j n_jc in row c.

        BatchNorm statistics follow the body.

        A class that nobody has seen is averaged by p_i.
    """
    rule = ClassShares(**picked(ClassShares, options))
    local = Reports(Train(Backprop(training.loss), training), Counts(rule.head))
    method = federated("fedcsa", training, rule, "ma2021fedcsa", local)
    return replace(method, shares=("how many examples of each class it has",), asks=("classes",))


@dataclass(frozen=True)
class Counts:
    """The examples [C] of each class in the training split; refuses a head of other classes.

    Attributes:
        head: the layer's name, by default the last linear one.
    """

    head: str | None = None

    def __call__(self, model: Model, client: Client) -> dict[str, Tensor]:
        if client.classes is None:
            raise UnseenError(
                f"FedCSA counts classes; client {client.name!r} has numbers for labels."
            )
        check_classes(class_of_columns(model.layout, self.head)[0], client.classes)
        labels = client.split("train").y.cpu()
        return {"counts": torch.bincount(labels, minlength=client.classes).double()}
