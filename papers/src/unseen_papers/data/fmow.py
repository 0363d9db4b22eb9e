"""FMoW of WILDS: what a place on a satellite image is used for; regions and years."""

from datetime import UTC, datetime
from pathlib import Path

from unseen.data.dataset import NO_GROUP, DataSet
from unseen.data.entry import Facts, Info
from unseen.data.image_files.images import View
from unseen.data.tables.table_files import stream
from unseen.errors import UnseenError, choice, nearest
from unseen_papers.data import wilds
from unseen_papers.data.wilds import TEST, VALIDATION

FACTS = Facts.of("fmow", "unseen_papers.data")
REGIONS = FACTS.names["regions"]
#: What the file of country codes gives no region: a client, but no group of the metrics.
OTHER = "Other"
YEARS = tuple(map(str, range(2002, 2018)))
#: First year of validation and of test outside of the distribution.
LATER, LAST = 2013, 2016
#: Of the original data; WILDS uses no "seq" image, but counts it in the images' numbers.
PARTS = FACTS.names["parts"]


def load(
    data_dir: str | Path | None, *, clients: str = "year", size: int = 224, limit: int | None = None
) -> DataSet:
    """Load 62 uses of land and buildings from 224 × 224 colour images.

    Args:
        data_dir: The data folder.
        clients: "year" ("2002" ... "2012", the 11 training domains of WILDS) or "region" (images of
            the same years by "Africa", "Americas", "Asia", "Europe", "Oceania", "Other").
        size: S in pixels.
        limit: The most images of each domain, drawn once, for trials; all 130,369 take 19.6 GB once
            decoded.

    Returns:
        uint8 [N, 3, S, S]. Images of the original training split train, those of its validation
        split are `Domain.validation`; those of its test split in these years (WILDS' test inside
        the distribution) are left out. "ood-validation" holds the validation images of 2013 to
        2015, "ood-test" the test images of 2016 and 2017, all regions pooled as WILDS evaluates
        them; later training images and sequestered ones are unused. Years are by UTC.
        Metadata columns: `year`, and `region` with the five names; images of "Other" belong to none
        of its groups, so that, as in WILDS, the average is over all images and
        `worst accuracy@region` over the five.

    Departs from:
        WILDS, which also standardises by ImageNet's pixels: that is the model's part here,
        `densenet121(standardise=True)`.

    Source:
        Koh et al., "WILDS", 2021, §4.1.5; splits and groups as in its package. PPDG (Table 3)
        writes "5 regions in 16 years" and samples five domains a round; it does not say
        which of the two its clients are, so this is an option.

            metrics = ["loss", "accuracy"]
            groups = ["region", "year"]
            metric = "worst accuracy@region"
            [holdout]
            source = ["2002", "2003", "2004", "2005", "2006", "2007", "2008", "2009", "2010",
                      "2011", "2012"]      # or: ["Africa", "Americas", "Asia", "Europe", "Oceania"]
            validation = ["ood-validation"]
            target = ["ood-test"]
    """
    choice("clients", clients, ("year", "region"))
    path = locate(data_dir)
    pairs = stream(_mapping(path.parent), ("alpha-3", "region"))
    regions = {code: region for code, region in pairs if region}
    label = {name: i for i, name in enumerate(FACTS.labels)}
    examples = []
    for i, (part, category, country, time) in enumerate(stream(path, FACTS.names["columns"])):
        region, year = regions.get(country, OTHER), _year(time, path)
        if category not in label:
            raise nearest(f"category in {path}", category, FACTS.labels)
        choice(f"split in {path}", part, PARTS)
        choice(f"region in {path}", region, (*REGIONS, OTHER))
        choice(f"year in {path}", str(year), YEARS)
        parts, name = ({"val"}, VALIDATION) if year < LAST else ({"test"}, TEST)
        if year < LATER:
            parts, name = {"train", "val"}, region if clients == "region" else str(year)
        if part in parts:
            group = NO_GROUP if region == OTHER else REGIONS.index(region)
            meta = {"region": group, "year": YEARS.index(str(year))}
            validates = part == "val" and year < LATER
            example = wilds.Example(f"images/rgb_img_{i}.png", label[category], validates, meta)
            examples.append((name, example))
    levels = {"region": REGIONS, "year": YEARS}
    return wilds.data_set(FACTS, path.parent, examples, View(size), levels, limit)


def locate(data_dir: str | Path | None) -> Path:
    """Return the table of the images; an error says where it or that of countries was sought."""
    path = wilds.table(FACTS, "rgb_metadata.csv", data_dir)
    _mapping(path.parent)
    return path


def _mapping(folder: Path) -> Path:
    return FACTS.find(folder, "country_code_mapping.csv", folders=["."])


def _year(time: str, path: Path) -> int:
    """The year of a timestamp by UTC, which one without a zone is taken to be."""
    try:
        moment = datetime.fromisoformat(time)
    except ValueError:
        raise UnseenError(f"{path} has the timestamp {time!r}, which is not a date.") from None
    return (moment if moment.tzinfo is None else moment.astimezone(UTC)).year


INFO = Info(**vars(FACTS), loader=load, locate=locate)
