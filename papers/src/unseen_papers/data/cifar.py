"""Rotated CIFAR-10 of FedILC: three clients, each with three angles inside, and all angles."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unseen.core.turn import keyed
from unseen.data.dataset import DataSet, Domain
from unseen.data.entry import Facts, Info
from unseen.data.pickles import UNREADABLE, ArrayUnpickler
from unseen.data.standin import note
from unseen.errors import UnseenError

#: Degrees, counter-clockwise, of the three sub-environments of each client (FedILC, Table 1).
ANGLES = ((10, 25, 40), (60, 75, 90), (-10, -40, -90))
FACTS = Facts.of("rotated-cifar10", "unseen_papers.data")
BATCH = "data_batch_{}"
DRAWN = (
    "CIFAR-10 was read from folders of classes, which keep no order: who holds which images is "
    "drawn, and differs from what the batches give"
)


def load(data_dir: str | Path | None, *, size: int = 32) -> DataSet:
    """Rotated CIFAR-10: "client-1" ... "client-3" and the target "ood"; uint8 [N, 3, S, S].

    Args:
        data_dir: The data folder.
        size: S in pixels: 32, the paper's; or 16, every second pixel before the rotation, one of
            two readings in the released code.

    Returns:
        Of the 50,000 training images the first 40,000 are permuted; the first 30,000 of these are
        dealt out in turn to the nine sub-environments for training, the other 10,000 for validation
        (`Domain.validation`). The last 10,000 images, each at its own angle from U(−90°, 90°), are
        "ood". The metadata column `environment` names the angle. Rotation is to the nearest pixel
        and the corners are black, as torchvision rotates.

    Source:
        FedILC, §5.1.2 and Table 1; who holds which images, the validation split and the
        interpolation follow the released code. Images in folders train/CLASS have no order that
        these could follow: they are permuted first, the same way for everyone.

    Departs from:
        The code in the draws, which are the same for every seed of a study.
    """
    if size not in (16, 32):
        raise UnseenError(f"size of rotated-cifar10 must be 16 or 32; found {size!r}.")
    images, labels = read(data_dir)
    images = images[:, :, :: 32 // size, :: 32 // size]
    angles = [angle for client in ANGLES for angle in client]
    fifth = len(labels) // 5
    order = torch.randperm(4 * fifth, generator=keyed("rotated-cifar10"))
    parts = order.split([3 * fifth, fifth])
    domains = []
    for k in range(len(ANGLES)):
        own = range(3 * k, 3 * k + 3)
        shares = [(part[e :: len(angles)], e) for part in parts for e in own]
        rows = torch.cat([share for share, _ in shares])
        environment = torch.cat([torch.full_like(share, e) for share, e in shares])
        x = turned(images[rows], [angles[e] for e in environment.tolist()])
        validation = torch.arange(sum(len(share) for share, _ in shares[:3]), len(rows))
        meta = {"environment": environment}
        domains.append(Domain(f"client-{k + 1}", x, labels[rows], validation, meta))
    y = labels[4 * fifth :]
    uniform = torch.rand(len(y), generator=keyed("rotated-cifar10/ood")) * 180 - 90
    x = turned(images[4 * fifth :], uniform.tolist())
    domains.append(Domain("ood", x, y, meta={"environment": torch.full_like(y, len(angles))}))
    levels = {"environment": (*map(str, angles), "-90 to 90")}
    notes = (DRAWN,) if folders(data_dir) is not None else ()
    return FACTS.data(domains, (*FACTS.classes,), levels=levels, notes=notes)


def turned(images: Tensor, angles: Sequence[float]) -> Tensor:
    """Turn each image, uint8 [N, 3, H, W], counter-clockwise by its own angle, nearest pixel."""
    from PIL import Image

    rows = images.permute(0, 2, 3, 1).contiguous().numpy()
    pairs = zip(rows, angles, strict=True)
    stack = np.stack([np.asarray(Image.fromarray(row).rotate(angle)) for row, angle in pairs])
    return torch.from_numpy(stack).permute(0, 3, 1, 2).contiguous()


def read(data_dir: str | Path | None) -> tuple[Tensor, Tensor]:
    """Read the training images, uint8 [N, 3, 32, 32], and their labels, int64 [N].

    Args:
        data_dir: The data folder, with the five batches or with folders train/CLASS of PNG images.
    """
    root = folders(data_dir)
    if root is not None:
        return _pictures(root)
    batches = [_batch(data_dir, number) for number in range(1, 6)]
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    return images.view(-1, 3, 32, 32), labels


def folders(data_dir: str | Path | None) -> Path | None:
    """Return the folder of the ten classes' folders, if they are there and no batch is."""
    places = [FACTS.data_folder(data_dir) / folder for folder in FACTS.folders]
    first = BATCH.format(1)
    if any((place / name).is_file() for place in places for name in (first, f"{first}.bin")):
        return None
    roots = (place / "train" for place in places)
    root = next((r for r in roots if all((r / name).is_dir() for name in FACTS.classes)), None)
    if root is not None:
        note(root)
    return root


