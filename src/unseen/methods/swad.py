"""SWAD: the mean of the server's models from where the held-out loss is flat to where it rises."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from unseen.core import Client, Method, Model, RuleState, WithState
from unseen.core.metrics.evaluation import forward
from unseen.core.metrics.evaluation import loss as mean_loss
from unseen.core.types import Table
from unseen.methods.base import citing, trained, with_exchange
from unseen.methods.local.train import ReportsReceived
from unseen.methods.mixed import averaged
from unseen.methods.options import options_from
from unseen.ranges import Checked, Count, NotNegative, uniform, whole

#: The scalar of the received model's loss on the client's validation split.
HELD = "held_loss"


@dataclass(frozen=True)
class Valley(Checked, named="swad"):
    """x̄ = mean of x_t over t_s ≤ t < t_e, of the models whose held-out loss E_t is known.

    Attributes:
        window: N_s; t_s is the first t with E_t = min(E_t ... E_(t + N_s − 1)).
        patience: N_e; t_e is the first t > t_s with min(E_t ... E_(t + N_e − 1)) > l.
        end: where training ends before t_e: `released` leaves out the models after the last one
            below l, `paper` averages to the end, as Algorithm 1 does, and with N_e < N_s looks at
            windows from t_s + N_s − N_e + 1 on alone.
        tolerance: ρ; l = (1 + ρ) (E_(t_s) + ... + E_(t_s + N_s − 1)) / N_s.
    """

    needs: ClassVar[tuple[str, ...]] = (HELD,)

    window: Annotated[Count, whole(2, 5)] = 3
    patience: Annotated[Count, whole(2, 10)] = 6
    tolerance: Annotated[NotNegative, uniform(0, 0.5)] = 0.3
    end: Literal["released", "paper"] = "released"

    def __call__(self, old: Tensor, new: Tensor, state: RuleState, table: Table) -> WithState:
        """Take the model that the last round made, whose loss is known now, into account."""
        if "pending" not in state:  # the loss is that of the first weights, which are nobody's
            empty = new.new_zeros(0, len(new)), torch.zeros(0, dtype=torch.float64)
            queue = {"models": empty[0], "losses": empty[1], "mean": torch.zeros_like(new)}
            counters = {"count": torch.tensor(0), "bar": torch.tensor(torch.nan), "over": False}
            return new.clone(), {**queue, **counters, "pending": new.clone()}
        models = torch.cat([state["models"], state["pending"][None]])
        losses = torch.cat([state["losses"], table[HELD].double().mean()[None].cpu()])
        bar, mean, count, over = (state[name] for name in ("bar", "mean", "count", "over"))
        while bool(bar.isnan()) and len(losses) >= self.window:
            first = losses[: self.window]
            if bool(first[0] == first.min()):
                bar = (1 + self.tolerance) * first.mean()
            else:  # this model does not begin the valley
                models, losses = models[1:], losses[1:]
        while not over and not bool(bar.isnan()) and len(losses) >= self.patience:
            over = int(count) > self.unchecked and bool(losses[: self.patience].min() > bar)
            if not over:
                count = count + 1
                mean = mean + (models[0] - mean) / count
                models, losses = models[1:], losses[1:]
        after = {"models": models, "losses": losses, "mean": mean, "count": count, "bar": bar}
        predicts = self.mean(after, new, over)
        return predicts, {**after, "over": over, "pending": new.clone()}

    @property
    def unchecked(self) -> int:
        """How many models after the first are in the mean whatever follows them."""
        return max(self.window - self.patience, 0) if self.end == "paper" else 0

    def mean(self, state: RuleState, new: Tensor, over: bool) -> Tensor:
        """Return the mean as if training ended here, with the models that wait for later losses."""
        if bool(state["bar"].isnan()):
            return new.clone()
        mean: Tensor = state["mean"]
        count = int(state["count"])
        for t in range(0 if over else len(state["losses"])):
            if self.end == "released" and count and bool(state["losses"][t:].min() > state["bar"]):
                break
            count += 1
            mean = mean + (state["models"][t] - mean) / count
        return mean.clone()


@options_from(Valley)
def add_swad(method: Method, **options: Any) -> Method:
    """Predict by the mean of the server's models along the valley of their held-out loss.

        x̄ = mean of x_t,  t_s ≤ t < t_e

    t_s: the first model with no better one among the next N_s − 1; t_e: the first of N_e that are
    all worse by the tolerance. Each client sends the received model's loss on its validation split
    (on its training split where it has no other), and the server takes their mean: a model counts
    one round after it was made, and the last one never. Until t_s is known the newest model
    predicts. Training goes on from x_R.

    Note:
        The server keeps up to N_e models. BatchNorm's statistics are averaged with them.

    Departs from:
        the paper, which averages after every step of one training, here after every round of a
        federation; and in that validation splits choose t_s and t_e, and then also the round that
        is reported. Algorithm 1 is `end="paper"`; the default leaves out models after the last one
        below the tolerance where training ends before t_e, as the released code does, and with
        N_e < N_s looks at more windows than either. With N_e > N_s the released code also averages
        models before t_s.
    """
    shares = "the loss of the received model on its validation data"
    method = replace(method, shares=tuple(dict.fromkeys((*method.shares, shares))))
    exchange = trained(method)
    local = ReportsReceived(exchange.local, held_loss, on="validation")
    probed = with_exchange(method, replace(exchange, local=local))
    return citing(averaged(probed, Valley(**options), "swad", Valley.needs), "cha2021swad")


def held_loss(model: Model, client: Client) -> dict[str, float]:
    """Return the received model's loss on the validation split, or else on the training split."""
    split = client.validation if client.validation is not None else client.split("train")
    return {HELD: mean_loss(forward(model, split), split.y)}
