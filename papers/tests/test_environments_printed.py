"""FedILC's Tables 3 and 5, of environments of the sources."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from unseen.studies.execution import Study
from unseen.studies.results.fairness import entropy, offered, variance
from unseen.studies.settings.named import metrics_of
from unseen.studies.settings.published import Figure
from unseen_papers.published import table


def test_the_study_offers_what_tables_3_and_5_show() -> None:
    study = Study.read("fedilc/rotated-cifar10")
    known = offered(study.metrics or (), study.groups)
    assert set(metrics_of("fedilc/table3") + metrics_of("fedilc/table5")) <= set(known)
    assert metrics_of("fedilc/table5") == ("source accuracy@environment",)
    shown = table("fedilc/table5").by_metric()["source accuracy@environment"]
    assert list(shown) == ["FedSGD", "FedCurv", "Fishr+Inter-Geo", "Fishr+Intra-Geo"]
    assert shown["FedCurv"]["client-2/60"] == Figure("42.5", "0.4")
    three = table("fedilc/table3").by_metric()
    assert three["variance source accuracy@environment"]["FedSGD"]["target"].text == "0.809"
    assert three["entropy source accuracy@environment"]["FedSGD"]["target"].text == "21.948"


@pytest.mark.parametrize(
    ("summary", "scale", "metric"),
    [
        (variance, 1000, "variance source accuracy@environment"),
        (entropy, 10, "entropy source accuracy@environment"),
    ],
)
def test_table_5_means_are_as_even_as_table_3_says(
    summary: Callable[[list[float]], float], scale: float, metric: str
) -> None:
    """Of means over five runs: no less even than the mean over runs, by three errors at most."""
    each = table("fedilc/table5").by_metric()["source accuracy@environment"]
    for label, row in table("fedilc/table3").by_metric()[metric].items():
        figure = row["target"]
        found = scale * summary([float(x.value) / 100 for x in each[label].values()])
        assert abs(found - float(figure.value)) < 3 * float(figure.error or 0), label
