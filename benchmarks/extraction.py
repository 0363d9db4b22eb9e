"""Features of a frozen trunk, from JPEG files to the cache on disk, against the bare forward pass.

    python benchmarks/extraction.py [--model efficientnet-lite0] [--images 1024] [--stored 227]
        [--size 224] [--batch 64] [--repeats 3]

Photographs are drawn, and written as JPEG files of `stored` pixels. In turn, `repeats` times: the
bare pass takes tensors that are in memory through the network in evaluation mode, all threads in
one pass of `batch` images, freed memory kept; the whole way decodes the files, keeps the pixels,
computes the features and keeps these, in a folder that is empty. The ratio of the medians is what
counts, on a quiet machine: to build the network once and to fold it takes a second or so, which few
images do not pay for. Weights are random: they cost the same.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from unseen.core.row_store import keep_freed_memory
from unseen.core.turn import keyed
from unseen.data.image_files.folder import load
from unseen.data.networks import build
from unseen.data.networks.stages import cut
from unseen.data.networks.weight_files import Source
from unseen.studies.execution.frozen import cores, featured
from unseen.studies.settings.study import StudySpec

GOAL = 1.3


def write(root: Path, count: int, side: int) -> None:
    """Smooth colours with noise, which compress like photographs."""
    draws = np.random.default_rng(0)
    folder = root / "site" / "class"
    folder.mkdir(parents=True)
    for i in range(count):
        coarse = Image.fromarray(draws.integers(0, 256, (12, 12, 3), dtype=np.uint8))
        pixels = np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC), dtype=float)
        noisy = np.clip(pixels + draws.normal(0, 8, pixels.shape), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(folder / f"{i}.jpg", quality=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--model", default="efficientnet-lite0")
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--stored", type=int, default=227)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    keep_freed_memory()
    shape = (3, asked.size, asked.size)
    with tempfile.TemporaryDirectory() as place:
        here = Path(place)
        write(here / "photos", asked.images, asked.stored)
        network = build(asked.model, shape, 10, keyed("weights"))
        torch.save(network.state_dict(), here / "net.pth")
        weights = Source.of(here / "net.pth", None)
        study = StudySpec(model=asked.model, weights="net.pth", freeze="trunk")
        trunk, _ = cut(network, "trunk")
        trunk = trunk.to(memory_format=torch.channels_last)
        x = torch.rand(asked.images, *shape, generator=keyed("images"))
        x = x.contiguous(memory_format=torch.channels_last)

        def bare() -> None:
            torch.set_num_threads(cores())
            with torch.inference_mode():
                for some in x.split(asked.batch):
                    trunk(some)

        def whole(k: int) -> None:
            os.environ["UNSEEN_CACHE"] = str(here / f"cache-{k}")
            data = load(here / "photos", size=asked.size)
            featured(data, study, asked.model, weights, here)

        bare()  # the first pass chooses kernels
        times: dict[str, list[float]] = {"bare": [], "whole": []}
        for k in range(asked.repeats):
            for name, work in (("bare", bare), ("whole", lambda k=k: whole(k))):
                begin = time.perf_counter()
                work()
                times[name].append(time.perf_counter() - begin)
    seconds = {name: statistics.median(values) for name, values in times.items()}
    for name, value in seconds.items():
        print(f"{name:6} {value:7.2f} s {asked.images / value:7.0f} images/s")
    ratio = seconds["whole"] / seconds["bare"]
    print(
        f"whole / bare {ratio:.2f}, at most {GOAL} wanted: {'met' if ratio <= GOAL else 'NOT met'}"
    )


if __name__ == "__main__":
    main()
