"""The audit of a study: every attack on what one of its methods really sends."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unseen.audit import inversion, membership, shared
from unseen.audit.inversion import Prior
from unseen.audit.measures import RECOVERED, interval, psnr
from unseen.audit.subject import Subject, described, prepare_subject
from unseen.core.client import Client, Split
from unseen.core.exchange import Method, keyed
from unseen.core.vector import Model
from unseen.engine.determinism import reproducible
from unseen.errors import UnseenError
from unseen.methods.compose import method as compose
from unseen.privacy.clipped import output_loss
from unseen.privacy.dp import Examples, private, read
from unseen.spec.study import StudySpec
from unseen.study.network import first_model

#: How much nearer than the mean of all a result must be, in decibels, where that is near already.
BEYOND = 10.0
#: Noise on single examples' gradients that is tried besides the study's own, in units of clip.
LADDER = (0.001, 0.01, 0.1, 1.0)
#: Sizes of the batches whose gradients are attacked.
BATCHES = (1, 2, 4, 8, 16, 32)
#: Draws of random images for each victim.
RANDOM = 200
#: Victims whose update is encrypted or masked where a model is larger than this.
FEW, LARGE = 3, 200_000
#: Rounds after which what methods share beyond the model is attacked.
ROUNDS_SHARED = 8


def audit(
    study: StudySpec,
    data_dir: str | Path | None = None,
    method: str | None = None,
    victims: int = 12,
    shadows: int = 8,
    rounds: int | None = None,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return all findings as plain data, and the images that the attacks recovered, by the name of
    a row.

    Args:
        study: What is attacked.
        data_dir: The data folder.
        method: The method to attack (default: the study's first that trains at separate sites).
        victims: Number of images whose single updates are inverted.
        shadows: Models for the likelihood ratio, 0 for none.
        rounds: Of every training (default: the study's).
    """
    begun = time.monotonic()
    with reproducible(study.threads, study.device):
        subject = prepare_subject(study, data_dir, method)
        findings: dict[str, Any] = {"what": described(subject, rounds)}
        findings["inversion"], images = invert(subject, victims)
        played = rounds or study.rounds
        findings |= trained_models(subject, played, shadows)
        findings["shared"] = shared_extras(subject)
    findings["what"]["seconds"] = round(time.monotonic() - begun)
    return findings, images


# Inversion.


