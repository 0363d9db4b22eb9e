"""`unseen audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Name = Annotated[str, typer.Argument(metavar="NAME|FILE.toml")]
Settings = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...")]
Which = Annotated[str | None, typer.Option(help="The method to attack (default: the first).")]
Target = Annotated[str | None, typer.Option(help="The task, by its target (default: the first).")]
Seed = Annotated[int | None, typer.Option(min=0, help="The seed (default: the first).")]
Victims = Annotated[int, typer.Option(min=1, max=200, help="Images to recover from updates.")]
Shadows = Annotated[
    int, typer.Option(min=0, max=256, help="Models for the likelihood ratio; below 4, none.")
]
Rounds = Annotated[int | None, typer.Option(min=1, help="Rounds of each training.")]
DataDir = Annotated[Path | None, typer.Option(help="Where data files are (default: $UNSEEN_DATA).")]
Out = Annotated[Path, typer.Option(help="Folder of audit.md, audit.json and pictures.")]


def audit(
    name: Name,
    settings: Settings = None,
    method: Which = None,
    target: Target = None,
    seed: Seed = None,
    victims: Victims = 12,
    shadows: Shadows = 8,
    rounds: Rounds = None,
    data_dir: DataDir = None,
    out: Out = Path("results/audit"),
) -> None:
    """Attack what a study's clients send: images out of updates, membership, what extras tell.

    One task, one seed and one method are attacked. Models are trained for it; nothing that a study
    has recorded is read.
    """
    from unseen.audit.attacks import audit as attack
    from unseen.audit.audit_page import write
    from unseen.spec.overrides import parse_override
    from unseen.spec.study import StudySpec

    overrides = dict(map(parse_override, settings or []))
    overrides |= {"targets": [target]} if target is not None else {}
    overrides |= {"seeds": [seed]} if seed is not None else {}
    study = StudySpec.read(name, overrides)
    findings, images = attack(study, data_dir, method, victims, shadows, rounds)
    for path in write(findings, images, out):
        print(path)
