"""FedILC: the weighted geometric mean across and inside clients, and Fishr between clients."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from unseen.combine import Combine, Mean, Sum, WeightedGeometricMean
from unseen.core.apply import Add, Descend, Replace
from unseen.core.exchange import Exchange, Method, Reference, Slot
from unseen.core.losses import Loss
from unseen.core.parts import innermost
from unseen.errors import Incompatible, choice, number
from unseen.gradient import Backprop, Environments, Fishr, Gradient
from unseen.gradient.fishr import VARIANCE, HeadCovariance
from unseen.local.train import FullGradient, Measure, Penalised
from unseen.methods.base import citing, federated, local_training, trained
from unseen.methods.surgery import replace_rule
from unseen.recipe import Training

REFERENCE = Reference(
    "Zhu, Ezzine, Liu, Bengio. FedILC: Weighted Geometric Mean and Invariant Gradient Covariance "
    "for Federated Learning on Non-IID Data. 2022. §3, Algorithms 1 and 2.",
    """@article{zhu2022fedilc,
  title   = {{FedILC}: Weighted Geometric Mean and Invariant Gradient Covariance for Federated
             Learning on Non-{IID} Data},
  author  = {Zhu, Mike He and Ezzine, L{\\'e}na N{\\'e}hale and Liu, Dianbo and Bengio, Yoshua},
  journal = {arXiv preprint arXiv:2205.09305},
  year    = {2022}
}""",
)
FISHR = Reference(
    "Rame, Dancette, Cord. Fishr: Invariant Gradient Variances for Out-of-Distribution "
    "Generalization. ICML 2022. Eq. 4; between clients FedILC §3.2.",
    """@inproceedings{rame2022fishr,
  title     = {Fishr: Invariant Gradient Variances for Out-of-Distribution Generalization},
  author    = {Rame, Alexandre and Dancette, Corentin and Cord, Matthieu},
  booktitle = {International Conference on Machine Learning},
  year      = {2022}
}""",
)
#: What the server makes of the clients' penalties, by the scale of the loss.
SCALES: dict[str, Combine] = {"paper": Mean("uniform"), "released": Sum()}
SHARES = {
    "diagonal": "the variance over examples of the head's gradients",
    "full": "the covariance over examples of the head's gradients",
}


def geometric(
    training: Training,
    *,
    zeros: Literal["skip", "paper", "released"] = "skip",
    agreement: float = 0.0,
    compiled: bool = False,
) -> Method:
    """FedSGD whose server takes the weighted geometric mean of the clients' gradients.

        (E₊/E) (Π_{g>0} g)^{1/E₊} − (E₋/E) (Π_{g<0} |g|)^{1/E₋}

    zeros: what exact zeros count as, see `unseen.combine.WeightedGeometricMean`. agreement: the
    released code's sign threshold τ, 0 in all its commands. compiled: one pass by torch.compile,
    twice as fast and other last digits. Each client sends its full-batch gradient and the
    training's optimiser runs on the server, as released.
    """
    rule = WeightedGeometricMean(zeros, agreement, "updates", compiled=compiled)
    return gradients("geometric", training, rule, Backprop(training.loss))


def add_geometric(
    method: Method, *, zeros: Literal["skip", "paper", "released"] = "skip", agreement: float = 0.0
) -> Method:
    """The weighted geometric mean on the server of any method that averages."""
    return replace_rule(
        method,
        "geometric",
        REFERENCE,
        lambda prior: WeightedGeometricMean(zeros, agreement, "updates", prior),
    )


def fishr(
    training: Training,
    *,
    lam: float = 1.0,
    covariance: Literal["diagonal", "full"] = "diagonal",
    scale: Literal["paper", "released"] = "paper",
    warmup: int = 0,
    head: str | None = None,
) -> Method:
    """FedSGD with a penalty on how the clients' gradient covariances differ ("FedCurv" in FedILC).

        x ← optimiser(x, (1/E) Σ_e ∇F_e + λ ∇L),      L = (1/E) Σ_e ‖C_e − C̄‖²

    C_e: covariance over examples of the gradients of the last linear layer on client e's whole
    training split; C̄ = (1/E) Σ_e C_e. FedILC's tables call this row FedCurv; that of Shoham et
    al. is `fedcurv`. How it is computed without pooled data, and the options: see `+fishr`.
    """
    method = gradients("fishr", training, Mean("uniform"), Backprop(training.loss))
    return citing(regularised(method, training.loss, lam, covariance, scale, warmup, head), FISHR)


def fedilc_inter(
    training: Training,
    *,
    zeros: Literal["skip", "paper", "released"] = "skip",
    agreement: float = 0.0,
    lam: float = 1.0,
    covariance: Literal["diagonal", "full"] = "diagonal",
    scale: Literal["paper", "released"] = "paper",
    warmup: int = 0,
    head: str | None = None,
) -> Method:
    """Fishr and the weighted geometric mean across clients (Fishr+Inter-Geo, Algorithm 1).

        x ← optimiser(x, weightedgeo_e(∇F_e) + λ ∇L),      L = (1/E) Σ_e ‖C_e − C̄‖²

    The geometric mean is of the gradients alone: ∇L is added to it on the server, before the one
    step of its optimiser, as printed and as released. zeros, agreement: see `geometric`; the
    others: see `+fishr`.
    """
    method = geometric(training, zeros=zeros, agreement=agreement)
    method = regularised(method, training.loss, lam, covariance, scale, warmup, head)
    return replace(method, name="fedilc-inter", references=(FISHR, REFERENCE))


def fedilc_intra_geo(
    training: Training,
    *,
    by: Literal["batch", "example", "environment"] = "batch",
    zeros: Literal["skip", "paper", "released"] = "skip",
    agreement: float = 0.0,
    chunk: int | None = None,
    lam: float = 1.0,
    covariance: Literal["diagonal", "full"] = "diagonal",
    scale: Literal["paper", "released"] = "paper",
    warmup: int = 0,
    head: str | None = None,
) -> Method:
    """Fishr, and the weighted geometric mean inside each client (Fishr+Intra-Geo, Algorithm 2).

        x ← optimiser(x, (1/E) Σ_e weightedgeo_ε(∇F_e^ε) + λ ∇L),    ε the environments inside e

    by: what an environment is. Algorithm 2 takes every `"example"`; FedILC's experiments and its
    code take mini-batches of the training's batch size, drawn anew each round and all of one
    weight, a short last one too: hence the default. `"environment"` takes the column of that name
    in the data. zeros: with examples `"paper"` leaves hardly a coordinate, since a ReLU makes
    exact zeros; the released code's rule meets only mini-batches. agreement: as for `geometric`.
    chunk: by example in nets that are not all linear layers, how many gradients to hold at a
    time; see `unseen.gradient.Environments`. The others: see `+fishr`.

    §5 speaks of mini-batches for Inter-Geo; the code has them here only.
    """
    inner = Environments(
        Backprop(training.loss), by, "geometric", zeros, agreement, training.batch_size, chunk
    )
    method = gradients("fedilc-intra-geo", training, Mean("uniform"), inner)
    method = regularised(method, training.loss, lam, covariance, scale, warmup, head)
    return replace(method, references=(FISHR, REFERENCE))


def fedilc_intra_arith(
    training: Training,
    *,
    by: Literal["batch", "environment"] = "batch",
    lam: float = 1.0,
    covariance: Literal["diagonal", "full"] = "diagonal",
    scale: Literal["paper", "released"] = "paper",
    warmup: int = 0,
    head: str | None = None,
) -> Method:
    """Fishr, and the arithmetic mean over environments inside each client (Fishr+Intra-Arith).

        x ← optimiser(x, (1/E) Σ_e mean_ε ∇F_e^ε + λ ∇L)

    Where all environments are of one size this is `fishr`, but for rounding: on FedILC's
    Color-MNIST, 250 batches of 32, the gap that its tables print between the two is chance. by:
    as for `fedilc-intra-geo`; the others: see `+fishr`.
    """
    inner = Environments(Backprop(training.loss), by, "mean", batch_size=training.batch_size)
    method = gradients("fedilc-intra-arith", training, Mean("uniform"), inner)
    method = regularised(method, training.loss, lam, covariance, scale, warmup, head)
    return replace(method, references=(FISHR, REFERENCE))


def add_fishr(
    method: Method,
    *,
    lam: float = 1.0,
    covariance: Literal["diagonal", "full"] = "diagonal",
    scale: Literal["paper", "released"] = "paper",
    warmup: int = 0,
    head: str | None = None,
) -> Method:
    """Fishr between the clients of any method that sends gradients at the received model.

        λ ∇L,   L = (1/E) Σ_e ‖C_e − C̄‖²,   C_e = (1/n_e) Σ_i (g_i − ḡ)(g_i − ḡ)ᵀ at the head

    A round is two exchanges. In the first each client sends C_e; the second returns C̄, and each
    client sends ∇_w ‖C_e(w) − C̄‖² with C̄ held fixed, by differentiating its own variances. The
    mean of these is exactly ∇L, since Σ_e (C_e − C̄) = 0. The released code differentiates on the
    server, through the clients' data; with uploaded C_e alone, as printed, ∇L is undefined.

    lam: λ; FedILC takes 15 (Color-MNIST), 1 (Rotated-CIFAR10) and 0.1 (eICU). scale: `"paper"` as
    above; `"released"` leaves out 1/E, as the code does, so that its λ is E times the paper's.
    covariance: `"diagonal"`, the variances, as in FedILC's experiments, or `"full"`, as in its
    formula, for heads of up to 1,024 weights. warmup: rounds before λ sets in (0 as released;
    Fishr's own code waits 1,500 steps). head: the layer, by default the last linear one.

    As released: gradients of single examples are not scaled, and there is no moving average of
    C_e, unlike in Fishr's own code. Departs in that variances are in float64, that the loss of C_e
    is the training's own, and that the penalty's gradient travels as a vector of its own, averaged
    uniformly whatever weights or rule the gradients meet.
    """
    local = local_training(method)
    if not isinstance(local, FullGradient):
        raise Incompatible(
            f"{method.name}+fishr",
            f"{method.name} trains on its clients, and Fishr's "
            "penalty is exact only where all clients take their gradient at one model, as in "
            "fedsgd+fishr.",
        )
    gradient = innermost(local.gradient)
    regular = regularised(method, gradient.loss, lam, covariance, scale, warmup, head)
    return citing(regular, FISHR)


def gradients(name: str, training: Training, rule: Combine, gradient: Gradient) -> Method:
    """A method whose clients send one gradient each, and whose server steps."""
    apply = Descend(training.optimiser) if training.server == Add() else training.server
    return federated(name, training, rule, REFERENCE, FullGradient(gradient), apply)


def regularised(
    method: Method,
    loss: Loss,
    lam: float,
    covariance: Literal["diagonal", "full"],
    scale: Literal["paper", "released"],
    warmup: int,
    head: str | None,
) -> Method:
    """The method with Fishr: an exchange before the one that trains, and in that one a slot."""
    number("fishr(warmup)", warmup, 0, whole=True)
    choice("fishr(scale)", scale, tuple(SCALES))
    exchange, statistic = trained(method), HeadCovariance(loss, covariance, head)
    if VARIANCE in (e.name for e in method.exchanges):
        raise Incompatible(
            f"{method.name}+fishr", f"{method.name} has Fishr's penalty already. Set lam."
        )
    mean = Slot(Mean("uniform"), apply=Replace(), sends="value", start=statistic.zeros)
    first = Exchange(VARIANCE, Measure(VARIANCE, statistic), {VARIANCE: mean}, (warmup, 1))
    second = replace(
        exchange,
        local=Penalised(exchange.local, Fishr(statistic, lam), warmup),
        slots={**exchange.slots, "penalty": Slot(SCALES[scale], sends="value", to="model")},
    )
    at = method.exchanges.index(exchange)
    return replace(
        method,
        exchanges=(*method.exchanges[:at], first, second, *method.exchanges[at + 1 :]),
        shares=(*method.shares, SHARES[covariance], "Fishr's penalty and its gradient"),
    )
