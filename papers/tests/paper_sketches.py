"""Sketches of the papers' benchmarks: tiny synthetic files in the place of public data sets."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from support import sketches

from unseen.core.turn import keyed
from unseen.data.digits import ANGLES
from unseen_papers.data import camelyon, fmow, mnist, skin
from unseen_papers.data.eicu_files import MEDICATION, PATIENT, REGIONS
from unseen_papers.data.fmow import YEARS
from unseen_papers.data.poverty import BANDS, COUNTRIES


def write_stand_in(name: str, out: Path) -> Path:
    """Write a data set's stand-in into a folder, with its marker, and return it."""
    return sketches.write_stand_in(name, out, SKETCHES)


def mnist_bars(folder: Path) -> None:
    """Write MNIST and Ghifary's views, one bar for each digit.

    MNIST's four files have the one size that it has, 70,000 digits (0.7 MB packed); Ghifary's 1,000
    bars move a pixel on from view to view.
    """
    root = folder / "mnist"
    root.mkdir(parents=True, exist_ok=True)
    shapes = np.zeros((10, 28, 28), np.uint8)
    small = np.zeros((10, 16, 16), np.float32)
    for digit in range(10):
        shapes[digit, 6 : 8 + digit, 4 + 2 * digit : 7 + 2 * digit] = 255
        small[digit, 3 : 4 + digit, 2 + digit : 4 + digit] = 1
    for part, N in mnist.PARTS.items():
        digits = torch.randint(10, (N,), generator=keyed(f"sketch/mnist/{part}")).numpy()
        for kind, values in (("images", shapes[digits]), ("labels", digits.astype(np.uint8))):
            content = gzip.compress(mnist._header(values.shape) + values.tobytes(), 1, mtime=0)
            (root / f"{part}-{kind}-idx{values.ndim}-ubyte.gz").write_bytes(content)
    views = folder / mnist.GHIFARY.folders[1]
    views.mkdir(parents=True, exist_ok=True)
    y = np.arange(1000, dtype=np.int64) % 10
    x = np.stack([np.roll(small[y], view, axis=1) for view in range(len(ANGLES))])
    np.savez_compressed(views / mnist.VIEWS[0], x=x, y=np.tile(y, (len(ANGLES), 1)))


def cifar_batches(folder: Path) -> None:
    """Write CIFAR-10 in its binary form: five batches of 40 images."""
    root = folder / "cifar-10-batches-bin"
    root.mkdir(parents=True, exist_ok=True)
    for number in range(1, 6):
        generator = keyed(f"sketch/cifar10/{number}")
        labels = torch.arange(40).remainder(10).view(-1, 1)
        images = torch.randint(256, (40, 3072), generator=generator)
        rows = torch.cat([labels, images], dim=1).to(torch.uint8)
        (root / f"data_batch_{number}.bin").write_bytes(rows.numpy().tobytes())


