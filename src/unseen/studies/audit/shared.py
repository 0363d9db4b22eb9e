"""What each thing that methods share beyond the model gives away, measured by attacking it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unseen.core.client import Client
from unseen.core.exchange import Outcome
from unseen.core.turn import Turn, keyed
from unseen.core.vector import Model
from unseen.methods.gradient.contrast import statistics
from unseen.methods.images.bank import Bank
from unseen.methods.images.frequency import Window
from unseen.studies.audit.inversion import last_bias
from unseen.studies.audit.membership import (
    Floats,
    auc,
    estimate,
    interval,
    numbers,
)

#: How far from the shared image the attacker's copy of it is, in units of the range of pixels.
COPIES = {"the very image": 0.0, "a copy with 5 % noise": 0.05, "a copy with 20 % noise": 0.2}
#: Images that are asked about and are not in the bank.
STRANGERS = 200
#: What methods send to everybody about images: in words, the method, and how it is computed.
BANKS: tuple[tuple[str, str, Callable[[Tensor], Tensor]], ...] = (
    ("whole amplitude spectrum", "am", Window(None)),
    ("amplitudes at low frequencies, L = 0.25", "feddg(L=0.25)", Window(0.25)),
    ("amplitude at frequency 0 alone, L = 0", "feddg(L=0.0)", Window(0.0)),
    ("mean and deviation of the pixels", "fedccrl", statistics),
)


def bank_membership(
    model: Model, client: Client, others: Sequence[Client], count: int, seed: int
) -> list[dict[str, Any]]:
    """Return, for each thing that banks hold, whether an image in the bank is recognised by it.

    Args:
        model: The network.
        client: The site whose bank is attacked.
        others: Sites whose labels the attacker has.
        count: The most images in the bank.
        seed: Of the draws.

    Note:
        The bank is filled by the methods' own exchange. Members are its images, the others images
        of the same site that were not drawn; the score is how near the nearest row is to what the
        attacker computes of its copy. Also: how often the class of a bank's images is guessed, by
        the five nearest of another site's images whose labels the attacker has.
    """
    results, split = [], client.split("train")
    x, y = split.batch(slice(None))
    span = float(x.max() - x.min())
    generator = keyed(f"{seed}/audit/banks")
    labelled = [other.split("train").batch(slice(None)) for other in others]
    labels = torch.cat([y for _, y in labelled])
    for title, method, describe in BANKS:
        bank = Bank("bank", describe, min(count, len(split) // 2))
        turn = Turn(seed, 0, 1, "bank", client.name, roster=(client.name,))
        reply, _ = bank(model, {}, client, {}, turn)
        rows = reply.rows["bank"].view(bank.count, -1)
        index = torch.randperm(len(split), generator=turn.generator("bank"))
        inside, outside = index[: bank.count], index[bank.count :][:STRANGERS]
        guesses = {}
        for copy, noise in COPIES.items():
            scores = []
            for images in (x[inside], x[outside]):
                copies = images + noise * span * torch.randn(images.shape, generator=generator)
                scores.append(-_distances(describe(copies), rows).min(1))
            guesses[copy] = estimate("auc", interval(*scores, statistic=auc), 4)
        described = torch.cat([describe(images).flatten(1) for images, _ in labelled])
        scale = described.std(0).clamp_min(1e-9)
        near = _distances(rows / scale, described / scale).argsort(1)[:, :5]
        right = labels[torch.from_numpy(near)].mode(1).values == y[inside]
        commonest = torch.bincount(y[inside]).max() / bank.count
        results.append(
            {
                "what": title,
                "method": method,
                "numbers_per_image": rows.shape[1],
                "images": bank.count,
                "membership": guesses,
                "class_guessed": round(float(right.double().mean()), 4),
                "class_by_chance": round(float(commonest), 4),
            }
        )
    return results


def _distances(a: Tensor, b: Tensor) -> Floats:
    return numbers(torch.cdist(a.flatten(1).double(), b.flatten(1).double()))


def class_counts(
    model: Model, clients: Mapping[str, Client], rows: Tensor, public: Client
) -> dict[str, Any]:
    """Guess a site's class frequencies from one gradient that it sends in the clear.

    The head's bias has the gradient mean p_c − n_c/n; p_c is guessed on another site's images.

    Args:
        model: The network.
        clients: The sites.
        rows: Their gradients [K, P].
        public: Whose images the attacker has.

    Note:
        They are compared with the guess that all classes are alike. FedCSA sends the counts
        themselves, so that nothing need be guessed.
    """
    pushed = -last_bias(model, rows).double()
    x, _ = public.split("train").batch(slice(None))
    model.module.eval()
    with torch.no_grad():
        mean = model(x).double().softmax(-1).mean(0)
    errors, uniform = [], []
    for client, bias in zip(clients.values(), pushed, strict=True):
        y, guess = client.split("train").y, (mean - bias).clamp_min(0)
        truth = torch.bincount(y, minlength=len(mean)).double() / len(y)
        errors.append(float((guess / guess.sum() - truth).abs().sum() / 2))
        uniform.append(float((1 / len(mean) - truth).abs().sum() / 2))
    return {
        "misplaced_share": round(float(np.mean(errors)), 4),
        "misplaced_by_uniform_guess": round(float(np.mean(uniform)), 4),
        "sites": len(errors),
    }


def gram_reveals(outcomes: Sequence[Outcome]) -> dict[str, Any] | None:
    """Return what inner products of updates say of the sites: which is large, alike, apart.

    Args:
        outcomes: With the inner products that a watch saw.

    Returns:
        Also whether norms follow the losses and the geometry the sites' own order; None without
        inner products.
    """
    with_grams = [o for o in outcomes if "gram" in o.notes and "model" in o.notes["gram"]]
    if not with_grams:
        return None
    names = with_grams[0].names
    K = len(names)
    grams = [np.array(o.notes["gram"]["model"]["inner"]) for o in with_grams if o.names == names]
    norms = np.sqrt(np.maximum([np.diag(g) for g in grams], 1e-30))
    each = [g / np.outer(n, n) for g, n in zip(grams, norms, strict=True)]
    cosines: Floats = np.mean(each, axis=0)
    pairs = sorted((float(cosines[i, j]), names[i], names[j]) for i in range(K) for j in range(i))
    farthest = [int(c.sum(1).argmin()) for c in each]
    findings: dict[str, Any] = {
        "rounds": len(grams),
        "sites": list(names),
        "norms": _short(norms.mean(0)),
        "cosines": [_short(row) for row in cosines],
        "most_alike": pairs[-1] if pairs else None,
        "least_alike": pairs[0] if pairs else None,
        "outlier": names[int(((cosines.sum(1) - 1) / max(1, K - 1)).argmin())],
        "outlier_each_round": round(max(map(farthest.count, farthest)) / len(farthest), 3),
        "numbers_per_round": K * (K + 1) // 2,
    }
    losses = [numbers(o.table["loss"]) for o in with_grams if "loss" in o.table]
    if len(losses) == len(norms):
        findings["norm_and_loss"] = mean_correlation(list(norms), losses)
    findings["order"] = _order(names, cosines)
    return findings


def rank_correlation(a: Floats, b: Floats) -> float | None:
    """Return Spearman's; None where either is constant or there are fewer than three."""
    from scipy.stats import spearmanr

    if len(a) < 3 or min(np.ptp(a), np.ptp(b)) == 0:
        return None
    value = float(spearmanr(a, b).statistic)
    return value if np.isfinite(value) else None


def mean_correlation(rows: Sequence[Floats], others: Sequence[Floats]) -> float | None:
    """Return the mean of the rank correlations of rows, pair by pair, where there are any."""
    each = [rank_correlation(a, b) for a, b in zip(rows, others, strict=True)]
    correlations = [value for value in each if value is not None]
    return round(float(np.mean(correlations)), 3) if correlations else None


def _order(names: Sequence[str], cosines: Floats) -> float | None:
    """Return how well the largest axis of the sites' geometry sorts sites named by numbers."""
    try:
        values = np.array([float(name) for name in names])
    except ValueError:
        return None
    centring = np.eye(len(names)) - 1 / len(names)
    _, vectors = np.linalg.eigh(centring @ cosines @ centring)
    correlation = rank_correlation(vectors[:, -1], values)
    return None if correlation is None else round(abs(correlation), 3)


def _short(values: Floats) -> list[float]:
    return [float(f"{value:.4g}") for value in values]
