"""The audit of a study: every attack on what one of its methods really sends."""

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unseen.audit import inversion, membership, shared
from unseen.audit.inversion import RECOVERED, Prior, psnr
from unseen.audit.membership import estimate, interval
from unseen.audit.subject import Subject, described, prepare_subject
from unseen.core.client import Client, Split
from unseen.core.exchange import Method
from unseen.core.turn import keyed
from unseen.core.vector import Model
from unseen.engine.determinism import reproducible
from unseen.errors import UnseenError
from unseen.methods.compose import method as compose
from unseen.privacy.accounting import epsilon
from unseen.privacy.channel import seen_by_server
from unseen.privacy.dp import Examples, private, read
from unseen.privacy.dp.examples import output_loss
from unseen.spec.study import StudySpec
from unseen.study.runtime import first_model

#: How much nearer than the mean of all a result must be, in decibels, where that is near already.
BEYOND = 10.0
#: Noise on single examples' gradients that is tried next to the study's own, in units of clip.
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
    """Attack a study.

    Args:
        study: What is attacked.
        data_dir: The data folder.
        method: The method to attack (default: the study's first that trains at separate sites).
        victims: Number of images whose single updates are inverted.
        shadows: Models for the likelihood ratio, 0 for none.
        rounds: Of every training (default: the study's).

    Returns:
        All findings as plain data, and the images that the attacks recovered, by the name of a row.
    """
    start = time.monotonic()
    with reproducible(study.threads, study.device):
        subject = prepare_subject(study, data_dir, method)
        findings: dict[str, Any] = {"what": described(subject, rounds)}
        findings["inversion"], images = invert(subject, victims)
        findings |= trained_models(subject, rounds or study.rounds, shadows)
        findings["shared"] = shared_extras(subject)
    findings["what"]["seconds"] = round(time.monotonic() - start)
    return findings, images


