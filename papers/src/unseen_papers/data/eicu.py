"""eICU: who dies in hospital, from the drugs ordered at many hospitals' intensive care units."""

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import torch
from torch import Tensor

from unseen.core.turn import keyed
from unseen.data.dataset import DataSet, Domain
from unseen.data.entry import Info
from unseen.data.tables.dialect import number as spelt
from unseen.data.tables.encoding import Schema
from unseen.data.tables.sheet import coded
from unseen.errors import UnseenError
from unseen.ranges import Count, NotNegative, Range, check_all
from unseen_papers.data import eicu_files as files
from unseen_papers.data.eicu_files import CATEGORICAL, DEMOGRAPHICS, EDITIONS, FACTS, Stay

#: Centimetres and kilograms that an adult may have; other values were mistyped and are missing.
PLAUSIBLE = {"admissionheight": (100.0, 250.0), "admissionweight": (20.0, 400.0)}
LICENCES = dict(zip(EDITIONS, FACTS.names["licences"], strict=True))


def load(
    data_dir: str | Path | None,
    *,
    edition: Literal["demo", "full"] = "demo",
    domain: Literal["region", "hospital", "rank"] = "region",
    minimum: Count = 1,
    hospitals: Count | None = None,
    equal: Count | None = None,
    rest: bool = False,
    stays: Literal["all", "first"] = "all",
    hours: NotNegative | None = 48,
    medicated: bool = False,
    drug: Literal["code", "name"] = "code",
    vocabulary: Literal["hashed", "frequent"] = "hashed",
    size: Annotated[int, Range(1, 100_000)] = 1399,
    demographics: bool = False,
) -> DataSet:
    """Load death in hospital, from the drugs ordered early in the stay.

    Args:
        data_dir: The data folder.
        edition: "demo" (open; 2,520 stays, 186 hospitals) or "full" (credentialed; 200,859 stays,
            208 hospitals), which differ in their folders and licences alone. Files with the other
            edition's number of stays are refused.
        domain: "region" (Midwest, Northeast, South, West; stays of hospitals without a region are
            left out), "hospital" (named by hospitalid) or "rank": the hospitals called "1", "2",
            ... from the one with the most stays on, so that a study can say "the 20 largest".
        minimum: Stays that a domain must have.
        hospitals: Keep this many hospitals, the largest; it is an error if there are fewer.
        equal: Draw the stays of this many hospitals, the largest, down to the number of the
            smallest of them, by hospitalid and not by the seed; it is an error if there are fewer.
        rest: With `equal`, the hospitals after those are one domain, "rest", so that its AUROC is
            over all of their stays together.
        stays: "all", or "first": one per patient, the earliest. Otherwise several stays of one
            patient may fall on both sides of a site's validation split.
        hours: An order counts if it starts within this time after the admission to the unit, or
            before it; None: at any time, so that what the dying receive is among the features.
        medicated: Leave out stays without such an order; 42 of the demo's hospitals report no
            drugs.
        drug: "code", the ingredient list (HICL, `drughiclseqno`), which hospitals share, with the
            name where there is no code; or "name": `drugname` in upper case up to the first
            strength, without a package in front, and the code where there is no name. 38 % of the
            demo's orders have a code alone, 4 % a name alone, 2 % neither; the last are passed
            over.
        vocabulary: "hashed", each drug into one of `size` columns by SHA-256, a rule that looks at
            no data, so that drugs may share a column; or "frequent": the `size` drugs of the most
            stays, over all domains, the target too: no label is looked at, but what the target
            prescribes is. A column that no source uses keeps its first weights.
        size: Number of columns.
        demographics: Add age ("> 89" as 90), gender, ethnicity, admission height and weight, as a
            raw table (see `encoding.Schema`), standardised with statistics of the training sites.
            The drugs are then flags: 0 and 1 as without demographics, except that a drug which no
            source uses is left out.

    Returns:
        float32 [N, `size`] of 0 and 1, one column per drug, 1 where an order of it that was not
        cancelled starts early enough; dose and route are not used. The label is
        `hospitaldischargestatus` of patient.csv, "Expired" (1) or "Alive" (0). Stays where it is
        empty are left out; `DataSet.source` says how many, and what else was left out.

    Source:
        The demo or the full database 2.0. FedILC (2022, §5.1.3) has 58 hospitals, the 20 largest
        train, 30,760 patients, 1399 "kinds of medicines taken" as inputs.

    Departs from:
        FedILC did not release its table, and does not say how the hospitals, stays and drugs were
        chosen, nor the window or the column of mortality: all of that is ours here. Its code draws
        the training hospitals down to the size of the 20th. Nearest to it:

            dataset = '''eicu(edition="full", domain="rank", hospitals=58, equal=20, rest=True,
                              stays="first", medicated=True, hours=None, vocabulary="frequent")'''
            validation = 0.3
            [holdout]
            source = ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14",
                      "15", "16", "17", "18", "19", "20"]
            target = ["rest"]
            [training]
            oversample = true
    """
    check_all(load, locals())
    for name, value in (("hospitals", hospitals), ("equal", equal)):
        if value is not None and domain == "region":
            remedy = "Add domain = 'hospital' or 'rank'."
            raise UnseenError(f"{name} is for domains that are hospitals.", remedy=remedy)
    if rest and equal is None:
        raise UnseenError("rest = True pools the hospitals after `equal`.", remedy="Set equal.")
    folder, suffix = files.folder_of(data_dir, edition)
    every = files.read_stays(folder, suffix)
    files.check_edition(folder, len(every), edition)
    selected, reasons = _selected(every, domain, stays)
    orders = files.read_orders(folder / f"medication.csv{suffix}", selected, hours, drug)
    if medicated:
        reasons["no drug in the window"] = sum(stay.id not in orders for stay in selected)
        selected = [stay for stay in selected if stay.id in orders]
    members = _domains(selected, domain, minimum, hospitals, equal, rest)
    sizes = [len(own) for own in members.values()]
    reasons["hospitals not kept or drawn down"] = len(selected) - sum(sizes)
    omitted = ", ".join(f"{count} ({why})" for why, count in reasons.items() if count) or "none"
    if not members:
        raise UnseenError(
            f"no domain of {folder} has minimum = {minimum} stays; left out: {omitted}."
        )
    selected = [stay for own in members.values() for stay in own]
    columns, x = _drugs(selected, orders, vocabulary, size)
    schema, x = _table(selected, columns, x) if demographics else (None, x)
    y = torch.tensor([files.OUTCOMES[stay.outcome] for stay in selected])
    levels = {"region": (*files.REGIONS, "unknown")}
    regions = torch.tensor([levels["region"].index(stay.region or "unknown") for stay in selected])
    parts = zip(members, x.split(sizes), y.split(sizes), regions.split(sizes), strict=True)
    domains = tuple(Domain(name, a, b, meta={"region": codes}) for name, a, b, codes in parts)
    source = f"{FACTS.source} 2.0 ({edition}), {len(every)} stays; left out: {omitted}"
    about = {"source": source, "licence": LICENCES[edition]}
    return FACTS.data(domains, FACTS.labels, schema=schema, levels=levels, **about)


