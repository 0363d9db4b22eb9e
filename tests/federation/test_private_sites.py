"""Noise at real sites: each looks for itself whether something would leave it without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")
pytest.importorskip("opacus", reason="needs the extra dp")

from support.hall import Hall, kits
from test_hall import SITES, _quick, same, written

from unseen import Study
from unseen.errors import UnseenError
from unseen.sites.flower import server_run as federated
from unseen.sites.flower import site_plan

__all__ = ["_quick"]  # the fixture of test_hall
NOISE = '[privacy]\nexamples = "dp(clip=1.0, noise=1.0, delta=1e-4, seed=1)"\n'
RANGES = "columns = {a = [-4, 4], b = [-4, 4], c = [-4, 4], d = [-4, 4]}\n"


def private(folder: Path, more: str, model: str = "mlp(widths=[8])") -> Path:
    file = written(folder, "fedavg", 1, model)
    file.write_text(file.read_text() + NOISE + more)
    return file


def asked(hall: Hall) -> set[str]:
    return {str(question["kind"]) for _, question in hall.sent}


def test_sums_over_columns_are_not_asked_for_where_there_is_noise(tmp_path: Path) -> None:
    hall = Hall(kits(tmp_path, SITES, tmp_path))
    with pytest.raises(UnseenError, match="standardised and imputed"):
        federated.run(str(private(tmp_path, "")), str(tmp_path / "out"), hall, list(SITES))
    assert asked(hall) == {"hello"}


def test_a_site_refuses_a_server_that_asks_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_plan, "check_columns", lambda study, data: None)
    hall = Hall(kits(tmp_path, SITES, tmp_path))
    with pytest.raises(UnseenError, match="this study's privacy keeps here"):
        federated.run(str(private(tmp_path, "")), str(tmp_path / "out"), hall, list(SITES))
    assert "exchange" not in asked(hall)


def test_public_ranges_take_the_place_of_sums(tmp_path: Path) -> None:
    file, hall = private(tmp_path, RANGES), Hall(kits(tmp_path, SITES, tmp_path))
    Study.read(file).run(tmp_path / "one", data_dir=tmp_path)
    federated.run(str(file), str(tmp_path / "sites"), hall, list(SITES))
    same(tmp_path / "one", tmp_path / "sites")
    assert "statistics" not in asked(hall)
    (ledger,) = (tmp_path / "sites").rglob("ledger.jsonl")
    first = json.loads(ledger.read_text().splitlines()[0])
    assert [left["form"] for left in first["left"] if left["slot"] == "model"] == ["noised"]


def test_a_site_refuses_to_train_a_network_with_batchnorm_under_noise(tmp_path: Path) -> None:
    hall = Hall(kits(tmp_path, SITES, tmp_path))
    file = private(tmp_path, "", "bn-cnn")
    with pytest.raises(UnseenError, match="GroupNorm"):
        federated.run(str(file), str(tmp_path / "out"), hall, list(SITES))
