"""The audit of a study: every attack on what one of its methods really sends."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unseen.engine.determinism import reproducible
from unseen.methods.compose import method as compose
from unseen.studies.audit import inversion, membership, shared
from unseen.studies.audit.subject import Subject, described, prepare_subject
from unseen.studies.audit.update_inversion import invert
from unseen.studies.execution.runtime import first_model
from unseen.studies.settings.study import StudySpec


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
    """Attack what methods share beyond the model: banks and counts."""
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
    return findings
