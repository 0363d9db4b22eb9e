"""Benchmarks of images in folders: what is where in each, and one loader for all of them.

Source:
    office-caltech-home: CSAC, Figure 4, where Amazon, Clipart, Product, Webcam, Art and Caltech
    join in this order and Real_World is the target. The paper does not list the classes; "office8"
    in its code leads to the eight that both data sets have.

Note:
    What `split="official"` takes; with "none" the study draws from all images, as DomainBed does:
    - pacs: the lists *_train_kfold.txt and *_crossval_kfold.txt (FedDG-GA); labels begin at 1.
    - vlcs: in the copy with folders train, crossval, test, the latter two validate, 30 % of every
      domain (CSAC's 70/30); a target is tested on all its images, at CSAC on its test folder.
    - domainnet: the images in the lists *_train.txt and *_test.txt, of which the latter validate.
    - domainnet10: those in FedBN's lists *_train.pkl and *_test.pkl, pairs of paths and labels.
    - digits-dg: the folders val validate, a fifth of every domain.
    - The others have none. FedDG-GA draws 90/10 of office-home from a list in the order of the
      machine's own directory, so no two machines have the same.

    Papers print 24,788 images of terra-incognita, the number of the first distribution; 24,330 is
    that of what DomainBed's script makes of LILA's files. Classes of domainnet are in the order of
    their folders' names, capitals first; at 224 pixels it takes 88 GB on disk, at 64 pixels 7.2 GB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from unseen.datasets.dataset import DataSet
from unseen.datasets.entry import Info, info_of_layout
from unseen.datasets.images import View
from unseen.datasets.layout import Layout, read
from unseen.datasets.splits import Lists


def entry(
    layout: Layout,
    description: str,
    model: str = "resnet18",
    size: int = 224,
    split: Literal["official", "none"] = "none",
) -> Info:
    """Return a benchmark's entry, with its loader.

    Args:
        layout: Where its images lie.
        description: One line.
        model: What a study takes that names no other.
        size: The loader's default for the side of an image.
        split: The loader's default for the validation rows.
    """

    def load(
        data_dir: str | Path | None,
        *,
        path: str | Path | None = None,
        size: int = size,
        crop: Literal["none", "centre"] = "none",
        split: Literal["official", "none"] = split,
    ) -> DataSet:
        """Read the benchmark's images, uint8 [N, 3, S, S].

        Args:
            data_dir: The data folder.
            path: The folder or tar archive that holds the domains.
            size: S in pixels.
            crop: See `images.View`.
            split: "official" takes the validation rows of the split that is distributed with the
                benchmark; "none" lets the study draw them.
        """
        return read(layout, data_dir, path, View(size, crop=crop), split)

    return info_of_layout(load, description, layout, model)


PACS_CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
PACS = Layout(
    name="pacs",
    roots=(
        "kfold", "PACS", "PACS/kfold", "PACS/raw_images", "pacs", "raw_images",
        "PACS.tar", "PACS.tar.gz", "PACS_64.tar", "pacs_64/PACS_64.tar",
    ),
    domains={
        "art_painting": ("art", "A"), "cartoon": ("C",), "photo": ("P",), "sketch": ("S",),
    },
    classes=dict.fromkeys(PACS_CLASSES, ()),
    totals={"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929},
    cells={  # lines of the official lists *_test_kfold.txt, which hold all images
        "art_painting": dict(zip(PACS_CLASSES, (379, 255, 285, 184, 201, 295, 449), strict=True)),
        "cartoon": dict(zip(PACS_CLASSES, (389, 457, 346, 135, 324, 288, 405), strict=True)),
        "photo": dict(zip(PACS_CLASSES, (189, 202, 182, 186, 199, 280, 432), strict=True)),
        "sketch": dict(zip(PACS_CLASSES, (772, 740, 753, 608, 816, 80, 160), strict=True)),
    },
    lists=Lists(
        "{domain}_train_kfold.txt",
        "{domain}_crossval_kfold.txt",
        ("pacs_splits", "splits", "Train val splits and h5py files pre-read", "correct_txt_lists"),
        first=1,
    ),
    source="PACS (Li, Yang, Song, Hospedales, 2017), 9,991 images",
    licence="none stated; used for research",
    obtain=(
        "PACS is a folder kfold/{art_painting,cartoon,photo,sketch}/{class}; DomainBed's download "
        "script and the Hugging Face data set flwrlabs/pacs hold copies of it, the repository "
        "DeLightCMU/RSC the lists of its split."
    ),
    citation="""@inproceedings{li2017deeper,
  author = {Li, Da and Yang, Yongxin and Song, Yi-Zhe and Hospedales, Timothy M.},
  title = {Deeper, Broader and Artier Domain Generalization},
  booktitle = {International Conference on Computer Vision},
  pages = {5542--5550},
  year = {2017}
}""",
)  # fmt: skip

VLCS = Layout(
    name="vlcs",
    roots=("VLCS", "vlcs", "VLCS.tar", "VLCS.tar.gz", "vlcs.tar.gz"),
    domains={
        "Caltech101": ("CALTECH", "C"), "LabelMe": ("L",), "SUN09": ("SUN", "S"),
        "VOC2007": ("PASCAL", "VOC", "V", "P"),
    },
    classes={"bird": ("0",), "car": ("1",), "chair": ("2",), "dog": ("3",), "person": ("4",)},
    totals={"Caltech101": 1415, "LabelMe": 2656, "SUN09": 3282, "VOC2007": 3376},
    parts={"full": "all", "train": "train", "crossval": "validation", "test": "validation"},
    source="VLCS (Fang, Xu, Rockmore, 2013), 10,729 images of VOC2007, LabelMe, Caltech101, SUN09",
    licence="none stated; used for research; the four data sets have terms of their own",
    obtain=(
        "VLCS is a folder VLCS/{Caltech101,LabelMe,SUN09,VOC2007}/{class} (DomainBed's copy) or "
        "VLCS/{CALTECH,LABELME,SUN,PASCAL}/{full,train,crossval,test}/{0-4} (that of JiGen, RSC "
        "and CSAC); the files of the two copies differ."
    ),
    citation="""@inproceedings{fang2013unbiased,
  author = {Fang, Chen and Xu, Ye and Rockmore, Daniel N.},
  title = {Unbiased Metric Learning: On the Utilization of Multiple Datasets and Web Images for
           Softening Bias},
  booktitle = {International Conference on Computer Vision},
  pages = {1657--1664},
  year = {2013}
}""",
)  # fmt: skip

OFFICE_CLASSES = (
    "Alarm_Clock", "Backpack", "Batteries", "Bed", "Bike", "Bottle", "Bucket", "Calculator",
    "Calendar", "Candles", "Chair", "Clipboards", "Computer", "Couch", "Curtains", "Desk_Lamp",
    "Drill", "Eraser", "Exit_Sign", "Fan", "File_Cabinet", "Flipflops", "Flowers", "Folder", "Fork",
    "Glasses", "Hammer", "Helmet", "Kettle", "Keyboard", "Knives", "Lamp_Shade", "Laptop", "Marker",
    "Monitor", "Mop", "Mouse", "Mug", "Notebook", "Oven", "Pan", "Paper_Clip", "Pen", "Pencil",
    "Postit_Notes", "Printer", "Push_Pin", "Radio", "Refrigerator", "Ruler", "Scissors",
    "Screwdriver", "Shelf", "Sink", "Sneakers", "Soda", "Speaker", "Spoon", "TV", "Table",
    "Telephone", "ToothBrush", "Toys", "Trash_Can", "Webcam",
)  # fmt: skip
OFFICE_HOME = Layout(
    name="office-home",
    roots=(
        "OfficeHomeDataset_10072016", "office_home", "OfficeHome", "Office-Home", "OfficeHome_64",
        "office_home/OfficeHomeDataset_10072016", "OfficeHome.tar", "OfficeHome.tar.gz",
    ),
    domains={"Art": ("A",), "Clipart": ("C",), "Product": ("P",), "Real_World": ("R", "Real")},
    classes=dict.fromkeys(OFFICE_CLASSES, ()),
    totals={"Art": 2427, "Clipart": 4365, "Product": 4439, "Real_World": 4357},
    source="Office-Home (Venkateswara et al., 2017), 15,588 images",
    licence="fair-use notice of its authors; non-commercial research",
    obtain=(
        "Office-Home is a folder OfficeHomeDataset_10072016/{Art,Clipart,Product,Real World}"
        "/{class} that its authors hand out at hemanthdv.org."
    ),
    citation="""@inproceedings{venkateswara2017deep,
  author = {Venkateswara, Hemanth and Eusebio, Jose and Chakraborty, Shayok and
            Panchanathan, Sethuraman},
  title = {Deep Hashing Network for Unsupervised Domain Adaptation},
  booktitle = {Conference on Computer Vision and Pattern Recognition},
  pages = {5018--5027},
  year = {2017}
}""",
)  # fmt: skip
#: Office-Caltech without DSLR, and Office-Home: the eight classes that both have.
OFFICE_CALTECH_HOME = Layout(
    name="office-caltech-home",
    roots=(
        "Office-Caltech-Home", "office_caltech_home", "office_caltech_10", "Office-Caltech10",
        "office-caltech-10", "OfficeCaltech10", "office_caltech", *OFFICE_HOME.roots,
    ),
    domains={
        "Amazon": ("Am",), "Webcam": ("We",), "Caltech": ("Ca", "Caltech10"), "Art": ("A", "Ar"),
        "Clipart": ("C", "Cl"), "Product": ("P", "Pr"), "Real_World": ("Rw", "Real"),
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
        f"{OFFICE_HOME.obtain} Office-Caltech is a folder {{amazon,caltech,dslr,webcam}}/{{class}};"
        " the repository FedBN points to a copy of it. Both may lie in one folder."
    ),
    citation="""@inproceedings{gong2012geodesic,
  author = {Gong, Boqing and Shi, Yuan and Sha, Fei and Grauman, Kristen},
  title = {Geodesic flow kernel for unsupervised domain adaptation},
  booktitle = {Conference on Computer Vision and Pattern Recognition},
  pages = {2066--2073},
  year = {2012}
}

