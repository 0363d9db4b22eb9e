"""ε is Opacus' own, and stated for what really happens."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from support.sites import federation

from unseen import Training, UnseenError, method
from unseen.core.optimiser import SGD
from unseen.privacy.accounting import Guarantee, composed, epsilon, releases
from unseen.privacy.dp import Clients, Examples, private

opacus = pytest.importorskip("opacus", reason="the extra dp is not installed")

SETTINGS = [
    (1.1, 0.1, 270, 1e-5),
    (0.7, 0.01, 1000, 1e-5),
    (5.0, 1.0, 30, 1e-5),
    (1.0, 1.0, 10, 1e-6),
    (2.0, 0.2, 500, 1e-4),
    (0.5, 0.05, 40, 1e-3),
    (4.0, 0.5, 200, 1e-5),
    (1.3, 0.02, 3000, 1e-6),
    (0.9, 0.11, 1, 1e-5),
    (10.0, 1.0, 100, 1e-5),
]


def theirs(kind: str, history, delta: float) -> float:
    from opacus.accountants import PRVAccountant, RDPAccountant

    accountant = {"rdp": RDPAccountant, "prv": PRVAccountant}[kind]()
    accountant.history = list(history)
    return float(accountant.get_epsilon(delta))


@pytest.mark.parametrize(("noise", "rate", "steps", "delta"), SETTINGS)
@pytest.mark.parametrize("kind", ["rdp", "prv"])
@pytest.mark.filterwarnings("ignore")
def test_epsilon_is_that_of_opacus(kind, noise, rate, steps, delta):
    expected = theirs(kind, [(noise, rate, steps)], delta)
    assert epsilon(noise, rate, steps, delta, kind) == pytest.approx(expected, rel=1e-9)


@pytest.mark.filterwarnings("ignore")
def test_different_replies_compose_as_with_opacus():
    history = ((1.0, 0.1, 20), (2.0, 0.3, 5))
    for kind in ("rdp", "prv"):
        expected = theirs(kind, history, 1e-5)
        assert composed(history, 1e-5, kind) == pytest.approx(expected, rel=1e-6)


def test_a_known_case_in_closed_form():
    # One Gaussian mechanism of unit sensitivity: δ(ε) = Φ(1/2σ − εσ) − e^ε Φ(−1/2σ − εσ),
    # Balle and Wang 2018, Theorem 8.
    from scipy.optimize import brentq
    from scipy.stats import norm

    sigma, delta = 2.0, 1e-5

    def excess(e: float) -> float:
        a = norm.cdf(1 / (2 * sigma) - e * sigma)
        return a - math.exp(e) * norm.cdf(-1 / (2 * sigma) - e * sigma) - delta

    exact = brentq(excess, 0.1, 10)
    assert exact <= epsilon(sigma, 1.0, 1, delta, "prv") <= exact + 0.03
    assert exact <= epsilon(sigma, 1.0, 1, delta, "rdp") <= exact * 1.2


def test_no_noise_protects_nothing_and_no_step_costs_nothing():
    assert epsilon(0.0, 0.1, 1, 1e-5) == math.inf
    assert epsilon(1.0, 0.1, 0, 1e-5) == 0.0
    with pytest.raises(UnseenError, match="delta"):
        epsilon(1.0, 0.1, 1, 0.0)
    with pytest.raises(UnseenError, match="accountant"):
        epsilon(1.0, 0.1, 1, 1e-5, "rpd")


def promised(federated, clients, replies):
    """What the method's only exchange promises each client for a number of replies."""
    (exchange,) = federated.exchanges
    return [
        Guarantee(name, ((release, replies),))
        for name, client in clients.items()
        for release in releases(exchange, len(client.split("train")), 1, 1)
    ]


