"""Small federations on disk, and the models that are trained on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from unseen.data import load
from unseen.serving.directory import Trained
from unseen.serving.fit import study_of, train

SITES = ("north", "south", "west")
CLASSES = ("cat", "dog")
#: Width and height of images with masks.
SCAN = (20, 12)


def write_table(path: Path, rows: int = 24) -> Path:
    """Three sites; numbers with gaps, a category that one site alone has, two classes, a target."""
    draws = np.random.default_rng(0)
    lines = ["id,site,age,dose,drug,died,score"]
    for k, site in enumerate(SITES):
        for i in range(rows):
            age, dose = draws.normal(60 + k, 8), draws.normal()
            drug = ("a", "b", "c" if site == "west" else "b")[i % 3]
            died = "yes" if age + 8 * dose + draws.normal() > 60 + k else "no"
            gap = "" if i % 7 == 3 else f"{dose:.3f}"
            lines.append(f"{site}-{i},{site},{age:.1f},{gap},{drug},{died},{age / 10 + dose:.3f}")
    path.write_text("\n".join(lines) + "\n")
    return path


def write_photos(root: Path, each: int = 10) -> Path:
    """root/site/class/*.png: a bright half at the left or the right, on another grey per site."""
    draws = np.random.default_rng(1)
    for k, site in enumerate(SITES):
        for c, label in enumerate(CLASSES):
            folder = root / site / label
            folder.mkdir(parents=True)
            for i in range(each):
                pixels = draws.integers(0, 90, (10, 12, 3), dtype=np.uint8) + 20 * k
                pixels[:, 6 * c : 6 * c + 6] += 90
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")
    return root


def write_scans(root: Path, count: int = 8) -> Path:
    """root/site/images and masks/*.png of three drawn sites, of other sides than a model takes."""
    for domain in load(f"ellipses(size=16, count={count})").domains[:3]:
        for i, (x, y) in enumerate(zip(domain.x, domain.y, strict=True)):
            shown = Image.fromarray(x.permute(1, 2, 0).numpy())
            mask = Image.fromarray(y.numpy().astype(np.uint8))
            for part, image, how in (
                ("images", shown, Image.Resampling.BILINEAR),
                ("masks", mask, Image.Resampling.NEAREST),
            ):
                path = root / domain.name / part / f"p{i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                image.resize(SCAN, how).save(path)
    return root


def write_study(path: Path, dataset: str, more: str = "", training: str = "") -> Path:
    """A study's file of two rounds."""
    path.write_text(
        f'dataset = "{dataset}"\nrounds = 2\n{more}\n[training]\nbatch_size = 9\n'
        f'optimiser = "sgd(lr=0.1)"\n{training}\n'
    )
    return path


def table_study(folder: Path, more: str = "", label: str = "died", training: str = "") -> Path:
    """The study of the table, which is written beside it."""
    data = write_table(folder / "visits.csv")
    other = "score" if label == "died" else "died"
    task = "classification" if label == "died" else "regression"
    options = f"domain='site', label='{label}', task='{task}', drop=['id', '{other}']"
    dataset = f"table(path='{data}', {options})"
    return write_study(folder / "visits.toml", dataset, more, training)


def photo_study(folder: Path, more: str = "", training: str = "") -> Path:
    """The study of the photos, which are written beside it."""
    write_photos(folder / "photos")
    dataset = f"folder(path='{folder / 'photos'}', size=8)"
    model = "" if "model =" in more else 'model = "bn-cnn"\n'
    return write_study(folder / "photos.toml", dataset, model + more, training)


def trained(file: Path, out: Path, method: str = "fedavg") -> Trained:
    """The model of a study's file."""
    return train(study_of(str(file), {}, method), out)
