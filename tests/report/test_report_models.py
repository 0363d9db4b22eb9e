"""Loss surfaces and maps of features, on nets small enough to know the answer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from unseen.errors import UnseenError
from unseen.studies.execution import Study
from unseen.studies.report.models import coloured, embedding, features, plane, sections, surface
from unseen.studies.report.read import Choice, read
from unseen.studies.report.write import report


def test_the_plane_goes_through_the_three_models() -> None:
    draw = torch.Generator().manual_seed(0)
    models = {n: torch.randn(7, generator=draw, dtype=torch.float64) for n in "abc"}
    mean = torch.stack(list(models.values())).mean(0)
    found = plane(models, ("global", mean))
    for name, model in models.items():
        torch.testing.assert_close(found.at(*found.points[name]), model)
    torch.testing.assert_close(found.at(*found.points["global"]), mean)
    assert max(found.off.values()) < 1e-12
    assert float(found.u @ found.v) == pytest.approx(0, abs=1e-12)
    # Distances in the plane are those of the models.
    (a, b), (c, d) = found.points["b"], found.points["c"]
    assert (a - c) ** 2 + (b - d) ** 2 == pytest.approx(
        float((models["b"] - models["c"]).norm() ** 2)
    )


def test_what_is_off_the_plane_is_projected() -> None:
    models = {n: torch.eye(4, dtype=torch.float64)[i] for i, n in enumerate("abc")}
    found = plane(models, ("global", torch.tensor([0.0, 0.0, 0.0, 3.0])))
    # The centre of the three is nearest to it.
    nearest = found.at(*found.points["global"])
    torch.testing.assert_close(nearest, torch.tensor([1 / 3, 1 / 3, 1 / 3, 0], dtype=torch.float64))
    assert found.off["global"] == pytest.approx((9 + 1 / 3) ** 0.5)


def test_the_surface_of_a_bowl() -> None:
    models = {n: 2 * torch.eye(3)[i] for i, n in enumerate("abc")}
    found = plane(models, ("global", torch.full((3,), 2 / 3)))
    made = surface(found, lambda vector: float(vector @ vector), "bowl", cells=5)
    # On x + y + z = 2, the sum of squares is that at the centre plus the distance to it squared.
    a, b = found.points["global"]
    for y, row in zip(made.y, made.values, strict=True):
        for x, value in zip(made.x, row, strict=True):
            assert value == pytest.approx(4 / 3 + (x - a) ** 2 + (y - b) ** 2, rel=1e-5)
    assert {name for name, _, _ in made.names} == {"a", "b", "c", "global"}


def test_models_on_one_line_span_no_plane() -> None:
    one = torch.ones(3)
    with pytest.raises(UnseenError, match="lie on one line"):
        plane({"a": one, "b": 2 * one, "c": 3 * one}, ("global", one))


def test_features_are_what_enters_the_last_layer() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(), nn.Linear(4, 2)).train()
    x = torch.randn(5, 3)
    torch.testing.assert_close(features(net, x), net[1](net[0](x)).detach())
    assert net.training
    with pytest.raises(UnseenError, match="linear layer"):
        features(nn.Conv2d(1, 1, 1), x)


def test_tsne_keeps_clusters_together() -> None:
    pytest.importorskip("openTSNE")
    draw = torch.Generator().manual_seed(0)
    rows = torch.cat([torch.randn(20, 5, generator=draw) + 20 * i for i in range(2)])
    found = embedding(rows)
    assert torch.equal(found, embedding(rows))
    centres = found.unflatten(0, (2, 20)).mean(1)
    spread = (found.unflatten(0, (2, 20)) - centres[:, None]).norm(dim=-1).max()
    assert (centres[0] - centres[1]).norm() > spread
    labels = {"class": ["0"] * 20 + ["1"] * 20, "domain": ["a", "b"] * 20}
    by_class, by_domain = coloured(found, labels)
    assert by_class.labels == ("0", "1") and by_domain.labels == ("a", "b")


def test_from_a_study_that_saved_its_models(tmp_path: Path) -> None:
    pytest.importorskip("openTSNE")
    from functools import partial

    study = Study(
        methods=("fedavg",), targets=("0",), seeds=1, rounds=1, save=("final", "locals"),
        model="mlp(widths=[8])",
    )  # fmt: skip
    study.run(tmp_path)
    page = report(
        [tmp_path], tmp_path / "report", files=False, further=partial(sections, data_dir=tmp_path)
    ).read_text()
    assert "fedavg, target 0: features" in page and "coloured by class" in page
    assert "fedavg, target 0: loss around the global model" in page
    assert "around 15, 30, 45, global" in page


def test_a_chapter_without_its_package_says_so_and_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Study(
        methods=("fedavg",), targets=("0",), seeds=1, rounds=1, save=("final", "locals"),
        model="mlp(widths=[8])",
    )  # fmt: skip
    study.run(tmp_path)
    monkeypatch.setitem(sys.modules, "openTSNE", None)
    features, surfaces = sections(read([tmp_path], Choice())[0][0], tmp_path)
    assert surfaces and not features
    assert "fedavg at 0 is left out: t-SNE needs openTSNE" in features.remarks[0]