def invert(subject: Subject, count: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Attack single-example updates under every channel, then sums of several examples."""
    names = list(subject.prepared.sources)
    victim = subject.prepared.sources[names[0]]
    other = subject.prepared.sources[names[-1]]
    recipe = subject.study.training.build(subject.data.classes is None)
    recipe = replace(recipe, augment=None)
    plain = compose("fedsgd", recipe)
    model = first_model(subject.setting, subject.prepared, subject.seed)
    prior = Prior.of(other.split("train").batch(slice(None))[0])
    rows = shared.victims(victim, count, subject.seed)
    clients = inversion.single(victim, rows)
    truth = torch.cat([c.split("train").batch(slice(None))[0] for c in clients.values()])
    updates = inversion.replies(plain, model, clients)
    first = inversion.entry(model) is not None
    noun = "image" if truth.ndim == 4 else "row"
    images: dict[str, Tensor] = {f"the site's {noun}s": truth}
    table: list[dict[str, Any]] = []
    mean_only = prior.clipped(prior.mean.expand_as(truth))
    enough = max(RECOVERED, float(psnr(mean_only, truth, prior.span).mean()) + BEYOND)

    def note(name: str, guess: Tensor, held: str, extra: Mapping[str, Any] | None = None) -> None:
        decibels = psnr(guess, truth[: len(guess)], prior.span)
        mean, low, high = interval(decibels)
        images[name] = guess
        table.append(
            {
                "what": name,
                "held": held,
                "psnr": round(mean, 2),
                "interval": [round(low, 2), round(high, 2)],
                "recovered": int((decibels > enough).sum()),
                "of": len(guess),
                "each": inversion.rounded(decibels),
            }
            | dict(extra or {})
        )

    loss = output_loss(recipe.loss, "audit")
    draws = keyed(f"{subject.seed}/audit/inversion")
    if first:
        note("plain, by algebra", prior.clipped(inversion.analytic(model, updates).float()),
             "the update")  # fmt: skip
    tried = min(len(rows), FEW if first else 6)
    guess = torch.cat([inversion.matching(model, u, loss, prior, draws) for u in updates[:tried]])
    note("plain, by gradient matching", guess, "the update")
    for label, dp in _noises(subject.study):
        try:
            noised = inversion.replies(private(plain, dp), model, clients)
        except UnseenError as error:
            table.append({"what": label, "left_out": str(error)})
            continue
        deviation = dp.noise * dp.clip
        if first:
            guess = prior.clipped(inversion.analytic(model, noised, prior, deviation).float())
        else:
            guess = torch.cat(
                [inversion.matching(model, u, loss, prior, draws) for u in noised[:tried]]
            )
        note(label, guess, "the clipped and noised update", {"epsilon": _epsilon(dp)})
    for channel in ("masks", "ckks"):
        try:
            content = _held(channel, updates if len(updates[0]) < LARGE else updates[:FEW])
        except (ImportError, UnseenError) as error:
            table.append({"what": channel, "left_out": str(error)})
            continue
        guess = torch.cat([inversion.from_bytes(c, model, prior) for c in content])
        label = {"masks": "masked", "ckks": "encrypted"}[channel]
        note(label, guess, f"{len(content[0]):,} bytes")
    note(f"a random {noun}", prior.random(len(truth), draws), "nothing")
    note(f"the mean {noun}", mean_only, "nothing")
    random = torch.stack(
        [psnr(prior.random(len(truth), draws), truth, prior.span) for _ in range(RANDOM)]
    )
    findings = {
        "site": victim.name,
        "prior_from": other.name,
        "noun": noun,
        "enough": round(enough, 2),
        "attacks": table,
        "random_images": {"draws": RANDOM, "psnr": round(float(random.mean()), 2),
                          "highest_mean": round(float(random.mean(1).max()), 2)},
        "against_random": {
            name: _difference(images[name], truth, random.mean(0), prior.span)
            for name in ("masked", "encrypted") if name in images
        },
    }  # fmt: skip
    if first:
        findings["batches"] = batches(subject, model, plain, victim, prior, enough)
    return findings, images


def _noises(study: StudySpec) -> list[tuple[str, Examples]]:
    of_study, _ = read(study.privacy.examples, study.privacy.clients)
    clip, delta = (of_study.clip, of_study.delta) if of_study is not None else (1.0, 1e-5)
    noises = [(f"noise {noise:g}", Examples(clip, noise, delta)) for noise in LADDER]
    return [*noises, *([("the study's noise", of_study)] if of_study is not None else [])]


def _epsilon(dp: Examples) -> float | None:
    from unseen.privacy.accounting import epsilon

    try:
        return float(f"{epsilon(dp.noise, 1.0, 1, dp.delta, 'rdp'):.4g}")
    except UnseenError:
        return None


def _held(channel: str, rows: Tensor) -> list[bytes]:
    """What a server holds of each client's row on a channel."""
    from unseen.privacy.channel import seen_by_server

    return [c for c in seen_by_server(channel, rows.float()) if isinstance(c, bytes)]


def _difference(guess: Tensor, truth: Tensor, random: Tensor, span: float) -> dict[str, Any]:
    """How much nearer than random images an attack came, on the same victims."""
    gain = psnr(guess, truth[: len(guess)], span) - random[: len(guess)]
    mean, low, high = interval(gain)
    return {"gain": round(mean, 2), "interval": [round(low, 2), round(high, 2)],
            "no_better": low <= 0.0}  # fmt: skip


def batches(
    subject: Subject, model: Model, plain: Method, victim: Client, prior: Prior, enough: float
) -> list[dict[str, Any]]:
    """Look for images in sums of several examples' gradients, and in a round of the study's own
    training.

    It is what a server can recover that holds a sum alone.
    """
    split = victim.split("train")
    rows = []
    generator = keyed(f"{subject.seed}/audit/batches")
    order = torch.randperm(len(split), generator=generator)
    sizes = [size for size in BATCHES if size <= len(split)]
    for size in (*sizes, len(split)):
        chosen = split.take(order[:size])
        client = Client("victim", chosen, None, victim.classes)
        (row,) = inversion.replies(plain, model, {"victim": client})
        rows.append(_best(f"the gradient of {size}", size, model, row, chosen, prior, enough))
    runtime = subject.runtime(subject.method, subject.seed)
    try:
        (row,) = inversion.replies(runtime.method, runtime.model, {victim.name: victim})
    except (UnseenError, KeyError, RuntimeError):
        return rows
    name = f"a round of {subject.method} on all {len(split)}"
    return [*rows, _best(name, len(split), model, row, split, prior, enough)]


def _best(
    name: str, size: int, model: Model, row: Tensor, split: Split, prior: Prior, enough: float
) -> dict[str, Any]:
    truth = split.batch(slice(None))[0]
    candidates = prior.clipped(inversion.units(model, row).float())
    best = inversion.nearest(candidates, truth, prior.span)
    random = prior.random(len(candidates), keyed("audit/candidates"))
    guessed = inversion.nearest(random, truth, prior.span)
    return {
        "what": name,
        "examples": size,
        "candidates": len(candidates),
        "psnr": round(float(best.mean()), 2),
        "psnr_of_random": round(float(guessed.mean()), 2),
        "recovered": int((best > enough).sum()),
    }


# What follows from whole trainings.


def trained_models(subject: Subject, rounds: int, shadows: int) -> dict[str, Any]:
    """Infer membership from the final model, and read the inner products on the way."""
    sources = subject.prepared.sources
    final, outcomes = subject.train(subject.method, sources, subject.seed, rounds, gram=True)
    findings: dict[str, Any] = {
        "membership": {"by_loss": membership.by_threshold(final, sources)},
        "gram": shared.gram_reveals(outcomes),
    }
    if shadows >= 4:
        confidences, memberships = [], []
        everything = {name: client.split("train") for name, client in sources.items()}
        for m in range(shadows):
            reduced, mask = membership.halves(sources, f"{subject.seed}/audit/shadow/{m}")
            model, _ = subject.train(subject.method, reduced, subject.seed + m, rounds)
            confidences.append(
                np.concatenate([model.confidence(split) for split in everything.values()])
            )
            memberships.append(torch.cat([mask[name] for name in everything]).numpy())
        findings["membership"]["by_shadows"] = membership.by_shadows(
            np.stack(confidences), np.stack(memberships)
        )
    return findings


def shared_extras(subject: Subject) -> dict[str, Any]:
    """Attack what methods share beyond the model: banks, counts, gaps, heads."""
    sources = subject.prepared.sources
    names = list(sources)
    findings: dict[str, Any] = {}
    plain = compose("fedsgd", subject.study.training.build(subject.data.classes is None))
    model = first_model(subject.setting, subject.prepared, subject.seed)
    if len(subject.prepared.shape) == 3:
        findings["banks"] = shared.bank_membership(
            model, sources[names[0]], [sources[name] for name in names[1:]], 16, subject.seed
        )
    if subject.prepared.classes is not None and subject.prepared.outputs > 1:
        rows = inversion.replies(plain, model, dict(sources))
        targets = [*subject.prepared.targets.values(), *sources.values()]
        public = replace(targets[0], train=targets[0].train or targets[0].validation)
        findings["class_counts"] = shared.class_counts(model, dict(sources), rows, public)
    rounds = min(ROUNDS_SHARED, subject.study.rounds)
    clean = replace(subject, study=_without_noise(subject.study))
    for name, text in (("gaps", "fedavg+ga"), ("heads", "copa")):
        try:
            model_, outcomes = clean.train(text, sources, subject.seed, rounds)
        except UnseenError as error:
            findings[name] = {"left_out": str(error)}
            continue
        if name == "gaps":
            findings[name] = shared.gaps_reveal(outcomes)
        else:
            inbox = model_.inbox
            findings[name] = shared.heads_reveal(
                model_.model, inbox["model"], inbox["heads"], dict(sorted(sources.items()))
            )
    return findings


def _without_noise(study: StudySpec) -> StudySpec:
    privacy = study.privacy.model_copy(update={"examples": "", "clients": ""})
    return study.model_copy(update={"privacy": privacy, "record": ()})
