"""Batches of PACS from the memory-mapped cache against a DataLoader that decodes with Pillow.

    python benchmarks/decoding.py --data-dir DIR [--images 1000] [--stored 227] [--size 224]
        [--batch 64] [--batches 8] [--repeats 5] [--workers 0]

The first images of PACS are written as JPEG files of `stored` pixels, as distributed 227, and
decoded once into the cache. Then both give the same batches, in turn: the cache by its rows, the
loader by opening, decoding and resizing its files; as bytes, and once more as numbers in [0, 1],
which is what training asks for. The first pair warms up and is checked to be equal.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from unseen.core.client import Split, Stored
from unseen.core.turn import keyed
from unseen.data.image_files.cache import decoded
from unseen.data.image_files.images import Tree, View
from unseen.data.image_files.layout import LAYOUTS


class Files(Dataset):
    """Images opened when they are asked for."""

    def __init__(self, paths: list[Path], size: int) -> None:
        self.paths, self.size = paths, size

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> torch.Tensor:
        with Image.open(self.paths[i]) as image:
            shape = (self.size, self.size)
            resized = image.convert("RGB").resize(shape, Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(resized)).permute(2, 0, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    for name, usual in {
        "images": 1000, "stored": 227, "size": 224, "batch": 64, "batches": 8, "repeats": 5,
        "workers": 0,
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=usual)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["UNSEEN_CACHE"] = str(Path(folder) / "cache")
        compare(options, Path(folder) / "images")


def compare(options: argparse.Namespace, root: Path) -> None:
    write(options, root)
    tree, view = Tree(root), View(options.size)
    listed = tree.files()
    begun = time.perf_counter()
    pixels, _ = decoded(tree, listed, view)
    once = time.perf_counter() - begun
    cache = Split(Stored.of(pixels), torch.zeros(len(pixels)))
    files = Files([root / file.path for file in listed], options.size)
    kinds = {
        "bytes": (lambda own: cache.x[own], lambda x: x),
        "numbers": (lambda own: cache.batch(own)[0], lambda x: x.float() / 255),
    }
    times: dict[tuple[str, str], list[float]] = {}
    for repeat in range(options.repeats + 1):
        generator = keyed(f"decoding/{repeat}")
        order = torch.randperm(len(listed), generator=generator).tolist()
        order = order[: options.batch * options.batches]
        rows = [order[i : i + options.batch] for i in range(0, len(order), options.batch)]
        for kind, (take, change) in kinds.items():
            loader = DataLoader(files, batch_sampler=rows, num_workers=options.workers)
            readers = {
                "cache": (take(torch.tensor(own)) for own in rows),
                "loader": (change(x) for x in loader),
            }
            if not repeat:
                assert all(map(torch.equal, *readers.values()))
                continue
            for name, reader in readers.items():
                begun = time.perf_counter()
                for _ in reader:
                    pass
                times.setdefault((kind, name), []).append(time.perf_counter() - begun)
    print(
        f"{len(listed):,} images of {options.stored} pixels, as {options.size}, decoded once in "
        f"{once:.1f} s; batches of {options.batch}, {options.workers} workers, 1 thread; "
        f"{os.cpu_count()} cores {platform.machine()}, load {os.getloadavg()[0]:.1f}"
    )
    images = options.batch * len(rows)
    for kind in kinds:
        pair = times[kind, "cache"], times[kind, "loader"]
        speeds = [images / statistics.median(found) for found in pair]
        low, middle, high = statistics.quantiles([b / a for a, b in zip(*pair, strict=True)], n=4)
        print(
            f"{kind}: {speeds[0]:,.0f} images/s from the cache, {speeds[1]:,.0f} from the loader; "
            f"ratio {middle:.1f} (quartiles {low:.1f} to {high:.1f})"
        )


def write(options: argparse.Namespace, root: Path) -> None:
    """The first images of PACS, as JPEG files of `stored` × `stored` pixels."""
    source = next(
        p for p in (options.data_dir / name for name in LAYOUTS["pacs"].roots) if p.exists()
    )
    tree = Tree(source)
    files = tree.files()[: options.images]
    root.mkdir()
    for i, content in tree.contents(files):
        image = View(options.stored)(content, files[i].path).permute(1, 2, 0).contiguous()
        Image.fromarray(image.numpy()).save(root / f"{i:05d}.jpg", quality=90)


if __name__ == "__main__":
    main()
