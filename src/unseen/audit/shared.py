"""What each thing that methods share beyond the model gives away, measured by attacking it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unseen.audit.measures import (
    Floats,
    auc_interval,
    keyed_choice,
    numbers,
    rank_correlation,
)
from unseen.core.client import Client
from unseen.core.exchange import Outcome, Turn, keyed
from unseen.core.vector import Model
from unseen.gradient.contrast import statistics
from unseen.images.bank import Bank
from unseen.images.frequency import Window

#: How far from the shared image the attacker's copy of it is, in units of the range of pixels.
COPIES = {"the very image": 0.0, "a copy with 5 % noise": 0.05, "a copy with 20 % noise": 0.2}
#: Images that are asked about and are not in the bank.
STRANGERS = 200


@dataclass(frozen=True)
class Described:
    """Something about images that a method sends to everybody."""

    title: str
    method: str
    describe: Callable[[Tensor], Tensor]


BANKS = (
    Described("whole amplitude spectrum", "am", Window(None)),
    Described("amplitudes at low frequencies, L = 0.25", "feddg(L=0.25)", Window(0.25)),
    Described("amplitude at frequency 0 alone, L = 0", "feddg(L=0.0)", Window(0.0)),
    Described("mean and deviation of the pixels", "fedccrl", statistics),
)


def bank_membership(
    model: Model, client: Client, others: Sequence[Client], count: int, seed: int
) -> list[dict[str, Any]]:
    """Return, for each thing that banks hold, whether an image in the bank is recognised by it.

    The bank is filled by the methods' own exchange. Members are its images, the others images of
    the same site that were not drawn; the score is how near the nearest row is to what the attacker
    computes of its copy. Also: how often the class of a bank's images is guessed, by the five
    nearest of another site's images whose labels the attacker has.

    Args:
        model: The network.
        client: The site whose bank is attacked.
        others: Sites whose labels the attacker has.
        count: The most images in the bank.
        seed: Of the draws.
    """
    results = []
    split = client.split("train")
    x, y = split.batch(slice(None))
    span = float(x.max() - x.min())
    generator = keyed(f"{seed}/audit/banks")
    for kind in BANKS:
        bank = Bank("bank", kind.describe, min(count, len(split) // 2))
        turn = Turn(seed, 0, 1, "bank", client.name, roster=(client.name,))
        reply, _ = bank(model, {}, client, {}, turn)
        rows = reply.rows["bank"].view(bank.count, -1)
        index = torch.randperm(len(split), generator=turn.generator("bank"))
        inside, outside = index[: bank.count], index[bank.count :][:STRANGERS]
        guesses = {}
        for copy, noise in COPIES.items():
            scores = []
            for chosen in (inside, outside):
                images = x[chosen]
                images = images + noise * span * torch.randn(images.shape, generator=generator)
                scores.append(-_distances(kind.describe(images), rows).min(1))
            value, low, high = auc_interval(scores[0], scores[1])
            guesses[copy] = {"auc": round(value, 4), "interval": [round(low, 4), round(high, 4)]}
        right, chance = _labelled(kind, rows, y[inside], others)
        results.append(
            {
                "what": kind.title,
                "method": kind.method,
                "numbers_per_image": rows.shape[1],
                "images": bank.count,
                "membership": guesses,
                "class_guessed": round(right, 4),
                "class_by_chance": round(chance, 4),
            }
        )
    return results


def _labelled(
    kind: Described, rows: Tensor, y: Tensor, others: Sequence[Client]
) -> tuple[float, float]:
    """How often the most frequent class of the five nearest is right, and the commonest class."""
    splits = [client.split("train").batch(slice(None)) for client in others]
    described = torch.cat([kind.describe(x).flatten(1) for x, _ in splits])
    labels = torch.cat([labels for _, labels in splits])
    scale = described.std(0).clamp_min(1e-9)
    near = _distances(rows / scale, described / scale).argsort(1)[:, :5]
    guessed = labels[torch.from_numpy(near)].mode(1).values
    return float((guessed == y).double().mean()), float(torch.bincount(y).max() / len(y))


def _distances(a: Tensor, b: Tensor) -> Floats:
    return numbers(torch.cdist(a.flatten(1).double(), b.flatten(1).double()))


def class_counts(
    model: Model, clients: Mapping[str, Client], rows: Tensor, public: Client
) -> dict[str, Any]:
    """Guess a site's class frequencies from one gradient that it sends in the clear.

    The head's bias has the gradient mean p_c − n_c/n: with the mean prediction on images of another
    site in place of p_c, the frequencies follow. They are compared with the guess that all classes
    are alike. FedCSA sends the counts themselves, so that nothing need be guessed.
    """
    names = [name for name in model.layout.names if name.endswith("bias")]
    pushed = -model.layout.views(rows)[names[-1]].double()
    x, _ = public.split("train").batch(slice(None))
    model.module.eval()
    with torch.no_grad():
        mean = model(x).double().softmax(-1).mean(0)
    errors, uniform = [], []
    for client, bias in zip(clients.values(), pushed, strict=True):
        y = client.split("train").y
        truth = torch.bincount(y, minlength=len(mean)).double() / len(y)
        guess = (mean - bias).clamp_min(0)
        guess = guess / guess.sum()
        errors.append(float((guess - truth).abs().sum() / 2))
        uniform.append(float((1 / len(mean) - truth).abs().sum() / 2))
    return {
        "misplaced_share": round(float(np.mean(errors)), 4),
        "misplaced_by_uniform_guess": round(float(np.mean(uniform)), 4),
        "sites": len(errors),
    }


def gram_reveals(outcomes: Sequence[Outcome]) -> dict[str, Any] | None:
    """Return what inner products of updates say of the sites: who is large, alike, apart.

    And whether norms follow the losses and the geometry the sites' own order.
    """
    seen = [o for o in outcomes if "gram" in o.seen and "model" in o.seen["gram"]]
    if not seen:
        return None
    names = seen[0].names
    grams = [np.array(o.seen["gram"]["model"]["inner"]) for o in seen if o.names == names]
    norms = np.sqrt(np.maximum([np.diag(g) for g in grams], 1e-30))
    cosines = np.mean(
        [g / np.outer(n, n) for g, n in zip(grams, norms, strict=True)], axis=0
    )  # fmt: skip
    K = len(names)
    pairs = sorted((float(cosines[i, j]), names[i], names[j]) for i in range(K) for j in range(i))
    alone = (cosines.sum(1) - 1) / max(1, K - 1)
    findings: dict[str, Any] = {
        "rounds": len(grams),
        "sites": list(names),
        "norms": _short(norms.mean(0)),
        "cosines": [_short(row) for row in cosines],
        "most_alike": pairs[-1] if pairs else None,
        "least_alike": pairs[0] if pairs else None,
        "outlier": names[int(alone.argmin())],
        "outlier_each_round": _share_of_most_common(grams),
        "numbers_per_round": K * (K + 1) // 2,
    }
    losses = [numbers(o.table["loss"]).tolist() for o in seen if "loss" in o.table]
    if len(losses) == len(norms):
        each = [rank_correlation(a.tolist(), b) for a, b in zip(norms, losses, strict=True)]
        correlations = [value for value in each if value is not None]
        findings["norm_and_loss"] = round(float(np.mean(correlations)), 3) if correlations else None
    findings["order"] = _order(names, cosines)
    return findings


def _share_of_most_common(grams: Sequence[Floats]) -> float:
    """In how many rounds the same site stands farthest from the others."""
    picked = []
    for g in grams:
        n = np.sqrt(np.maximum(np.diag(g), 1e-30))
        picked.append(int((g / np.outer(n, n)).sum(1).argmin()))
    return round(max(picked.count(i) for i in set(picked)) / len(picked), 3)


def _order(names: Sequence[str], cosines: Floats) -> float | None:
    """How well the largest axis of the sites' geometry sorts sites whose names are numbers."""
    try:
        values = [float(name) for name in names]
    except ValueError:
        return None
    K = len(names)
    centring = np.eye(K) - 1 / K
    _, vectors = np.linalg.eigh(centring @ cosines @ centring)
    correlation = rank_correlation(vectors[:, -1].tolist(), values)
    return None if correlation is None else round(abs(correlation), 3)


