"""eICU's three files: stays, and the drugs ordered during them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from unseen.data.entry import Facts, either
from unseen.data.tables.table_files import stream
from unseen.errors import UnseenError

EDITIONS = ("demo", "full")
FACTS = Facts.of("eicu", "unseen_papers.data")
#: Rows of the files of each edition, as its documentation states them.
ROWS: Mapping[str, Mapping[str, int]] = {
    "demo": {"patient": 2520, "medication": 75_604, "hospital": 186},
    "full": {"patient": 200_859, "hospital": 208},
}
REGIONS = FACTS.names["regions"]
OUTCOMES = {"Alive": 0, "Expired": 1}
#: The demographic columns, and those of them that are categorical.
DEMOGRAPHICS = FACTS.names["demographics"]
CATEGORICAL = ("gender", "ethnicity")
PATIENT, MEDICATION = FACTS.names["patient"], FACTS.names["medication"]


@dataclass(frozen=True, slots=True)
class Stay:
    """One stay in an intensive care unit, as text of patient.csv.

    Attributes:
        id: Its number.
        patient: Who stayed.
        hospital: The number of the hospital.
        region: Of the hospital; "" where it is unknown.
        outcome: A key of `OUTCOMES`; "" where it is unknown.
        order: Year, visit and number: one patient's stays in their order.
        demographics: The cells of `DEMOGRAPHICS`.
    """

    id: str
    patient: str
    hospital: str
    region: str
    outcome: str
    order: tuple[int, int, int]
    demographics: tuple[str, ...]


def folder_of(data_dir: str | Path | None, edition: str) -> tuple[Path, str]:
    """Return the folder of all three files, and the suffix of packed files or ""."""
    folders = FACTS.names[edition]
    path = FACTS.find(data_dir, "patient.csv.gz", "patient.csv", folders=folders)
    suffix = ".gz" if path.suffix == ".gz" else ""
    for stem in ("medication", "hospital"):
        FACTS.find(path.parent, f"{stem}.csv{suffix}", folders=["."])
    return path.parent, suffix


def locate(data_dir: Path) -> None:
    """Look for the three files of either edition; an error says where."""
    either(*(partial(folder_of, data_dir, edition) for edition in EDITIONS))


def check_edition(folder: Path, stays: int, edition: str) -> None:
    """Refuse one edition's files as the other's: they differ in licence, and no name tells them."""
    (other,) = set(EDITIONS) - {edition}
    if stays == ROWS[other]["patient"]:
        raise UnseenError(
            f"{folder} holds the {stays:,} stays of the {other} edition, not of {edition!r}.",
            remedy=f"Take edition = {other!r}, or name the folder of the {edition} edition.",
        )


def amounts(
    data_dir: str | Path | None, *, edition: str = "demo", **_others: object
) -> dict[str, tuple[int, int]]:
    """Return what is counted -> rows of the edition's files, and those that it has."""
    folder, suffix = folder_of(data_dir, edition)
    counts = {}
    for stem, total in ROWS[edition].items():
        path = folder / f"{stem}.csv{suffix}"
        key = "hospitalid" if stem == "hospital" else "patientunitstayid"
        counts[f"rows of {path.name}"] = (sum(1 for _ in stream(path, (key,))), total)
    return counts


def read_stays(folder: Path, suffix: str) -> list[Stay]:
    """Return all stays, in the order of their numbers."""
    pairs = stream(folder / f"hospital.csv{suffix}", ("hospitalid", "region"))
    regions = {hospital: region for hospital, region in pairs}
    path = folder / f"patient.csv{suffix}"
    stays = []
    for stay, patient, hospital, outcome, year, visit, *rest in stream(path, PATIENT):
        region = regions.get(hospital, "")
        if outcome not in (*OUTCOMES, "") or region not in (*REGIONS, ""):
            raise UnseenError(
                f"stay {stay} of {path} has the outcome {outcome!r} and the region {region!r}; "
                f"expected one of {', '.join(OUTCOMES)} and of {', '.join(REGIONS)}, or nothing."
            )
        order = (_whole(year, path), _whole(visit, path), _whole(stay, path))
        stays.append(Stay(stay, patient, hospital, region, outcome, order, tuple(rest)))
    return sorted(stays, key=lambda stay: stay.order[-1])


def _whole(text: str, path: Path) -> int:
    try:
        return int(text)
    except ValueError:
        raise UnseenError(f"{path} has {text!r} where a whole number was expected.") from None


def read_orders(
    path: Path, stays: Sequence[Stay], hours: float | None, drug: str
) -> dict[str, frozenset[str]]:
    """Return the drugs of each stay that has any.

    Args:
        path: medication.csv.
        stays: The stays to look at.
        hours: The latest start of an order after the admission; None: any.
        drug: "code" or "name", see `eicu.load`.
    """
    ids = {stay.id for stay in stays}
    drugs: dict[str, set[str]] = {}
    latest = math.inf if hours is None else 60 * hours
    for stay, start, cancelled, name, code in stream(path, MEDICATION):
        if stay in ids and cancelled != "Yes" and _whole(start, path) <= latest:
            by_code = code and (drug == "code" or not name)
            if key := f"HICL {code}" if by_code else normalised(name) or name.upper():
                drugs.setdefault(stay, set()).add(key)
    return {stay: frozenset(keys) for stay, keys in drugs.items()}


def normalised(name: str) -> str:
    """Return a drug's name in upper case, without a package in front and up to the first strength.

    Example:
        >>> normalised("5 ML VIAL : DILTIAZEM HCL 25 MG/5ML IV SOLN")
        'DILTIAZEM HCL'
        >>> normalised("furosemide (LASIX) tab 40 mg"), normalised("100 ML  -  Sodium Chloride 1 %")
        ('FUROSEMIDE LASIX TAB', 'SODIUM CHLORIDE')
    """
    words = name.upper().replace("(", " ").replace(")", " ").split()
    for mark in (":", "-"):
        if mark in words and words[0][0].isdigit():
            words = words[words.index(mark) + 1 :]
    strength = next((i for i, word in enumerate(words) if i and word[0].isdigit()), len(words))
    return " ".join(words[:strength]).strip(" :,-")