def test_a_reply_of_dp_sgd_is_counted_step_by_step():
    clients = federation(2)  # 32 and 39 training examples
    training = Training(SGD(0.05), epochs=2, batch_size=8)
    federated = private(method("fedavg", training), Examples(1.0, 1.1, 1e-3))
    (exchange,) = federated.exchanges
    (release,) = releases(exchange, 39, 2, 2)
    assert (release.rate, release.steps, release.noise) == (8 / 39, 10, 1.1)
    full = private(method("fedsgd", training), Examples(1.0, 1.1, 1e-3))
    (release,) = releases(full.exchanges[0], 39, 2, 2)
    assert (release.rate, release.steps) == (1.0, 1)
    first, second = promised(federated, clients, replies=3)
    assert first.client == "site-a"
    assert second.epsilon("rdp") == epsilon(1.1, 8 / 39, 30, 1e-3, "rdp")
    assert "Poisson" in second.text
    assert "30" not in second.text or "3 replies of 10 steps" in second.text


def test_a_whole_clients_reply_counts_with_twice_the_bound():
    federated = private(
        method("fedavg(weights='uniform')", Training(SGD(0.1))), clients=Clients(1.0, 4.0, 1e-3)
    )
    (exchange,) = federated.exchanges
    (release,) = releases(exchange, 9, 5, 5)
    assert (release.noise, release.rate, release.steps) == (2.0, 1.0, 1)
    summed = private(
        method("fedavg(weights='uniform')", Training(SGD(0.1))),
        clients=Clients(1.0, 4.0, 1e-3, "sum"),
        summed=True,
    )
    (exchange,) = summed.exchanges
    (release,) = releases(exchange, 9, 4, 5)
    # Of five shares one stayed away, and a fellow client knows its own.
    assert release.noise == pytest.approx(2.0 * math.sqrt(3 / 5))
    (alone,) = releases(exchange, 9, 1, 5)
    assert Guarantee("a", ((alone, 1),)).epsilon() == math.inf


def test_a_known_seed_is_no_guarantee():
    clients = federation(1)
    federated = private(method("fedavg"), Examples(1.0, 1.1, 1e-3, seed=3))
    (promise,) = promised(federated, clients, replies=1)
    assert promise.epsilon() == math.inf
    assert "known seed" in promise.text
    secret = replace(promise.replies[0][0], secret=True, noise=0.0)
    assert "there is no noise" in Guarantee("site-a", ((secret, 1),)).text


@pytest.mark.parametrize("accountant", ["prv", "rdp"])
def test_epsilon_is_never_below_0(accountant) -> None:
    assert epsilon(50.0, 0.1, 1, 1e-2, accountant) >= 0
    assert epsilon(50.0, 0.1, 1, 1.0, "rdp") == 0


@pytest.mark.parametrize("accountant", ["rdp", "prv"])
@pytest.mark.parametrize(
    ("name", "wrong"),
    [("noise", v) for v in (math.nan, -1.0, math.inf, "1")]
    + [("rate", v) for v in (math.nan, -0.1, 1.1)]
    + [("steps", v) for v in (math.nan, -3, 1.5, True)]
    + [("delta", v) for v in (math.nan, 0.0, -1e-5, 1.1)],
)
def test_arguments_that_mean_nothing_are_refused_in_words(accountant, name, wrong) -> None:
    right = {"noise": 1.0, "rate": 0.1, "steps": 10, "delta": 1e-5}
    with pytest.raises(UnseenError, match=rf"^{name} must be an? \w+ in .*; found "):
        epsilon(**{**right, name: wrong}, accountant=accountant)


@pytest.mark.parametrize(
    ("name", "wrong"), [("count", -1), ("present", -1), ("planned", 0), ("count", math.nan)]
)
def test_counts_of_a_release_are_refused_in_words(name, wrong) -> None:
    right = {"count": 100, "present": 3, "planned": 3}
    exchange = method("fedavg", Training()).exchanges[0]
    with pytest.raises(UnseenError, match=rf"^{name} must be an integer in .*; found "):
        releases(exchange, **{**right, name: wrong})
