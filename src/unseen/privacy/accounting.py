"""How much privacy is spent: ε for a given δ, by Opacus' accountants, stated per client."""

import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from unseen.core.exchange import Exchange
from unseen.core.parts import innermost
from unseen.errors import choice, number, optional
from unseen.methods.local.train import Train
from unseen.privacy.dp import Guarded, NoisedRows, mechanism, rate_of, steps_of

Accountant = Literal["rdp", "prv"]
#: (noise, rate, steps): σ over the most that a sum can change, the probability with which a term
#: enters it, and how many such sums were given away.
History = tuple[tuple[float, float, int], ...]


def epsilon(
    noise: float, rate: float, steps: int, delta: float, accountant: Accountant = "prv"
) -> float:
    """Return ε of `steps` sums of clipped terms with Gaussian noise; see `composed`."""
    return composed(((noise, rate, steps),), delta, accountant)


def composed(history: History, delta: float, accountant: Accountant = "prv") -> float:
    """Return ε, for a given δ, of sums of clipped terms with Gaussian noise, one after another.

    Args:
        history: (noise, rate, steps) of each kind of sum. noise: σ, the noise's standard deviation
            over the most that the sum can change. rate: the probability with which a term enters
            each sum, drawn independently.
        delta: δ.
        accountant: `"prv"`, the upper end of Gopi et al. 2021's numerical composition, or `"rdp"`,
            Mironov et al. 2019's bound, which is looser and a hundred times as fast.

    Returns:
        ε; inf without noise, 0 without a step.
    """
    choice("accountant", accountant, ("rdp", "prv"))
    number("delta", delta, 0, 1, open_low=True)
    for noise, rate, steps in history:
        number("noise", noise, 0)
        number("rate", rate, 0, 1)
        number("steps", steps, 0, whole=True)
    history = tuple(sorted(entry for entry in history if entry[1] and entry[2]))
    if any(not noise for noise, _, _ in history):
        return math.inf
    if not history:
        return 0.0
    # Where there is next to nothing to account for, bounds may fall below 0, which ε cannot.
    return max(0.0, _rdp(history, delta) if accountant == "rdp" else _prv(history, delta))


@cache
def _prv(history: History, delta: float) -> float:
    accountant = opacus("accountants").PRVAccountant()
    accountant.history, epsilon = list(history), math.inf
    with _quiet(), suppress(ValueError, RuntimeError, OverflowError, MemoryError):
        epsilon = float(accountant.get_epsilon(delta))
    # Where its grid cannot hold the history, the other bound is still one.
    return epsilon if math.isfinite(epsilon) else _rdp(history, delta)


@cache
def _rdp(history: History, delta: float) -> float:
    total = sum(steps * _curve(noise, rate) for noise, rate, steps in history)
    orders = opacus("accountants").RDPAccountant.DEFAULT_ALPHAS
    analysis = opacus("accountants.analysis.rdp")
    with _quiet():
        return float(analysis.get_privacy_spent(orders=orders, rdp=total, delta=delta)[0])


@cache
def _curve(noise: float, rate: float) -> NDArray[np.float64]:
    """Return the Rényi divergences of one step at Opacus' orders; those of many are multiples."""
    orders = opacus("accountants").RDPAccountant.DEFAULT_ALPHAS
    rdp = opacus("accountants.analysis.rdp").compute_rdp
    with _quiet():
        return np.asarray(rdp(q=rate, noise_multiplier=noise, steps=1, orders=orders), np.float64)


def opacus(module: str) -> Any:
    """Return a module of Opacus, which is imported only here: it takes two seconds."""
    return optional(f"opacus.{module}", "the account of noise needs", "dp")


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Opacus, which warns of the last of its orders and divides by 0 without harm."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


@dataclass(frozen=True)
class Release:
    """What one reply of a client gives away, as the accountants count it.

    Attributes:
        protects: An `example` of the training split, added or removed, or the whole `client`, its
            data replaced by any other.
        noise: σ per sensitivity.
        rate, steps: Of one reply, as for `composed`.
        delta: The δ that ε is stated for.
        clip: C.
        secret: Whether nobody can know the noise.
    """

    protects: Literal["example", "client"]
    noise: float
    rate: float
    steps: int
    delta: float
    clip: float
    secret: bool = True


def releases(exchange: Exchange, count: int, present: int, planned: int) -> tuple[Release, ...]:
    """Return what protects one client's reply in an exchange.

    `present` clients replied. Where their sum alone is private, the noise was shared out for
    `planned`. The count is 0 where nobody says it.
    """
    for name, value, low in (("count", count, 0), ("present", present, 0), ("planned", planned, 1)):
        number(name, value, low, whole=True)
    protections = []
    if (guarded := mechanism(exchange.local, Guarded)) is not None and count:
        dp, local, rate, steps = guarded.dp, innermost(guarded), 1.0, 1
        if isinstance(local, Train):
            rate, steps = rate_of(count, local.training), steps_of(count, local.training)
        secret = dp.seed is None
        protections.append(Release("example", dp.noise, rate, steps, dp.delta, dp.clip, secret))
    if (noised := mechanism(exchange.local, NoisedRows)) is not None:
        # Replacing a client's data moves its clipped row by at most 2 C. Where the sum alone is
        # private, its noise is that of the clients present, less the share that another one knows.
        dp = noised.dp
        share = 1.0 if dp.trust == "nobody" else math.sqrt(max(0, present - 1) / planned)
        noise, secret = dp.noise * share / 2, dp.seed is None
        protections.append(Release("client", noise, 1.0, 1, dp.delta, dp.clip, secret))
    return tuple(protections)


@dataclass(frozen=True)
class Guarantee:
    """What one client was promised: all that left it."""

    client: str
    replies: tuple[tuple[Release, int], ...]

    def epsilon(self, accountant: Accountant = "prv") -> float:
        """Return ε so far; inf where the noise follows from a known seed."""
        if any(not release.secret for release, _ in self.replies):
            return math.inf
        history = tuple((r.noise, r.rate, r.steps * n) for r, n in self.replies)
        return composed(history, self.release.delta, accountant)

    @property
    def release(self) -> Release:
        return min((r for r, _ in self.replies), key=lambda r: r.noise)

    @property
    def text(self) -> str:
        r, count = self.release, sum(n for _, n in self.replies)
        rdp, prv = self.epsilon("rdp"), self.epsilon("prv")
        example = r.protects == "example"
        who = "each training example" if example else "the client's data as a whole"
        if math.isinf(prv):
            why = "there is no noise" if r.secret else "the noise follows from a known seed"
            return f"{self.client}: none for {who}, since {why}."
        how = f"{count} replies, the client's data replaced by any other"
        if example:
            sampling = f"an example in a step with probability {r.rate:.4g} (Poisson)"
            public = "one example added or removed, the number of examples public"
            how = f"{count} replies of {r.steps} steps each, {sampling}, {public}"
        bound = f"ε = {prv:.3g} (PRV; RDP {rdp:.3g}) at δ = {r.delta:g} for {who}"
        noise = f"clip {r.clip:g}, noise {r.noise:.3g} per sensitivity"
        return f"{self.client}: {bound}; {noise}, {how}."