def camelyon_patches(folder: Path) -> None:
    """Write Camelyon17: five hospitals of 12 patches, tinted by hospital and class."""
    generator = keyed("sketch/camelyon17")
    root = folder / "camelyon17_v1.0"
    lines = [",patient,node,x_coord,y_coord,tumor,slide,center,split"]
    for i in range(60):
        center, tumour, x, y = i % 5, (i // 5) % 2, 32 * i, 64 * i
        name = f"patient_{20 * center:03d}_node_{i % 2}"
        file = root / "patches" / name / f"patch_{name}_x_{x}_y_{y}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = torch.randint(60, (96, 96, 3), generator=generator) + 100 + 10 * center
        pixels[32:64, 32:64, 2] -= 60 * tumour
        Image.fromarray(pixels.to(torch.uint8).numpy()).save(file)
        split = int(str(center) in camelyon.SOURCES and i >= 50)
        lines.append(
            f"{i},{20 * center:03d},{i % 2},{x},{y},{tumour},{10 * center},{center},{split}"
        )
    (root / "metadata.csv").write_text("\n".join(lines) + "\n")


def poverty_villages(folder: Path) -> None:
    """Write PovertyMap: five villages of each area of the 23 countries, 8 × 224 × 224.

    Every image is a few coarse squares, so that the files stay small.
    """
    generator = keyed("sketch/povertymap")
    root = folder / "poverty_v1.1"
    (root / "images").mkdir(parents=True, exist_ok=True)
    lines = [",country,wealthpooled,urban"]
    for i in range(10 * len(COUNTRIES)):
        country, urban = COUNTRIES[i % len(COUNTRIES)], (i // len(COUNTRIES)) % 2
        x = torch.randn(len(BANDS), 4, 4, generator=generator)
        x[-1] += urban
        wealth = float(x[-1].mean() - x[0].mean())
        large = x.repeat_interleave(56, dim=1).repeat_interleave(56, dim=2)
        file = root / "images" / f"landsat_poverty_img_{i}.npz"
        np.savez_compressed(file, x=large.numpy())
        lines.append(f"{i},{country},{wealth:.6f},{bool(urban)}")
    (root / "dhs_metadata.csv").write_text("\n".join(lines) + "\n")


def fmow_images(folder: Path) -> None:
    """Write FMoW: 384 images of 224 × 224, two of the classes, all years.

    Every image is one colour by its class with a tint by its year, so that the files stay small.
    """
    root = folder / "fmow_v1.1"
    (root / "images").mkdir(parents=True, exist_ok=True)
    codes = ["KEN", "BRA", "JPN", "FRA", "AUS", "XXX"]
    pairs = zip(codes[:-1], fmow.REGIONS, strict=True)
    mapping = ["name,alpha-3,region", *(f"made,{code},{region}" for code, region in pairs)]
    (root / "country_code_mapping.csv").write_text("\n".join(mapping) + "\n")
    generator = keyed("sketch/fmow")
    tints = torch.randint(60, (24 * len(YEARS),), generator=generator).tolist()
    lines = [",split,category,country_code,timestamp"]
    for i, tint in enumerate(tints):
        year, turn = YEARS[i % len(YEARS)], i // len(YEARS)
        part = ("train", "val", "test", "train")[turn % 4] if i else "seq"
        label = turn // 4 % 2
        colour = (40 + 120 * label, 40 + tint, 60 + 8 * (i % len(YEARS)))
        Image.new("RGB", (224, 224), colour).save(root / "images" / f"rgb_img_{i}.png")
        time = f"{year}-06-15T10:00:00Z"
        code = codes[(turn // 4 + i) % len(codes)]
        lines.append(f"{i},{part},{('zoo', 'airport')[label]},{code},{time}")
    (root / "rgb_metadata.csv").write_text("\n".join(lines) + "\n")


def skin_images(folder: Path) -> None:
    """Write HAM10000: 21 images of each collection, two of every third lesion."""
    generator = keyed("sketch/ham10000")
    root = folder / "HAM10000"
    lines = ["lesion_id,image_id,dx,dx_type,age,sex,localization,dataset"]
    for i in range(84):
        collection, label, part = i % 4, (i // 4) % 7, 1 + i % 2
        lesion = i - 28 if i >= 56 else i
        file = root / f"HAM10000_images_part_{part}" / f"ISIC_{i:07d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = torch.randint(40, (15, 20, 3), generator=generator) + 120 + 15 * collection
        pixels[4:11, 5:15, label % 3] -= 50 + 10 * label
        Image.fromarray(pixels.clamp(0, 255).to(torch.uint8).numpy()).save(file)
        kind = skin.FACTS.labels[label]
        cells = (f"HAM_{lesion:07d}", file.stem, kind, "histo", 50, "female", "back")
        lines.append(",".join(map(str, (*cells, skin.COLLECTIONS[collection]))))
    (root / "HAM10000_metadata").write_text("\n".join(lines) + "\n")


def eicu_editions(folder: Path) -> None:
    """Write eICU: 96 stays at 8 hospitals as the demo, 9,600 at 60 as the full one.

    The files have the columns that are read and no others; no cell comes from a real patient.
    """
    _edition(folder / "eicu_demo", "sketch/eicu", stays=96, hospitals=8)
    _edition(folder / "eicu", "sketch/eicu/full", stays=9600, hospitals=60)


def _edition(folder: Path, purpose: str, stays: int, hospitals: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    draws = torch.randint(100, (stays, 6), generator=keyed(purpose)).tolist()
    places = ["hospitalid,region", *(f"{60 + i},{REGIONS[i % 4]}" for i in range(hospitals))]
    patients = [",".join(PATIENT)]
    orders = [",".join(MEDICATION)]
    for i, (age, sex, outcome, height, weight, drug) in enumerate(draws):
        place = 60 + i % hospitals
        age_text = "> 89" if age > 89 else str(age)
        gender = "Female" if sex % 2 else "Male"
        status = "Expired" if outcome < 20 else "Alive"
        patients.append(
            f"{i + 1},made-{i + 1},{place},{status},2015,1,{age_text},{gender},Other/Unknown,"
            f"{150 + height % 50},{50 + weight}"
        )
        for j in range(1 + drug % 4):
            orders.append(f"{i + 1},{60 * j},No,DRUG {drug % 9},{9000 + (drug + j) % 30}")
        orders.append(f"{i + 1},0,No,,{9100 + outcome // 20}")  # something to be learnt
    for name, lines in {"hospital": places, "patient": patients, "medication": orders}.items():
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


#: Those of unseen's own data sets as well, which studies of the papers name.
SKETCHES: sketches.Sketches = {
    **sketches.SKETCHES,
    "rotated-mnist": mnist_bars,
    "color-mnist": mnist_bars,
    "rotated-cifar10": cifar_batches,
    "camelyon17": camelyon_patches,
    "povertymap": poverty_villages,
    "fmow": fmow_images,
    "ham10000": skin_images,
    "eicu": eicu_editions,
}
