"""Office-Home, and CSAC's seven domains of Office-Caltech and Office-Home."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from unseen.datasets.dataset import DataSet
from unseen.datasets.entry import info_of_layout
from unseen.datasets.images import View
from unseen.datasets.layout import Layout, read

CLASSES = (
    "Alarm_Clock", "Backpack", "Batteries", "Bed", "Bike", "Bottle", "Bucket", "Calculator",
    "Calendar", "Candles", "Chair", "Clipboards", "Computer", "Couch", "Curtains", "Desk_Lamp",
    "Drill", "Eraser", "Exit_Sign", "Fan", "File_Cabinet", "Flipflops", "Flowers", "Folder",
    "Fork", "Glasses", "Hammer", "Helmet", "Kettle", "Keyboard", "Knives", "Lamp_Shade",
    "Laptop", "Marker", "Monitor", "Mop", "Mouse", "Mug", "Notebook", "Oven", "Pan",
    "Paper_Clip", "Pen", "Pencil", "Postit_Notes", "Printer", "Push_Pin", "Radio",
    "Refrigerator", "Ruler", "Scissors", "Screwdriver", "Shelf", "Sink", "Sneakers", "Soda",
    "Speaker", "Spoon", "TV", "Table", "Telephone", "ToothBrush", "Toys", "Trash_Can", "Webcam",
)  # fmt: skip
HOME = {"Art": ("A",), "Clipart": ("C",), "Product": ("P",), "Real_World": ("R", "Real")}
ROOTS = (
    "OfficeHomeDataset_10072016", "office_home", "OfficeHome", "Office-Home", "OfficeHome_64",
    "office_home/OfficeHomeDataset_10072016", "OfficeHome.tar", "OfficeHome.tar.gz",
)  # fmt: skip
CALTECH_ROOTS = (
    "Office-Caltech-Home", "office_caltech_home", "office_caltech_10", "Office-Caltech10",
    "office-caltech-10", "OfficeCaltech10", "office_caltech",
)  # fmt: skip
OBTAIN = (
    "Office-Home is a folder OfficeHomeDataset_10072016/{Art,Clipart,Product,Real World}/{class} "
    "that its authors hand out at hemanthdv.org."
)
CITATION = """@inproceedings{venkateswara2017deep,
  author = {Venkateswara, Hemanth and Eusebio, Jose and Chakraborty, Shayok and
            Panchanathan, Sethuraman},
  title = {Deep Hashing Network for Unsupervised Domain Adaptation},
  booktitle = {Conference on Computer Vision and Pattern Recognition},
  pages = {5018--5027},
  year = {2017}
}"""

LAYOUT = Layout(
    name="office-home",
    roots=ROOTS,
    domains=HOME,
    classes=dict.fromkeys(CLASSES, ()),
    totals={"Art": 2427, "Clipart": 4365, "Product": 4439, "Real_World": 4357},
    source="Office-Home (Venkateswara et al., 2017), 15,588 images",
    licence="fair-use notice of its authors; non-commercial research",
    obtain=OBTAIN,
    citation=CITATION,
)

CALTECH_HOME = Layout(
    name="office-caltech-home",
    roots=(*CALTECH_ROOTS, *ROOTS),
    domains={
        "Amazon": ("Am",),
        "Webcam": ("We",),
        "Caltech": ("Ca", "Caltech10"),
        **{name: (*others, name[:2]) for name, others in HOME.items() if name != "Real_World"},
        "Real_World": ("Rw", "Real"),
    },
    classes={
        "backpack": (), "bike": (), "calculator": (), "keyboard": (),
        "laptop": ("laptop_computer",), "monitor": (), "mouse": (), "mug": (),
    },
    # Office-Caltech's ten classes less headphones and projector.
    totals={"Amazon": 761, "Webcam": 238, "Caltech": 888},
    parts={"images": "all"},
    source="Office-Caltech (Gong et al., 2012) and Office-Home, the eight classes of both",
    licence="Office-Caltech: none stated; Office-Home: fair-use notice; non-commercial research",
    obtain=(
        f"{OBTAIN} Office-Caltech is a folder {{amazon,caltech,dslr,webcam}}/{{class}}; the "
        "repository FedBN points to a copy of it. Both may lie in one folder."
    ),
    citation="""@inproceedings{gong2012geodesic,
  author = {Gong, Boqing and Shi, Yuan and Sha, Fei and Grauman, Kristen},
  title = {Geodesic flow kernel for unsupervised domain adaptation},
  booktitle = {Conference on Computer Vision and Pattern Recognition},
  pages = {2066--2073},
  year = {2012}
}

"""
    + CITATION,
    subset=True,
    joined=True,
)  # fmt: skip


def load(
    data_dir: str | Path | None,
    *,
    path: str | Path | None = None,
    size: int = 224,
    crop: Literal["none", "centre"] = "none",
) -> DataSet:
    """Office-Home: Art 2,427, Clipart 4,365, Product 4,439, Real_World 4,357; uint8 [N, 3, S, S].

    65 classes. There is no official split; FedDG-GA draws 90/10 from a list in the order of the
    machine's own directory, so no two machines have the same.

    Args:
        data_dir: The data folder.
        path: The folder or tar archive that holds the domains.
        size: S in pixels.
        crop: See `images.View`.
    """
    return read(LAYOUT, data_dir, path, View(size, crop=crop))


def load_caltech_home(
    data_dir: str | Path | None,
    *,
    path: str | Path | None = None,
    size: int = 224,
    crop: Literal["none", "centre"] = "none",
) -> DataSet:
    """Seven domains, Office-Caltech without DSLR and Office-Home, with the eight common classes.

    Args:
        data_dir: The data folder.
        path: The folder or tar archive that holds the domains.
        size: S in pixels.
        crop: See `images.View`.

    Source:
        CSAC, Figure 4, where Amazon, Clipart, Product, Webcam, Art and Caltech join in this order
        and Real_World is the target. The paper does not list the classes; "office8" in its code
        leads to the eight that both data sets have.
    """
    return read(CALTECH_HOME, data_dir, path, View(size, crop=crop))


INFO = info_of_layout(load, "65 things of the office in four styles", LAYOUT)
INFO_CALTECH_HOME = info_of_layout(
    load_caltech_home, "8 things of the office in seven domains", CALTECH_HOME
)
