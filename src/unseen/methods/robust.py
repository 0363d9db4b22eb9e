"""Servers that outvote wrong clients: trimmed mean, median, Krum."""

from __future__ import annotations

from dataclasses import replace

from unseen.combine import Combine, Krum, Median, TrimmedMean
from unseen.core.apply import Add
from unseen.core.exchange import Method, Reference, Slot
from unseen.methods.base import federated, trained, with_exchange
from unseen.methods.surgery import replace_rule
from unseen.recipe import Training

YIN = Reference(
    "Yin, Chen, Ramchandran, Bartlett. Byzantine-Robust Distributed Learning: Towards Optimal "
    "Statistical Rates. ICML 2018. Definitions 1 and 2.",
    """@inproceedings{yin2018byzantine,
  title     = {Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates},
  author    = {Yin, Dong and Chen, Yudong and Ramchandran, Kannan and Bartlett, Peter},
  booktitle = {International Conference on Machine Learning},
  year      = {2018}
}""",
)
BLANCHARD = Reference(
    "Blanchard, El Mhamdi, Guerraoui, Stainer. Machine Learning with Adversaries: Byzantine "
    "Tolerant Gradient Descent. NeurIPS 2017. §4.",
    """@inproceedings{blanchard2017krum,
  title     = {Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent},
  author    = {Blanchard, Peva and El Mhamdi, El Mahdi and Guerraoui, Rachid and
               Stainer, Julien},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2017}
}""",
)


def trimmed_mean(training: Training, *, trim: float = 0.2) -> Method:
    """Average each coordinate without its largest and smallest values.

        x_d ← x_d + mean of the u_id without the ⌊trim·K⌋ largest and as many smallest

    trim: in [0, 0.5); below 1/K nothing is trimmed. The default withstands one wrong client of
    five; the paper wants it to be at least the share of wrong ones. Clients are not weighted, since
    a wrong one may claim any number of examples. BatchNorm statistics go the same way.
    """
    return robust(training, "trimmed-mean", TrimmedMean(trim), YIN)


def median(training: Training) -> Method:
    """The median of each coordinate of the updates.

        x_d ← x_d + median_i u_id

    Withstands fewer than half of the clients being wrong. Clients are not weighted. BatchNorm
    statistics go the same way.
    """
    return robust(training, "median", Median(), YIN)


def krum(training: Training, *, f: int | None = None, m: int = 1) -> Method:
    """Take the update that lies closest to its neighbours, and no other.

        i* = argmin_i Σ_{j among the K − f − 2 nearest of i} ‖u_i − u_j‖²,   x ← x + u_{i*}

    f: how many clients may be wrong; fewer than 2f + 3 clients are refused. By default as many as
    the round's K admits, ⌊(K − 3)/2⌋: with 5 clients one, with 3 none. m: the mean of the m best
    (Multi-Krum), at most K − f. Where domains differ, "wrong" clients may be merely unlike the
    others, and Krum is then the method that never hears them. BatchNorm statistics are those of
    the chosen ones.
    """
    return robust(training, "krum", Krum(f, m), BLANCHARD)


def add_trimmed_mean(method: Method, *, trim: float = 0.2) -> Method:
    """The trimmed mean on the server of any method that averages; its weights have no effect."""
    return shielded(method, "trimmed-mean", TrimmedMean(trim), YIN)


def add_median(method: Method) -> Method:
    """The median on the server of any method that averages; its weights have no effect."""
    return shielded(method, "median", Median(), YIN)


def add_krum(method: Method, *, f: int | None = None, m: int = 1) -> Method:
    """Krum on the server of any method that averages; its weights have no effect."""
    return shielded(method, "krum", Krum(f, m), BLANCHARD)


def robust(training: Training, name: str, rule: Combine, reference: Reference) -> Method:
    """The method of one exchange under the rule."""
    return guarded(federated(name, training, rule, reference), rule)


def shielded(method: Method, name: str, rule: Combine, reference: Reference) -> Method:
    """The method with the rule on its server."""
    return guarded(replace_rule(method, name, reference, lambda prior: rule), rule)


def guarded(method: Method, rule: Combine) -> Method:
    """The method whose buffers go by the rule too: a mean of them would let wrong clients in."""
    exchange = trained(method)
    buffers = Slot(like="model", apply=Add()) if isinstance(rule, Krum) else Slot(rule, apply=Add())
    return with_exchange(method, replace(exchange, slots={**exchange.slots, "buffers": buffers}))