def _selected(stays: Sequence[Stay], domain: str, which: str) -> tuple[list[Stay], dict[str, int]]:
    selected = [stay for stay in stays if stay.outcome]
    reasons = {"outcome unknown": len(stays) - len(selected)}
    if domain == "region":
        reasons["region unknown"] = sum(not stay.region for stay in selected)
        selected = [stay for stay in selected if stay.region]
    if which == "first":
        first: dict[str, Stay] = {}
        for stay in sorted(selected, key=lambda stay: stay.order):
            first.setdefault(stay.patient, stay)
        reasons["later stays of a patient"] = len(selected) - len(first)
        selected = sorted(first.values(), key=lambda stay: stay.order[-1])
    return selected, reasons


def _domains(
    stays: Sequence[Stay],
    domain: str,
    minimum: int,
    hospitals: int | None,
    equal: int | None,
    rest: bool,
) -> dict[str, list[Stay]]:
    """Domain -> its stays: regions by name, hospitals by number or by rank, then the rest."""
    by_name: dict[str, list[Stay]] = {}
    for stay in stays:
        by_name.setdefault(stay.region if domain == "region" else stay.hospital, []).append(stay)
    by_name = {name: members for name, members in by_name.items() if len(members) >= minimum}
    if domain == "region":
        return dict(sorted(by_name.items()))
    for option, count in (("hospitals", hospitals), ("equal", equal)):
        if count is not None and 0 < len(by_name) < count:
            raise UnseenError(
                f"{option} = {count}; {len(by_name)} hospitals have minimum = {minimum} stays.",
                remedy=f"Take an edition with more, or set {option} to {len(by_name)} or fewer.",
            )
    by_number = sorted(by_name, key=lambda n: (int(n) if n.isdigit() else math.inf, n))
    ranked = sorted(by_number, key=lambda name: -len(by_name[name]))[:hospitals]
    if equal is not None and ranked:
        size = len(by_name[ranked[:equal][-1]])
        for name in ranked[:equal]:
            order = torch.randperm(len(by_name[name]), generator=keyed(f"eicu/{name}"))
            by_name[name] = [by_name[name][i] for i in sorted(order[:size].tolist())]
    alone = ranked[:equal] if rest else ranked
    others = [stay for name in ranked[len(alone) :] for stay in by_name[name]]
    if domain == "rank":
        members = {str(i): by_name[name] for i, name in enumerate(alone, 1)}
    else:
        members = {name: by_name[name] for name in by_number if name in alone}
    return members | ({"rest": others} if others else {})