def invert(subject: Subject, count: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Attack single-example updates under every channel, then sums of several examples.

    Args:
        subject: What is attacked.
        count: How many images' updates.

    Returns:
        As `audit`.
    """
    sources = list(subject.prepared.sources.values())
    victim, other = sources[0], sources[-1]
    recipe = replace(subject.study.training.build(subject.data.kind), augment=None)
    plain, loss = compose("fedsgd", recipe), output_loss(recipe.loss, "audit")
    model = first_model(subject.setting, subject.prepared, subject.seed)
    prior = Prior.of(other.split("train").batch(slice(None))[0])
    order = torch.randperm(
        len(victim.split("train")), generator=keyed(f"{subject.seed}/audit/victims")
    )
    clients = inversion.single(victim, order[:count].sort().values.tolist())
    truth = torch.cat([c.split("train").batch(slice(None))[0] for c in clients.values()])
    updates = inversion.replies(plain, model, clients)
    first = inversion.entry(model) is not None
    noun = "image" if truth.ndim == 4 else "row"
    images: dict[str, Tensor] = {f"the site's {noun}s": truth}
    table: list[dict[str, Any]] = []
    mean_only = prior.clipped(prior.mean.expand_as(truth))
    enough = max(RECOVERED, float(psnr(mean_only, truth, prior.span).mean()) + BEYOND)
    draws = keyed(f"{subject.seed}/audit/inversion")

    def note(name: str, guess: Tensor, holding: str, **extra: Any) -> None:
        decibels = psnr(guess, truth[: len(guess)], prior.span)
        images[name] = guess
        table.append({
            "what": name, "held": holding, **estimate("psnr", interval(decibels), 2),
            "recovered": int((decibels > enough).sum()), "of": len(guess),
            "each": [round(float(v), 2) for v in decibels], **extra,
        })  # fmt: skip

    def matched(rows: Tensor) -> Tensor:
        some = rows[: FEW if first else 6]
        return torch.cat([inversion.matching(model, u, loss, prior, draws) for u in some])

    def solved(rows: Tensor, deviation: float = 0.0) -> Tensor:
        return prior.clipped(inversion.analytic(model, rows, prior, deviation).float())

    if first:
        note("plain, by algebra", solved(updates), "the update")
    note("plain, by gradient matching", matched(updates), "the update")
    own, _ = read(subject.study.privacy.examples, subject.study.privacy.clients)
    clip, delta = (1.0, 1e-5) if own is None else (own.clip, own.delta)
    noises = {f"noise {noise:g}": Examples(clip, noise, delta) for noise in LADDER}
    for label, dp in (noises | ({} if own is None else {"the study's noise": own})).items():
        try:
            noised = inversion.replies(private(plain, dp), model, clients)
        except UnseenError as error:
            table.append({"what": label, "left_out": str(error)})
            continue
        guess, bound = solved(noised, dp.noise * dp.clip) if first else matched(noised), None
        with suppress(UnseenError):  # the accountants may not be installed
            bound = float(f"{epsilon(dp.noise, 1.0, 1, dp.delta, 'rdp'):.4g}")
        note(label, guess, "the clipped and noised update", epsilon=bound)
    for channel, label in (("masks", "masked"), ("ckks", "encrypted")):
        some = updates if len(updates[0]) < LARGE else updates[:FEW]
        try:
            contents = [c for c in seen_by_server(channel, some.float()) if isinstance(c, bytes)]
        except (ImportError, UnseenError) as error:
            table.append({"what": channel, "left_out": str(error)})
            continue
        guess = torch.cat([inversion.from_bytes(content, model, prior) for content in contents])
        note(label, guess, f"{len(contents[0]):,} bytes")
    note(f"a random {noun}", prior.random(len(truth), draws), "nothing")
    note(f"the mean {noun}", mean_only, "nothing")
    random = torch.stack(
        [psnr(prior.random(len(truth), draws), truth, prior.span) for _ in range(RANDOM)]
    )
    gains = {}  # how much nearer than random images an attack came, on the same victims
    for name, rows in images.items():
        if name in ("masked", "encrypted"):
            ahead = psnr(rows, truth[: len(rows)], prior.span) - random.mean(0)[: len(rows)]
            gain = interval(ahead)
            gains[name] = estimate("gain", gain, 2) | {"no_better": gain[1] <= 0.0}
    findings = {
        "site": victim.name, "prior_from": other.name, "noun": noun, "enough": round(enough, 2),
        "attacks": table,
        "random_images": {"draws": RANDOM, "psnr": round(float(random.mean()), 2),
                          "highest_mean": round(float(random.mean(1).max()), 2)},
        "against_random": gains,
    }  # fmt: skip
    if first:
        findings["batches"] = batches(subject, model, plain, victim, prior, enough)
    return findings, images


def batches(
    subject: Subject, model: Model, plain: Method, victim: Client, prior: Prior, enough: float
) -> list[dict[str, Any]]:
    """Look for images in sums of gradients, which is what a server sees that holds sums alone.

    Args:
        subject: What is attacked; a round of its own training is attacked too.
        model: The network.
        plain: The method whose clients send one gradient each.
        victim: The site.
        prior: What the attacker knows of the images.
        enough: From how many decibels on an image counts as recovered.
    """
    split = victim.split("train")
    order = torch.randperm(len(split), generator=keyed(f"{subject.seed}/audit/batches"))

    def best(name: str, row: Tensor, summed: Split) -> dict[str, Any]:
        truth = summed.batch(slice(None))[0]
        candidates = prior.clipped(inversion.units(model, row).float())
        random = prior.random(len(candidates), keyed("audit/candidates"))
        nearest, guessed = (
            inversion.nearest(images, truth, prior.span) for images in (candidates, random)
        )
        return {
            "what": name, "examples": len(summed), "candidates": len(candidates),
            "psnr": round(float(nearest.mean()), 2),
            "psnr_of_random": round(float(guessed.mean()), 2),
            "recovered": int((nearest > enough).sum()),
        }  # fmt: skip

    rows = []
    for size in (*(size for size in BATCHES if size <= len(split)), len(split)):
        subset = split.take(order[:size])
        client = Client("victim", subset, None, victim.classes)
        (row,) = inversion.replies(plain, model, {"victim": client})
        rows.append(best(f"the gradient of {size}", row, subset))
    runtime = subject.runtime(subject.method, subject.seed)
    try:
        (row,) = inversion.replies(runtime.method, runtime.model, {victim.name: victim})
    except (UnseenError, KeyError, RuntimeError):
        return rows
    return [*rows, best(f"a round of {subject.method} on all {len(split)}", row, split)]


def trained_models(subject: Subject, rounds: int, shadows: int) -> dict[str, Any]:
    """Infer membership from the final model, and read the inner products on the way.

    Args:
        subject: What is attacked.
        rounds: Of every training.
        shadows: Models for the likelihood ratio; with fewer than four it is left out.
    """
    sources = subject.prepared.sources
    final, outcomes = subject.train(subject.method, sources, subject.seed, rounds, gram=True)
    results: dict[str, Any] = {"by_loss": membership.by_threshold(final, sources)}
    if shadows >= 4:
        confidences, memberships = [], []
        for m in range(shadows):
            reduced, mask = membership.halves(sources, f"{subject.seed}/audit/shadow/{m}")
            model, _ = subject.train(subject.method, reduced, subject.seed + m, rounds)
            each = [model.confidence(client.split("train")) for client in sources.values()]
            confidences.append(np.concatenate(each))
            memberships.append(torch.cat([mask[name] for name in sources]).numpy())
        results["by_shadows"] = membership.by_shadows(np.stack(confidences), np.stack(memberships))
    return {"membership": results, "gram": shared.gram_reveals(outcomes)}


def shared_extras(subject: Subject) -> dict[str, Any]:
    """Attack what methods share beyond the model: banks, counts, gaps, heads."""
    prepared, seed = subject.prepared, subject.seed
    sources = list(prepared.sources.values())
    findings: dict[str, Any] = {}
    plain = compose("fedsgd", subject.study.training.build(subject.data.kind))
    model = first_model(subject.setting, prepared, seed)
    if len(prepared.shape) == 3 and not prepared.frozen:
        findings["banks"] = shared.bank_membership(model, sources[0], sources[1:], 16, seed)
    if prepared.classes is not None and prepared.outputs > 1:
        rows = inversion.replies(plain, model, dict(prepared.sources))
        target = [*prepared.targets.values(), *sources][0]
        public = replace(target, train=target.train or target.validation)
        findings["class_counts"] = shared.class_counts(model, prepared.sources, rows, public)
    rounds = min(ROUNDS_SHARED, subject.study.rounds)
    privacy = subject.study.privacy.model_copy(update={"examples": "", "clients": ""})
    study = subject.study.model_copy(update={"privacy": privacy, "record": ()})
    clean = replace(subject, study=study)  # what they share is attacked without noise
    for name, text in (("gaps", "fedavg+ga"), ("heads", "copa")):
        try:
            trained, outcomes = clean.train(text, prepared.sources, seed, rounds)
        except UnseenError as error:
            findings[name] = {"left_out": str(error)}
            continue
        heads = name == "heads" and shared.heads_reveal(trained, prepared.sources)
        findings[name] = heads or shared.gaps_reveal(outcomes)
    return findings
