"""ARFL: clients whose data the model fits badly are weighted down."""

from __future__ import annotations

from dataclasses import dataclass, replace

from unseen.combine import AutoWeighted
from unseen.core.client import Client
from unseen.core.exchange import Local, Method, Reference, Reply, Turn
from unseen.core.metrics import forward, loss
from unseen.core.parts import Wrapper
from unseen.core.types import Inbox, Memory
from unseen.core.vector import Model
from unseen.gradient import Backprop
from unseen.local.train import Train
from unseen.methods.base import federated
from unseen.recipe import Training

REFERENCE = Reference(
    "Li, Ngai, Ye, Voigt. Auto-weighted Robust Federated Learning with Corrupted Data Sources. ACM "
    "TIST 2022.",
    """@article{li2022arfl,
  title   = {Auto-weighted Robust Federated Learning with Corrupted Data Sources},
  author  = {Li, Shenghui and Ngai, Edith and Ye, Fanghua and Voigt, Thiemo},
  journal = {ACM Transactions on Intelligent Systems and Technology},
  year    = {2022}
}""",
)


def arfl(training: Training, *, reg_weight: float = 1.0) -> Method:
    """FedAvg whose weights solve min_α Σ_i α_i L_i(x) + (Λ/2) Σ_i α_i²/n_i over Σ_i α_i = 1, α ≥ 0.

        α_i = n_i max(η − L_i(x), 0) / Λ,   Σ_i α_i = 1,   Λ = reg_weight · Σ_i n_i

    L_i(x): the loss of the received model on client i's training split, in evaluation mode; n_i:
    its examples. Against clients with corrupted data; a client that is merely hard is weighted down
    all the same. reg_weight: > 0; large values tend to FedAvg. 1 is the released code's default;
    GA's paper does not give its own.

    Only those who take part send their loss; the others count with their last one. Departs from
    the released code in the first round, which there has weights by examples, and in that a client
    counts from when it is first seen, where there all clients are evaluated before the first
    round. For a sample whose weights are all 0 see `unseen.combine.AutoWeighted`.

    `arfl+ga` cannot be, since both own the weights; as the prior of a rule, as in `arfl+ppdg`, they
    stand for p_i.
    """
    local = ReceivedLoss(Train(Backprop(training.loss), training))
    method = federated("arfl", training, AutoWeighted(reg_weight), REFERENCE, local)
    return replace(method, shares=("the loss of the received model on its training data",))


@dataclass(frozen=True)
class ReceivedLoss(Wrapper):
    """Adds `received_loss`, the received model's loss on the training split, to another's reply."""

    inner: Local

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        """Measure, then run the other local."""
        split = client.split("train")
        value = loss(forward(model, split), split.y)
        reply, memory = self.inner(model, inbox, client, memory, turn)
        return Reply(reply.rows, {**reply.scalars, "received_loss": value}), memory
