"""Patients with lung cancer at several institutions."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from unseen.data import datasets, load
from unseen.errors import UnseenError

lifelines_data = pytest.importorskip("lifelines.datasets", reason="lifelines is in the dev extra")


def test_the_packages_file_is_institutions_of_ten_patients_or_more() -> None:
    frame = lifelines_data.load_lung()
    sizes = frame.inst.value_counts()
    data = load("lung")
    assert data.times == ("days", "death")
    assert data.names == tuple(f"institution-{int(i)}" for i in sorted(sizes[sizes >= 10].index))
    for domain in data.domains:
        own = frame[frame.inst == float(domain.name.partition("-")[2])]
        assert domain.y[:, 0].tolist() == own.time.tolist()
        assert domain.y[:, 1].tolist() == own.status.tolist()
        assert {"event": int(own.status.sum()), "censored": int((1 - own.status).sum())} == (
            datasets()["lung"].cells[domain.name]
        )
    assert data.schema is not None and set(data.schema.columns) == set(frame) - {
        "inst", "time", "status",
    }  # fmt: skip
    assert f"{len(frame) - sum(len(d.y) for d in data.domains)} patients left out" in data.notes[-1]
    assert len(load("lung", least=1).names) == len(sizes)


def test_the_file_of_r_is_the_same_data(tmp_path: Path) -> None:
    """R writes 1 for censored and 2 for dead."""
    frame = lifelines_data.load_lung()
    frame["status"] += 1
    frame.to_csv(tmp_path / "lung.csv", na_rep="NA", index=False)
    ours, theirs = load("lung", tmp_path), load("lung")
    assert ours.names == theirs.names
    for name in ours.names:
        assert ours[name].y.tolist() == theirs[name].y.tolist()
        assert ours[name].x.nan_to_num(-1).tolist() == theirs[name].x.nan_to_num(-1).tolist()


def test_another_file_is_refused(tmp_path: Path) -> None:
    frame = lifelines_data.load_lung()
    frame.assign(status=frame.status + 4).to_csv(tmp_path / "lung.csv", index=False)
    with pytest.raises(UnseenError, match="status in lung.csv is 1 and 2, or 0 and 1"):
        load("lung", tmp_path)
    frame.drop(columns="age").to_csv(tmp_path / "lung.csv", index=False)
    with pytest.raises(UnseenError, match="lacks the columns age"):
        load("lung", tmp_path)
    pd.DataFrame({"inst": [1]}).to_csv(tmp_path / "lung.csv", index=False)
    with pytest.raises(UnseenError, match="time"):
        load("lung", tmp_path)
