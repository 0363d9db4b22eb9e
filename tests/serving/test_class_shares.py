"""The shares of classes that training descended by, counted by hand from the rows of each site."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.federations import trained, write_study

from unseen.serving.transductive import KEY

#: Every row of a site is of one class, so that no split changes a share: 30 yes, 60 no.
SIZES = {"north": ("yes", 30), "south": ("no", 60)}
ROWS, SITES = 2 / 3, 1 / 2  # the share of no where rows count alike, and where sites do
BOOST, FOREST = "boost(trees=2, depth=2)", "forest(trees=2, depth=2)"


def shares(folder: Path, method: str, training: str = "") -> list[float]:
    lines = [f"{site},{40 * (label == 'no') + i % 30 / 7:.3f},{i % 11},{label}"
             for site, (label, count) in SIZES.items() for i in range(count)]  # fmt: skip
    path = folder / "t.csv"
    path.write_text("\n".join(["site,age,dose,died", *lines, ""]))
    dataset = f"table(path='{path}', domain='site', label='died')"
    file = write_study(folder / "t.toml", dataset, 'model = "logistic"', training)
    model = trained(file, folder / "model", method)
    assert model.classes == ("no", "yes")
    found: list[float] = model.spec[KEY]["class shares"]
    assert sum(found) == pytest.approx(1)
    return found


@pytest.mark.parametrize(
    ("method", "share"),
    [
        ("fedavg", SITES),
        ("fedavg+ensemble(members=2)", SITES),
        ("median", SITES),
        ("bag(of='trees(count=2)')", SITES),
        ("fedavg(weights='examples')", ROWS),
        ("bag(of='trees(count=2)', weights='examples')", ROWS),
        ("deepall", ROWS),
        ("glm", ROWS),
        (BOOST, ROWS),
        (FOREST, ROWS),
        ("trees(count=2)", ROWS),
        ("stack(members=['glm', 'fedavg'], groups=2)", (ROWS + SITES) / 2),
        (f"portfolio(members=['fedavg', 'glm', '{BOOST}'], ensemble=2, rates=[0.2, 1], groups=2)",
         (SITES + 2 * ROWS) / 3),
    ],
)  # fmt: skip
def test_rows_or_sites_count_alike_as_the_method_has_it(
    method: str, share: float, tmp_path: Path
) -> None:
    assert shares(tmp_path, method)[0] == pytest.approx(share)


@pytest.mark.parametrize(
    ("method", "training", "share"),
    [
        ("fedavg", "weights = 'method'", ROWS),
        ("glm", "weights = 'method'", ROWS),
        ("fedavg", "weights = 'examples'", ROWS),
        ("fedavg(weights='uniform')", "weights = 'examples'", SITES),
        ("deepall", "balanced = true", SITES),
        ("glm", "balanced = true", ROWS),
        ("bag(of='trees(count=2)', weights='examples')", "balanced = true", ROWS),
    ],
)
def test_weights_and_balance_of_the_study(
    method: str, training: str, share: float, tmp_path: Path
) -> None:
    assert shares(tmp_path, method, training)[0] == pytest.approx(share)