def _drugs(
    stays: Sequence[Stay], orders: Mapping[str, frozenset[str]], vocabulary: str, size: int
) -> tuple[list[str], Tensor]:
    if vocabulary == "frequent":
        counts = Counter(drug for stay in stays for drug in orders.get(stay.id, ()))
        columns = sorted(counts, key=lambda drug: (-counts[drug], drug))[:size]
        place = {drug: j for j, drug in enumerate(columns)}
    else:
        columns = [f"drug column {j}" for j in range(size)]
        drugs = {drug for keys in orders.values() for drug in keys}
        digests = {drug: hashlib.sha256(drug.encode()).digest() for drug in drugs}
        place = {drug: int.from_bytes(sha[:8], "big") % size for drug, sha in digests.items()}
    x = torch.zeros(len(stays), len(columns))
    for i, stay in enumerate(stays):
        x[i, [place[drug] for drug in orders.get(stay.id, ()) if drug in place]] = 1
    return columns, x


def _table(stays: Sequence[Stay], drugs: Sequence[str], x: Tensor) -> tuple[Schema, Tensor]:
    categories: dict[str, tuple[str, ...]] = {}
    values = []
    for j, name in enumerate(DEMOGRAPHICS):
        cells = [stay.demographics[j] for stay in stays]
        if name in CATEGORICAL:
            categories[name], codes = coded([cell or None for cell in cells])
            values.append(codes.float().masked_fill(codes < 0, math.nan))
        else:
            values.append(torch.tensor([_measured(name, cell) for cell in cells]))
    schema = Schema((*DEMOGRAPHICS, *drugs), categories, tuple(drugs))
    return schema, torch.cat([torch.stack(values, dim=1), x], dim=1)


def _measured(name: str, cell: str) -> float:
    """A number, NaN where there is none or none that can be."""
    if name == "age" and cell.startswith(">"):
        return 90.0
    if (value := spelt(cell) if cell else math.nan) is None:
        raise UnseenError(f"{name} of patient.csv holds {cell!r}, which is not a number.")
    low, high = PLAUSIBLE.get(name, (-math.inf, math.inf))
    return value if low <= value <= high else math.nan


INFO = Info(**vars(FACTS), loader=load, locate=files.locate, amounts=files.amounts)