def gaps_reveal(outcomes: Sequence[Outcome]) -> dict[str, Any] | None:
    """Return what GA's gaps say: whether the site with the largest one is the one served worst.

    And how the gaps go with the sites' sizes and losses.
    """
    seen = [o for o in outcomes if "gap" in o.table and bool(o.table["gap_known"].all())]
    if not seen:
        return None
    gaps = np.array([numbers(o.table["gap"]) for o in seen])
    losses = np.array([numbers(o.table["loss"]) for o in seen])
    each = [rank_correlation(g.tolist(), x.tolist()) for g, x in zip(gaps, losses, strict=True)]
    correlations = [value for value in each if value is not None]
    return {
        "rounds": len(seen),
        "sites": list(seen[0].names),
        "mean_gaps": _short(gaps.mean(0)),
        "gap_and_loss": round(float(np.mean(correlations)), 3) if correlations else None,
        "largest_gap": seen[0].names[int(gaps.mean(0).argmax())],
        "steadiness": round(float(np.mean([_top(g) == _top(gaps.mean(0)) for g in gaps])), 3),
    }


def _top(values: Floats) -> int:
    return int(values.argmax())


def heads_reveal(
    model: Model, vector: Tensor, heads: Tensor, clients: Mapping[str, Client]
) -> dict[str, Any]:
    """Guess whose example it is by COPA's heads, which everybody receives.

    An example is assigned to the site under whose head it fits best: once for examples that were
    trained on, once for others.

    Args:
        model: The network.
        vector: The shared body.
        heads: [N, Ph] in the order of the clients.
        clients: The sites.
    """
    from unseen.audit.membership import confidence
    from unseen.gradient.heads import Head

    model.bind(vector.clone(), model.buffers)
    head = Head.of(model, None)
    model.module.eval()
    findings: dict[str, Any] = {"sites": len(clients), "by_chance": round(1 / len(clients), 4)}
    for which in ("train", "validation"):
        right = total = 0
        for k, client in enumerate(clients.values()):
            x, y = client.split(which).batch(slice(None))
            with torch.no_grad():
                features, _ = head.run(model, x)
                z = head.apply(heads, features)
            fits = torch.stack([confidence(z[:, j], y) for j in range(len(heads))], dim=1)
            right += int((fits.argmax(1) == k).sum())
            total += len(y)
        findings[f"site_guessed_{which}"] = round(right / total, 4)
    return findings


def victims(client: Client, count: int, seed: int) -> list[int]:
    """Return rows of the training split whose images are attacked."""
    split = client.split("train")
    return keyed_choice(len(split), count, keyed(f"{seed}/audit/victims")).sort().values.tolist()


def _short(values: Floats) -> list[float]:
    return [float(f"{value:.4g}") for value in values]
