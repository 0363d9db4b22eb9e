"""Weights that follow the clients' losses: AFL, GroupDRO, q-FFL and V-REx."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from unseen.core import Draws, Gram, Layout, RuleState, Table, Weighted, WithState
from unseen.methods.combine.mean import Mean
from unseen.ranges import NotNegative, Positive, log

#: What q-FFL's released code adds to a loss, so that a power of 0 is finite.
RELEASED_FLOOR = 1e-10


@dataclass(frozen=True)
class Agnostic(Weighted, named="afl"):
    """Average by the mixture λ of the clients that the model serves worst, learnt by ascent.

        x ← x + Σ_i λ_i u_i,   λ ← the nearest point of the simplex to λ + γ L(x)

    L_i (`received_loss`): the loss of the received model on client i's training split; u_i: its
    update; λ is 1/K at first.

    Attributes:
        step: γ; the paper tunes it.

    Note:
        The paper takes one gradient per round, which is `fedsgd+afl`. Both steps are from the same
        x and λ, so that a round's losses move the weights of the next. Those who stay away keep
        their part of λ up to the projection; the weights of those present are rescaled to sum to 1,
        and are equal where λ leaves them none.

    Source:
        Mohri, Sivek, Suresh 2019, "Agnostic Federated Learning", algorithm Stochastic-AFL.

    Departs from:
        the paper in that L_i is over the whole training split, not one example, and in that it
        predicts by the last model, not by the mean over rounds, which is `afl+tail(start=0)`.

    Example:
        >>> rule = Agnostic(step=0.5)
        >>> table = {"received_loss": torch.tensor([0.0, 1.0])}
        >>> _, state = rule.weights(table, rule.init(2, 1))
        >>> rule.weights(table, state)[0]
        tensor([0.2500, 0.7500], dtype=torch.float64)
    """

    adapts: ClassVar[bool] = True
    step: Annotated[Positive, log(0.001, 1)] = 0.1
    needs = ("received_loss",)

    def own_state(self, K: int, P: int, layout: Layout | None) -> RuleState:
        return {"mixture": torch.full((K,), 1 / K, dtype=torch.float64)}

    def share(self, table: Table, state: RuleState, generator: Draws = None) -> WithState:
        client, mixture = table["client"].long(), state["mixture"]
        moved = mixture.index_add(0, client, table["received_loss"], alpha=self.step)
        return rescaled(mixture[client]), {**state, "mixture": on_simplex(moved)}


@dataclass(frozen=True)
class GroupDRO(Weighted, named="groupdro"):
    """Average by weights that grow with the exponential of each client's losses so far.

        q_i ← q_i exp(η (L_i(x) + C / √n_i)) / Σ_j ...,   x ← x + Σ_i q_i u_i

    L_i (`received_loss`): the loss of the received model on client i's training split; n_i: its
    `examples`; u_i: its update; q is 1/K at first. The clients are the groups.

    Attributes:
        step: η; the released code takes 0.01 for each batch, of which a round has many.
        adjustment: C, by which small clients, whose losses are less certain, count more; the
            released commands take 0.

    Note:
        The paper takes one gradient per step, which is `fedsgd+groupdro`. The q of those who stay
        away change by the normalisation alone; the weights of those present are rescaled to sum
        to 1.

    Source:
        Sagawa, Koh, Hashimoto, Liang 2020, "Distributionally Robust Neural Networks for Group
        Shifts", Algorithm 1, and its released code for C.

    Departs from:
        the paper in that a loss is of the whole training split, not a batch; the released code adds
        C / √n_i only where every group's C is above 0, and DomainBed has no C.

    Example:
        >>> rule = GroupDRO(step=1.0)
        >>> table = {"received_loss": torch.tensor([0.0, 3.0]).log1p(), "examples": torch.ones(2)}
        >>> rule.weights(table, rule.init(2, 1))[0]
        tensor([0.2000, 0.8000], dtype=torch.float64)
    """

    adapts: ClassVar[bool] = True
    step: Annotated[Positive, log(0.001, 1)] = 0.1
    adjustment: Annotated[NotNegative, log(0.01, 5)] = 0.0
    needs = ("received_loss", "examples")

    def own_state(self, K: int, P: int, layout: Layout | None) -> RuleState:
        """Return the logarithms of q, up to a number that all share."""
        return {"log": torch.zeros(K, dtype=torch.float64)}

    def share(self, table: Table, state: RuleState, generator: Draws = None) -> WithState:
        client = table["client"].long()
        loss = table["received_loss"] + self.adjustment * table["examples"].clamp(min=1).rsqrt()
        moved = state["log"].index_add(0, client, loss, alpha=self.step)
        return moved[client].softmax(0), {**state, "log": moved - moved.max()}


@dataclass(frozen=True)
class VarianceOfRisks(Weighted, named="vrex"):
    """Average by the weights of a penalty on the variance of the clients' losses.

        x ← x + Σ_i p_i (1 + 2β (L_i − L̄)) u_i,   L̄ = Σ_j p_j L_j

    L_i (`received_loss`): the loss of the received model on client i's training split; u_i: its
    update. Where u_i is client i's gradient (`fedsgd+vrex`), this is exactly the gradient of

        Σ_i p_i L_i + β Σ_i p_i (L_i − L̄)²,

    the paper's objective with the clients as environments, and losses are all that it takes.

    Attributes:
        beta: β ≥ 0; 0 is the mean. The paper takes up to 10,000 after a start without; the weights
            of clients whose loss is more than 1/(2β) below the mean are negative.
        prior: p; the paper's are uniform.

    Note:
        Where clients train, a weight multiplies what a client's steps made, not one gradient.
        BatchNorm's statistics are averaged by p.

    Source:
        Krueger et al. 2021, "Out-of-Distribution Generalization via Risk Extrapolation", Eq. 8.

    Departs from:
        the paper in the scale: its first term is a sum over environments, here it is a mean.

    Example:
        >>> table = {"received_loss": torch.tensor([1.0, 2.0])}
        >>> rule = VarianceOfRisks(beta=0.5)
        >>> rule.weights(table, rule.init(2, 1))[0]
        tensor([0.2500, 0.7500], dtype=torch.float64)
    """

    averages: ClassVar[bool] = False

    beta: Annotated[NotNegative, log(0.01, 100)] = 1.0
    prior: Weighted = Mean("uniform")
    needs = ("received_loss",)

    def share(self, table: Table, state: RuleState, generator: Draws = None) -> WithState:
        p, loss = table["prior"], table["received_loss"]
        return p * (1 + 2 * self.beta * (loss - p @ loss)), state


@dataclass(frozen=True)
class QFair(Gram, named="qffl"):
    """Weigh updates by a power of the clients' losses, and step as their curvature allows.

        x ← x + Σ_i p_i L_i^q u_i / Σ_i p_i h_i,   h_i = L_i^q + q L_i^(q−1) ‖u_i‖² / η

    L_i (`received_loss`): the loss of the received model on client i's training split; u_i: its
    update. It descends Σ_i p_i L_i^(q+1) / (q+1), with 1/η for the Lipschitz constant of the
    gradient: h_i bounds the curvature of one term.

    Attributes:
        q: q ≥ 0; 0 is FedAvg, large values serve the worst client. The paper tunes it over 0.001 to
            15, and reports 0.001 to 5.
        step: η; the paper takes the learning rate that suits FedAvg.
        prior: p; the paper samples clients by p_i = n_i / n and then weighs all equally.

    Note:
        q multiplies the squared length of a whole update, so a step is shorter than FedAvg's.

    Source:
        Li, Sanjabi, Beirami, Smith 2020, "Fair Resource Allocation in Federated Learning",
        Algorithm 2 (q-FedAvg); 1e-10 is added to each loss, as released.
    """

    spread: ClassVar[bool] = True

    q: Annotated[NotNegative, log(0.001, 5)] = 0.1
    step: Positive = 0.1
    prior: Weighted = Mean("examples")
    needs = ("received_loss",)

    def mix(self, gram: Tensor, table: Table, state: RuleState, generator: Draws) -> WithState:
        """Return the weights [K], whose sum is at most 1."""
        loss = table["received_loss"] + RELEASED_FLOOR
        top = table["prior"] * loss**self.q
        lengths = gram.diagonal() / self.step
        bottom = top + table["prior"] * self.q * loss ** (self.q - 1) * lengths
        return top / bottom.sum(), state


def rescaled(weights: Tensor) -> Tensor:
    """Return weights >= 0 [K] as shares of their sum; equal ones where all are 0."""
    total = weights.sum()
    return weights / total if float(total) > 0 else torch.full_like(weights, 1 / len(weights))


def on_simplex(v: Tensor) -> Tensor:
    """Return the nearest point of the simplex, max(v − θ, 0) with the θ that makes the sum 1.

    Example:
        >>> on_simplex(torch.tensor([1.0, 0.5, -3.0]))
        tensor([0.7500, 0.2500, 0.0000])
    """
    descending = v.sort(descending=True).values
    theta = (descending.cumsum(0) - 1) / torch.arange(1, len(v) + 1).to(v)
    last = int((descending > theta).nonzero()[-1])
    return (v - theta[last]).clamp(min=0)