""" + OFFICE_HOME.citation,
    subset=True,
    joined=True,
)  # fmt: skip

LOCATIONS = ("100", "38", "43", "46")
ANIMALS = (
    "bird", "bobcat", "cat", "coyote", "dog", "empty", "opossum", "rabbit", "raccoon", "squirrel",
)  # fmt: skip


def annotated(files: Sequence[Any]) -> dict[str, list[tuple[str, str]]]:
    """Return file name -> location and animal, of LILA's annotations (COCO Camera Traps).

    A picture of two kinds of animals belongs to both classes, as in DomainBed's script.
    """
    places: dict[str, dict[tuple[str, str], None]] = {}
    for file in files:
        animals = {kind["id"]: kind["name"] for kind in file.get("categories", ())}
        images = {image["id"]: image for image in file.get("images", ())}
        for note in file.get("annotations", ()):
            image = images.get(note["image_id"], {})
            animal = animals.get(note.get("category_id"))
            if animal in ANIMALS and str(image.get("location")) in LOCATIONS:
                places.setdefault(image["file_name"], {})[f"L{image['location']}", animal] = None
    return {name: list(pairs) for name, pairs in places.items()}


TERRA_INCOGNITA = Layout(
    name="terra-incognita",
    roots=("terra_incognita", "TerraIncognita", "terra", "terra_incognita.tar.gz"),
    domains={f"L{number}": (f"location_{number}", number) for number in LOCATIONS},
    classes=dict.fromkeys(ANIMALS, ()),
    totals={"L100": 4741, "L38": 9736, "L43": 3970, "L46": 5883},
    source="Caltech Camera Traps (Beery, Van Horn, Perona, 2018), four locations, by LILA BC",
    licence="CDLA-Permissive 1.0",
    obtain=(
        "Terra Incognita is a folder terra_incognita/location_{38,43,46,100}/{class}, which "
        "DomainBed's download script makes of LILA's eccv_18_all_images_sm.tar.gz and json "
        "annotations, and `unseen data import terra-incognita FILE.tar.gz FILE.json` as well."
    ),
    citation="""@inproceedings{beery2018recognition,
  author = {Beery, Sara and Van Horn, Grant and Perona, Pietro},
  title = {Recognition in Terra Incognita},
  booktitle = {European Conference on Computer Vision},
  pages = {456--473},
  year = {2018}
}""",
    annotated=annotated,
)

DOMAINNET = Layout(
    name="domainnet",
    roots=("domain_net", "DomainNet", "domainnet", "DomainNet.tar"),
    domains={
        "clipart": ("clip",), "infograph": ("info",), "painting": ("paint",),
        "quickdraw": ("quick",), "real": (), "sketch": (),
    },
    classes=345,
    totals={
        "clipart": 48_129, "infograph": 51_605, "painting": 72_266, "quickdraw": 172_500,
        "real": 172_947, "sketch": 69_128,
    },
    lists=Lists("{domain}_train.txt", "{domain}_test.txt", ("splits",), only=True),
    source="DomainNet (Peng et al., 2019), cleaned version, 586,575 images of 345 classes",
    licence="fair-use notice of its authors; non-commercial research",
    obtain=(
        "DomainNet is a folder {clipart,infograph,painting,quickdraw,real,sketch}/{class}, six zip "
        "files on ai.bu.edu/M3SDA (the cleaned version), with lists {domain}_train.txt and "
        "{domain}_test.txt."
    ),
    citation="""@inproceedings{peng2019moment,
  author = {Peng, Xingchao and Bai, Qinxun and Xia, Xide and Huang, Zijun and Saenko, Kate and
            Wang, Bo},
  title = {Moment Matching for Multi-Source Domain Adaptation},
  booktitle = {International Conference on Computer Vision},
  pages = {1406--1415},
  year = {2019}
}""",
)  # fmt: skip
TEN = (
    "bird", "feather", "headphones", "ice_cream", "teapot", "tiger", "whale", "windmill",
    "wine_glass", "zebra",
)  # fmt: skip
#: What FedDG-GA calls DomainNet, read from the folders of the whole or of FedBN's copy.
DOMAINNET10 = replace(
    DOMAINNET,
    name="domainnet10",
    classes=dict.fromkeys(TEN, ()),
    totals={},
    lists=Lists("{domain}_train.pkl", "{domain}_test.pkl", ("splits", "lists"), only=True),
    source="DomainNet (Peng et al., 2019), the ten classes of FedBN (Li et al., 2021)",
    subset=True,
)

DIGITS_DG = Layout(
    name="digits-dg",
    roots=("digits_dg", "Digits-DG", "DigitsDG", "digits", "digits_dg.tar.gz"),
    domains={
        "mnist": ("mt",), "mnist_m": ("mm", "MNIST-M"), "svhn": ("sv",),
        "syn": ("sy", "synth", "SynthDigits", "synthetic_digits"),
    },
    classes=dict.fromkeys("0123456789", ()),
    totals=dict.fromkeys(("mnist", "mnist_m", "svhn", "syn"), 6000),
    cells=dict.fromkeys(("mnist", "mnist_m", "svhn", "syn"), dict.fromkeys("0123456789", 600)),
    parts={"train": "train", "val": "validation"},
    source="Digits-DG (Zhou et al., 2020): MNIST, MNIST-M, SVHN, SYN, 600 images per class each",
    licence="none stated; MNIST is CC BY-SA 3.0, SVHN for non-commercial use",
    obtain=(
        "Digits-DG is a folder digits_dg/{mnist,mnist_m,svhn,syn}/{train,val}/{0-9}; the "
        "repository KaiyangZhou/Dassl.pytorch says where a copy is. Folders without train and val "
        "are read as well."
    ),
    citation="""@inproceedings{zhou2020deep,
  author = {Zhou, Kaiyang and Yang, Yongxin and Hospedales, Timothy and Xiang, Tao},
  title = {Deep Domain-Adversarial Image Generation for Domain Generalisation},
  booktitle = {AAAI Conference on Artificial Intelligence},
  pages = {13025--13032},
  year = {2020}
}""",
)  # fmt: skip

INFOS = {
    "pacs": entry(
        PACS, "7 kinds of things, painted, as cartoons, photographed, sketched", split="official"
    ),
    "vlcs": entry(VLCS, "5 kinds of things in photos of four data sets"),
    "office-home": entry(OFFICE_HOME, "65 things of the office in four styles"),
    "office-caltech-home": entry(OFFICE_CALTECH_HOME, "8 things of the office in seven domains"),
    "terra-incognita": entry(TERRA_INCOGNITA, "9 animals or nothing before four camera traps"),
    "domainnet": entry(DOMAINNET, "345 things in six styles"),
    "domainnet10": entry(
        DOMAINNET10, "10 things in six styles, FedBN's subset", "alexnet-bn", size=256
    ),
    "digits-dg": entry(DIGITS_DG, "digits of four sources, 6,000 each", "mnist-cnn", size=32),
}
