"""HAM10000: pigmented skin lesions through a dermatoscope, from four collections."""

from pathlib import Path
from typing import Literal

import torch

from unseen.data.dataset import DataSet, Domain, shared_units
from unseen.data.entry import Facts, Info
from unseen.data.image_files.cache import decoded
from unseen.data.image_files.images import Tree, View
from unseen.data.tables.sheet import coded
from unseen.data.tables.table_files import stream
from unseen.errors import Unreadable, UnseenError, choice

FACTS = Facts.of("ham10000", "unseen_papers.data")
COLLECTIONS = (*FACTS.cells,)


def load(
    data_dir: str | Path | None, *, size: int = 224, crop: Literal["none", "centre"] = "none"
) -> DataSet:
    """Load pictures of seven kinds of skin lesions, uint8 [N, 3, S, S].

    Args:
        data_dir: The data folder.
        size: S in pixels. The images have 600 × 450; copies of another size are read as well.
        crop: See `images.View`.

    Returns:
        Domains "rosendahl", "vidir_modern", "vidir_molemax", "vienna_dias", the table's column
        `dataset`; rows in the table's order. Images of one lesion are one unit. Two of the
        collections lack a class.

    Source:
        Tschandl, Rosendahl and Kittler, Scientific Data 5, 2018. FLamby's Fed-ISIC2019 has the same
        four collections and two more; it also evens out colours, and crops.
    """
    path, view = locate(data_dir), View(size, crop=crop)
    tree = Tree(path.parent)
    images = {Path(file.path).stem: file for file in tree.files(depth=2)}
    rows: dict[str, list[tuple[str, str, int]]] = {name: [] for name in COLLECTIONS}
    for image, lesion, label, collection in stream(path, FACTS.names["columns"]):
        choice(f"dataset in {path}", collection, COLLECTIONS)
        choice(f"dx in {path}", label, FACTS.labels)
        rows[collection].append((image, lesion, FACTS.labels.index(label)))
    names, codes = coded([lesion for own in rows.values() for _, lesion, _ in own])
    units = codes.split([len(own) for own in rows.values()])
    domains, faults, readable = [], [], {}
    for (name, own), lesions in zip(rows.items(), units, strict=True):
        if not own:
            raise UnseenError(f"{path} names no image of {name!r}.", remedy=FACTS.obtain)
        files = [images[image] for image, _, _ in own if image in images]
        faulty = [
            f"the image {image} is in no folder next to {path}: unpack all."
            for image, _, _ in own if image not in images
        ]  # fmt: skip
        try:
            x, digest = decoded(tree, files, view)
        except Unreadable as error:
            faulty += error.faults
        readable[name] = len(own) - len(faulty)
        faults += faulty
        if not faults:
            y = torch.tensor([label for _, _, label in own])
            domains.append(Domain(name, x, y, digest=digest, units=lesions))
    if faults:
        unreadable = Unreadable(faults, sum(map(len, rows.values())))
        unreadable.readable = readable
        raise unreadable
    notes = shared_units(domains, names, "lesion_id")
    return FACTS.data(domains, FACTS.labels, notes=tuple(notes))


def locate(data_dir: str | Path | None) -> Path:
    """Return the table of the images; an error says where it was looked for."""
    path = FACTS.find(data_dir, *FACTS.names["tables"])
    next(stream(path, FACTS.names["columns"]), None)
    return path


INFO = Info(**vars(FACTS), loader=load, locate=locate)
