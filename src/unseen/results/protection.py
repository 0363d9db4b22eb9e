"""What stands under a table about a study's privacy."""

from __future__ import annotations

from unseen.spec.study import StudySpec


def protocol(study: StudySpec) -> list[str]:
    """Lines about the channel, the server and the noise."""
    privacy, lines = study.privacy, []
    if privacy.kind != "clear":
        line = f"updates travel by {privacy.channel}"
        if privacy.server == "blind":
            line += "; the server never holds the model after round 0"
        lines = [f"{line}; figures equal those in the clear up to rounding, not bit for bit"]
    if privacy.examples:
        lines.append(f"noise on examples' gradients, Poisson batches: {privacy.examples}")
    if privacy.clients:
        lines.append(f"noise on clients' replies: {privacy.clients}")
    if privacy.columns is not None:
        lines.append("columns scaled by public ranges; no statistics of them left the sites")
    if privacy.noised:
        lines.append(
            "noise and batches are drawn anew in every run, so that these figures are not "
            "reproducible bit for bit; validation splits are not covered by the guarantee"
        )
    return lines