def locate(data_dir: str | Path | None) -> object:
    """Return where the files are; an error says where they were looked for."""
    return folders(data_dir) or [_path(data_dir, number) for number in range(1, 6)]


def _pictures(root: Path) -> tuple[Tensor, Tensor]:
    """All images, permuted: by class and name the last fifth would be two classes."""
    files = [(file, c) for c, name in enumerate(FACTS.classes) for file in _named(root / name)]
    if not files or len(files) % 5:
        raise UnseenError(
            f"{root} is not CIFAR-10: found {len(files):,} images.", remedy=FACTS.obtain
        )
    order = torch.randperm(len(files), generator=keyed("rotated-cifar10/folders")).tolist()
    images = torch.from_numpy(np.stack([_pixels(files[i][0]) for i in order]))
    labels = torch.tensor([files[i][1] for i in order])
    return images.permute(0, 3, 1, 2).contiguous(), labels


def _named(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix.lower() == ".png")


def _pixels(file: Path) -> np.ndarray:
    from PIL import Image

    try:
        with Image.open(file) as image:
            if (image.size, image.mode) != ((32, 32), "RGB"):
                width, height = image.size
                raise UnseenError(
                    f"the image {file} is not of CIFAR-10, 32 × 32 in colour: found "
                    f"{width} × {height}, mode {image.mode}.",
                    remedy=FACTS.obtain,
                )
            return np.array(image)
    except (OSError, SyntaxError) as error:
        raise UnseenError(f"the image {file} cannot be read: {type(error).__name__}.") from error


def _path(data_dir: str | Path | None, number: int) -> Path:
    name = BATCH.format(number)
    return FACTS.find(data_dir, name, f"{name}.bin")


def _batch(data_dir: str | Path | None, number: int) -> tuple[Tensor, Tensor]:
    path = _path(data_dir, number)
    content = path.read_bytes()
    try:
        if path.suffix == ".bin":
            rows = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(-1, 3073)
            images, labels = rows[:, 1:], rows[:, 0].long()
        else:
            arrays = ArrayUnpickler(io.BytesIO(content)).load()
            images = torch.from_numpy(np.array(arrays["data"], dtype=np.uint8)).view(-1, 3072)
            labels = torch.tensor(arrays["labels"], dtype=torch.int64)
    except UNREADABLE as error:
        raise UnseenError(
            f"{path} is not a batch of CIFAR-10: {error}.", remedy=FACTS.obtain
        ) from error
    if len(images) != len(labels) or len(labels) % 5 or bool((labels > 9).any()):
        raise UnseenError(
            f"{path} is not a batch of CIFAR-10: found {len(images)} images, {len(labels)} labels.",
            remedy=FACTS.obtain,
        )
    return images, labels


INFO = Info(**vars(FACTS), loader=load, locate=locate)
