"""Camelyon17, PovertyMap and FMoW, read from stand-ins of the folders that WILDS distributes."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from paper_sketches import SKETCHES
from PIL import Image
from torch import nn

from unseen.core.client import Client, Split
from unseen.core.metrics.evaluation import Evaluate
from unseen.core.turn import Turn, keyed
from unseen.core.vector import Model
from unseen.data import datasets, summary
from unseen.data.dataset import NO_GROUP, DataSet, check
from unseen.data.networks import build
from unseen.data.tables import table_files
from unseen.errors import UnseenError
from unseen.expression import parse
from unseen.studies.execution import Study
from unseen.studies.results.selection import value
from unseen.studies.settings.holdout import Fixed, plan
from unseen_papers.data import camelyon, fmow, poverty

MODULES = {"camelyon17": camelyon, "povertymap": poverty, "fmow": fmow}
TABLES = {
    "camelyon17": "camelyon17_v1.0/metadata.csv",
    "povertymap": "poverty_v1.1/dhs_metadata.csv",
    "fmow": "fmow_v1.1/rgb_metadata.csv",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("wilds")
    for name in MODULES:
        SKETCHES[name](made)
    return made


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNSEEN_CACHE", "off")


def load(name: str, folder: Path, **options: Any) -> DataSet:
    return check(MODULES[name].load(folder, **options))


def sizes(data: DataSet) -> dict[str, int]:
    return {domain.name: len(domain.y) for domain in data.domains}


def held(data: DataSet, name: str) -> int:
    rows = data[name].validation
    return 0 if rows is None else len(rows)


def test_published_counts_add_up() -> None:
    """Koh et al. 2021: 455,954 patches, of which 302,436 + 33,560 at the training hospitals."""
    totals = camelyon.FACTS.totals
    assert sum(totals.values()) == 455_954
    assert sum(totals[name] for name in camelyon.SOURCES) == 302_436 + 33_560
    assert 9797 + 1000 + 1000 + sum(poverty.FACTS.totals.values()) == 19_669
    assert 76_863 + 11_483 + sum(fmow.FACTS.totals.values()) == 130_369
    assert len(fmow.FACTS.labels) == len(set(fmow.FACTS.labels)) == 62
    assert list(fmow.FACTS.labels) == sorted(fmow.FACTS.labels)


def test_camelyon_has_as_many_tumour_patches_as_others() -> None:
    for center, classes in datasets()["camelyon17"].cells.items():
        assert set(classes) == set(camelyon.FACTS.labels) and len(set(classes.values())) == 1
        assert sum(classes.values()) == camelyon.FACTS.totals[center]


@pytest.mark.parametrize(
    ("name", "shape", "outputs", "parameters"),
    [
        # DenseNet-121 has 6,953,856 parameters below its head, ResNet-18 11,176,512 for 3 bands.
        ("camelyon17", (3, 96, 96), 2, 6_953_856 + 1025 * 2),
        ("fmow", (3, 224, 224), 62, 6_953_856 + 1025 * 62),
        ("povertymap", (8, 224, 224), 1, 11_176_512 + 5 * 64 * 49 + 513),
    ],
)
def test_the_usual_models_are_those_of_wilds(
    name: str, shape: tuple[int, ...], outputs: int, parameters: int
) -> None:
    net = build(datasets()[name].model, shape, outputs, keyed("net"))
    assert sum(p.numel() for p in net.parameters()) == parameters


def test_camelyon_patches_hospitals_and_splits(folder: Path) -> None:
    data = load("camelyon17", folder)
    assert data.names == camelyon.HOSPITALS and set(sizes(data).values()) == {12}
    assert [held(data, name) for name in data.names] == [2, 0, 0, 2, 2]
    table = list(table_files.stream(folder / TABLES["camelyon17"], camelyon.FACTS.names["columns"]))
    own = [row for row in table if row[6] == "3"]
    domain = data["3"]
    assert domain.y.tolist() == [int(row[4]) for row in own]
    patient, node, x, y = own[5][:4]
    stem = f"patient_{patient}_node_{node}"
    path = folder / f"camelyon17_v1.0/patches/{stem}/patch_{stem}_x_{x}_y_{y}.png"
    expected = np.asarray(Image.open(path).convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(domain.x[5].numpy(), expected)
    assert data.levels["slide"][int(domain.meta["slide"][5])] == own[5][5]
    assert load("camelyon17", folder, size=32)["0"].x.shape == (12, 3, 32, 32)


#: The lists of the WILDS package, as they stand there.
FOLDS = {
    "A": (
        "cameroon democratic_republic_of_congo ghana kenya lesotho malawi mozambique nigeria "
        "senegal togo uganda zambia zimbabwe",
        "benin burkina_faso guinea sierra_leone tanzania",
        "angola cote_d_ivoire ethiopia mali rwanda",
    ),
    "B": (
        "angola cote_d_ivoire democratic_republic_of_congo ethiopia kenya lesotho mali mozambique "
        "nigeria rwanda senegal togo uganda zambia",
        "cameroon ghana malawi zimbabwe",
        "benin burkina_faso guinea sierra_leone tanzania",
    ),
    "C": (
        "angola benin burkina_faso cote_d_ivoire ethiopia guinea kenya lesotho mali rwanda senegal "
        "sierra_leone tanzania zambia",
        "democratic_republic_of_congo mozambique nigeria togo uganda",
        "cameroon ghana malawi zimbabwe",
    ),
    "D": (
        "angola benin burkina_faso cameroon cote_d_ivoire ethiopia ghana guinea malawi mali rwanda "
        "sierra_leone tanzania zimbabwe",
        "kenya lesotho senegal zambia",
        "democratic_republic_of_congo mozambique nigeria togo uganda",
    ),
    "E": (
        "benin burkina_faso cameroon democratic_republic_of_congo ghana guinea malawi mozambique "
        "nigeria sierra_leone tanzania togo uganda zimbabwe",
        "angola cote_d_ivoire ethiopia mali rwanda",
        "kenya lesotho senegal zambia",
    ),
}


@pytest.mark.parametrize("fold", poverty.FOLDS)
def test_poverty_folds_are_those_of_wilds(fold: str) -> None:
    found = poverty.countries(fold)
    parts = zip(("train", "validation", "test"), FOLDS[fold], strict=True)
    assert found == {part: tuple(names.split()) for part, names in parts}


def test_poverty_images_inside_the_distribution_are_those_of_wilds() -> None:
    """A transcription: shuffle with seed + 541433; 2,000 to evaluate, half of them each."""
    sources = np.arange(0, 36_000, 3)
    idxs = sources.copy()
    np.random.default_rng(ord("B") + 541433).shuffle(idxs)
    evaluated = idxs[:2000]
    found = poverty._inside(sources.tolist(), "B")
    assert found == (set(evaluated[:1000].tolist()), set(evaluated[1000:].tolist()))


def test_poverty_clients_are_country_by_area(folder: Path) -> None:
    data = load("povertymap", folder)
    sources = data.names[:-2]
    assert data.names[-2:] == ("ood-validation", "ood-test") and data.classes is None
    wanted = [f"{c}-{a}" for c in FOLDS["A"][0].split() for a in ("rural", "urban")]
    assert list(sources) == wanted and len(wanted) == 26
    assert sizes(data)["ood-test"] == sizes(data)["ood-validation"] == 5 * 10
    inside = 13 * 10 // 10  # a tenth of a stand-in's training images; 1,000 of the real ones
    assert sum(sizes(data)[name] for name in sources) == 13 * 10 - inside
    assert sum(held(data, name) for name in sources) == inside
    (task,) = plan(Study.read("ppdg/table2").holdout, data.names)
    assert list(task.sources) == wanted
    assert 'source = "others"' in (poverty.load.__doc__ or "")


def test_poverty_numbers_are_the_files_own(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = list(table_files.stream(folder / TABLES["povertymap"], poverty.FACTS.names["columns"]))
    own = [i for i, row in enumerate(table) if row[0] in FOLDS["A"][2].split()]
    x = np.load(folder / f"poverty_v1.1/images/landsat_poverty_img_{own[7]}.npz")["x"]
    test = load("povertymap", folder)["ood-test"]
    assert test.x.dtype == torch.float32 and test.x.shape == (50, 8, 224, 224)
    assert np.array_equal(test.x[7].numpy(), x)
    assert test.y[7].item() == pytest.approx(float(table[own[7]][2]))
    assert test.meta["urban"].tolist() == [int(table[i][1] == "True") for i in own]
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path))
    small = [load("povertymap", folder, size=8)["ood-test"] for _ in range(2)]
    assert torch.equal(small[0].x, small[1].x) and small[0].x.dtype == torch.float32
    means = x.astype(float).reshape(8, 8, 28, 8, 28).mean((2, 4))
    np.testing.assert_allclose(small[0].x[7].numpy(), means, atol=1e-6)


@pytest.mark.parametrize("fold", poverty.FOLDS)
def test_every_fold_of_the_sketch_has_clients_that_can_train(
    folder: Path, fold: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poverty, "Bands", _Nothing)
    data = poverty.load(folder, fold=fold, pooled=False, size=1)
    assert len(data.names) == 46 and min(sizes(data).values()) >= 2
    assert all(d.name.split("-")[1] in poverty.AREAS for d in data.domains)


class _Nothing(poverty.Bands):
    """Reads no image."""

    def __call__(self, content: bytes, where: str) -> torch.Tensor:
        return torch.zeros(self.shape, dtype=torch.uint8)


def test_fmow_years_regions_and_splits(folder: Path) -> None:
    data = load("fmow", folder, size=8)
    assert data.names == (*map(str, range(2002, 2013)), "ood-validation", "ood-test")
    table = list(table_files.stream(folder / TABLES["fmow"], fmow.FACTS.names["columns"]))
    counts = Counter((row[3][:4], row[0]) for row in table)
    assert sizes(data)["2005"] == counts["2005", "train"] + counts["2005", "val"]
    assert held(data, "2005") == counts["2005", "val"]
    assert sizes(data)["2002"] == counts["2002", "train"] + counts["2002", "val"]  # not the "seq"
    later = sum(counts[str(year), "val"] for year in (2013, 2014, 2015))
    assert sizes(data)["ood-validation"] == later and held(data, "ood-validation") == 0
    own = [i for i, row in enumerate(table) if row[0] == "test" and row[3][:4] in ("2016", "2017")]
    test = data["ood-test"]
    names = [fmow.FACTS.labels[c] for c in test.y.tolist()]
    assert names == [table[i][1] for i in own]
    picture = Image.open(folder / f"fmow_v1.1/images/rgb_img_{own[3]}.png").resize((8, 8))
    assert test.x[3, :, 4, 4].tolist() == list(picture.getpixel((4, 4)))  # type: ignore[arg-type]
    code = {"KEN": "Africa", "BRA": "Americas", "JPN": "Asia", "FRA": "Europe", "AUS": "Oceania"}
    groups = test.meta["region"].tolist()
    regions = ["Other" if c == NO_GROUP else data.levels["region"][c] for c in groups]
    assert regions == [code.get(table[i][2], "Other") for i in own] and "Other" in regions


def test_fmow_clients_may_be_regions(folder: Path) -> None:
    by_year = load("fmow", folder, size=1)
    data = load("fmow", folder, size=1, clients="region")
    assert data.names == (*fmow.REGIONS, "Other", "ood-validation", "ood-test")
    assert sum(sizes(data).values()) == sum(sizes(by_year).values())
    assert set(data["Asia"].meta["year"].tolist()) <= set(range(11))
    assert set(data["Asia"].meta["region"].tolist()) == {fmow.REGIONS.index("Asia")}
    assert set(data["Other"].meta["region"].tolist()) == {NO_GROUP}


def test_fmow_is_measured_as_wilds_measures_it(folder: Path) -> None:
    """Its evaluation, transcribed: all images in the average, "Other" in no worst region."""
    data = load("fmow", folder, size=1)
    test = data["ood-test"]
    table = list(table_files.stream(folder / TABLES["fmow"], fmow.FACTS.names["columns"]))
    countries = [row[2] for row in table if row[0] == "test" and row[3][:4] in ("2016", "2017")]
    right = [(i % 4 > 0) if country != "XXX" else False for i, country in enumerate(countries)]
    found = []
    for country in ("KEN", "BRA", "JPN", "FRA", "AUS", "XXX", "nobody's"):
        own = [ok for ok, c in zip(right, countries, strict=True) if c == country]
        if not own or country == "XXX":
            continue
        found.append(sum(own) / len(own))
    predicted = torch.where(torch.tensor(right), test.y, (test.y + 1) % 62)
    split = Split(nn.functional.one_hot(predicted, 62).float(), test.y, test.meta)
    levels = {column: len(names) for column, names in data.levels.items()}
    evaluate = Evaluate("validation", ("accuracy",), groups=levels)
    client = Client("ood-test", None, split, 62)
    reply, _ = evaluate(Model(nn.Identity()), {}, client, {}, Turn(0, 0, 1))
    named = {
        f"{kind}@region": dict(
            zip(
                data.levels["region"],
                torch.as_tensor(reply.scalars[f"{kind}@region"]).tolist(),
                strict=True,
            )
        )
        for kind in ("accuracy", "examples")
    }
    assert reply.scalars["accuracy"] == pytest.approx(sum(right) / len(right))
    assert value(named, "worst accuracy@region") == pytest.approx(min(found)) != 0
    assert sum(named["examples@region"].values()) == len(countries) - countries.count("XXX")
    assert countries.count("XXX") > 0


@pytest.mark.parametrize(
    ("time", "year"),
    [
        ("2012-12-31T23:30:00Z", 2012),
        ("2012-12-31T23:30:00-01:00", 2013),
        ("2015-03-01T00:00:00", 2015),
    ],
)
def test_fmow_years_are_by_utc(time: str, year: int) -> None:
    assert fmow._year(time, Path("rgb_metadata.csv")) == year


@pytest.mark.parametrize("name", MODULES)
def test_a_limit_draws_the_same_images_every_time(name: str, folder: Path) -> None:
    options: dict[str, Any] = {"limit": 3, "size": 4}
    first, again = load(name, folder, **options), load(name, folder, **options)
    for a, b in zip(first.domains, again.domains, strict=True):
        assert len(a.y) <= 3 and torch.equal(a.x, b.x) and torch.equal(a.y, b.y)


def test_the_recommended_plans_name_domains_that_are_there(folder: Path) -> None:
    ood = {"validation": ("ood-validation",), "target": ("ood-test",)}
    data = load("camelyon17", folder, size=4)
    fixed = Fixed(source=camelyon.SOURCES, validation=("1",), target=("2",))
    assert plan(fixed, data.names)[0].sources == ("0", "3", "4")
    for clients, source in (("year", fmow.YEARS[:11]), ("region", fmow.REGIONS)):
        names = load("fmow", folder, size=1, clients=clients).names
        assert plan(Fixed(source=source, **ood), names)[0].sources == source


@pytest.mark.parametrize("name", MODULES)
def test_what_is_not_there_is_named(name: str, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UnseenError) as caught:
        load(name, tmp_path)
    message = str(caught.value)
    assert Path(TABLES[name]).name in message and "wilds.stanford.edu" in message
    with pytest.raises(UnseenError, match="UNSEEN_DATA"):
        MODULES[name].load(None)
    source = folder / TABLES[name]
    made = tmp_path / TABLES[name]
    made.parent.mkdir()
    made.write_text(source.read_text())
    if name == "fmow":
        mapping = source.parent / "country_code_mapping.csv"
        (made.parent / mapping.name).write_text(mapping.read_text())
    with pytest.raises(UnseenError, match="the image .* is not in .*: unpack all"):
        load(name, tmp_path)


@pytest.mark.parametrize("damage", ["missing", "damaged"])
@pytest.mark.parametrize("name", MODULES)
def test_one_unreadable_image_leaves_the_counts_of_the_others(
    name: str, damage: str, tmp_path: Path
) -> None:
    SKETCHES[name](tmp_path)
    before = {
        found.name: found.count for found in summary.inspect(parse(name)[0], tmp_path).domains
    }
    images = (p for p in tmp_path.rglob("*") if p.suffix in (".png", ".npz"))
    one = sorted(p for p in images if "image" in str(p) or "patch" in str(p))[1]
    if damage == "missing":
        one.unlink()
    else:
        one.write_bytes(b"nothing")
    found = summary.inspect(parse(name)[0], tmp_path)
    after = {domain.name: domain.count for domain in found.domains}
    assert len(found.unreadable) == 1 and one.name in found.unreadable[0]
    assert after.keys() == before.keys() and sum(before.values()) - sum(after.values()) == 1


@pytest.mark.parametrize(
    ("name", "old", "new", "fault"),
    [
        ("camelyon17", ",000,0,0,0,0,", ",000,0,0,0,2,", "must be one of '0', '1'; found '2'"),
        ("camelyon17", ",center", ",hospital", "unknown column"),
        ("povertymap", ",kenya,", ",kenia,", "did you mean 'kenya'"),
        ("povertymap", ",True", ",yes", "found 'yes'"),
        ("fmow", ",zoo,", ",zo,", "did you mean 'zoo'"),
        ("fmow", "2017-06", "2019-06", "found '2019'"),
        ("fmow", "2017-06-15", "yesterday", "which is not a date"),
    ],
)
def test_unsound_metadata_is_refused(
    name: str, old: str, new: str, fault: str, folder: Path, tmp_path: Path
) -> None:
    for file in (folder / TABLES[name]).parent.iterdir():
        made = tmp_path / TABLES[name].split("/")[0] / file.name
        made.parent.mkdir(exist_ok=True)
        if file.is_dir():
            made.symlink_to(file)
        else:
            text = file.read_text()
            assert file.name != Path(TABLES[name]).name or old in text
            made.write_text(text.replace(old, new))
    with pytest.raises(UnseenError) as caught:
        load(name, tmp_path)
    assert fault in str(caught.value)


def test_damaged_arrays_are_named() -> None:
    view = poverty.Bands(224)
    with pytest.raises(UnseenError, match="b.npz holds no array x"):
        view(b"not a zip", "b.npz")
    arrays = {"few": np.zeros((7, 9, 9)), "last": np.zeros((9, 9, 8)), "nan": np.zeros((8, 9, 9))}
    arrays["nan"][3, 4, 5] = np.nan
    for name, x in arrays.items():
        content = io.BytesIO()
        np.savez(content, x=x)
        with pytest.raises(UnseenError, match=f"{name}.npz: x must be finite"):
            view(content.getvalue(), f"{name}.npz")
