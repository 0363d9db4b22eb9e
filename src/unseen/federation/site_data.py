"""A site's data against a study: classes, features and counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from unseen.errors import UnseenError
from unseen.federation.findings import Finding
from unseen.federation.kit import Kit


def compare(kit: Kit, study: Path, data: Path | None) -> Iterator[Finding]:
    """Yield what of the site's data does not fit the study. data: instead of site.toml's."""
    from unseen.federation.flower.site import Site, load
    from unseen.spec.study import StudySpec

    try:
        chosen = StudySpec.read(study)
        if (kit.folder / "site.toml").is_file():
            site = Site.read(kit.folder)
            site = site if data is None else replace(site, data=data.absolute())
        else:
            assert data is not None  # the caller has said so where neither is given
            role = str(kit.settings["role"])
            site = Site(kit.name, data.absolute(), kit.state, role, kit.folder)
        dataset = load(site, chosen)
    except UnseenError as error:
        yield Finding.fault("data", error)
        return
    except OSError as error:
        yield Finding("data", "fault", f"cannot be read: {error}", "check path and rights")
        return
    yield from judge(kit, chosen, dataset)


def judge(kit: Kit, study: Any, dataset: Any) -> Iterator[Finding]:
    """Counts, classes and features of the one domain that was read."""
    import torch

    from unseen.study.prepare import rows_of

    domain = dataset.domains[0]
    n, train = len(domain.y), kit.settings["role"] == "train"
    columns = len(dataset.schema.columns) if dataset.schema is not None else 0
    shape = "×".join(map(str, domain.x.shape[1:]))
    yield Finding("features", "ok", f"{columns} columns" if columns else f"inputs of {shape}")
    trained = n
    if train:
        try:
            trained = len(rows_of(domain, study.validation, study.seed_list[0])[0])
        except UnseenError as error:
            yield Finding("counts", "fault", str(error), "more examples are needed")
            return
    if train and trained < study.training.batch_size:
        text = f"{n} examples, {trained} to train on; a batch is {study.training.batch_size}"
        remedy = f"set training.batch_size to {max(trained, 1)} or less in the study"
        yield Finding("counts", "fault", text, remedy)
    else:
        yield Finding("counts", "ok", f"{n} examples")
    if dataset.classes is None:
        return
    counts = torch.bincount(domain.y, minlength=len(dataset.classes)).tolist()
    text = ", ".join(f"{name} {count}" for name, count in zip(dataset.classes, counts, strict=True))
    absent = [name for name, count in zip(dataset.classes, counts, strict=True) if not count]
    if len(dataset.classes) - len(absent) < 2:
        remedy = "check the label column; a site of one class trains towards always answering it"
        yield Finding("classes", "warning", text, remedy)
    elif absent:
        yield Finding(
            "classes", "warning", text, f"no example of {', '.join(absent)}: is that right?"
        )
    else:
        yield Finding("classes", "ok", text)
