"""`predict --adapt`: what it refuses, what it says, and that each part does what it claims."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from support.command_line import Command
from support.federations import trained, write_photos, write_study, write_table

from unseen.datasets import load
from unseen.errors import UnseenError
from unseen.serving import directory
from unseen.serving.adapt import posterior, reestimated
from unseen.serving.directory import SPEC, TENSORS, Trained
from unseen.serving.predict import predict
from unseen.serving.transductive import KEY, LEAST, adaptations, link, notes, predict_adapted


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """At least as many rows of one site as are asked for, none with a category of its own."""
    path = write_table(tmp_path_factory.mktemp("new") / "all.csv", rows=120)
    head, *lines = path.read_text().splitlines()
    south = [line for line in lines if line.split(",")[1] == "south"]
    path.write_text("\n".join([head, *south]) + "\n")
    return path


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_prior_is_em_on_the_models_own_probabilities(
    of_rows: Trained, rows: Path, unseen: Command
) -> None:
    plain = list(predict(of_rows, [rows]))
    p = torch.tensor([line.answer.probabilities for line in plain], dtype=torch.float64)
    shares = torch.tensor(of_rows.spec[KEY]["class shares"], dtype=torch.float64)
    shift = reestimated(p, shares)
    ran = unseen("predict", of_rows.folder, rows, "--adapt", "prior")
    found = table(ran.out)
    told = [[float(r["p(no)"]), float(r["p(yes)"])] for r in found]
    np.testing.assert_allclose(told, posterior(p, shares, shift.after), atol=1e-7)
    best = [("no", "yes")[a < b] for a, b in told]
    assert ran.code == 0 and [r["prediction"] for r in found] == best
    assert {r["transductive"] for r in found} == {"prior"}
    assert "transductive predictions, by prior" in ran.err
    assert f"yes {100 * shares[1]:.1f} -> {100 * shift.after[1]:.1f}" in ran.err
    assert "transductive" not in unseen("predict", of_rows.folder, rows).out


def test_the_shares_are_those_of_the_training_rows(of_rows: Trained) -> None:
    counts = {r["site"]: r["trained on"] for r in of_rows.spec["results"]}
    assert sum(of_rows.spec[KEY]["class shares"]) == pytest.approx(1)
    of = np.array(of_rows.spec[KEY]["class shares"]) * (counts["north"] + counts["south"])
    np.testing.assert_allclose(of, of.round(), atol=1e-9)
    said = " ".join(of_rows.spec["left the sites"]["what"])
    assert "for `predict --adapt`: how many of its training rows are of each class" in said


def test_inputs_are_those_of_the_rows_own_means(of_rows: Trained, rows: Path) -> None:
    found = predict_adapted(of_rows, [rows], ["inputs"])
    x = torch.stack([line.item.x for line in found.lines if line.item.x is not None])
    cells = [line.split(",") for line in rows.read_text().splitlines()[1:]]
    names = of_rows.spec["input"]["features"]
    for name, j in (("age", 2), ("dose", 3)):
        raw = np.array([float(c[j] or "nan") for c in cells])
        z = np.nan_to_num((raw - np.nanmean(raw)) / np.nanstd(raw))
        np.testing.assert_allclose(x[:, names.index(name)], z, atol=1e-6)
    expected = of_rows.outputs(x).double().softmax(-1)
    told = torch.tensor([line.answer.probabilities for line in found.lines], dtype=torch.float64)
    torch.testing.assert_close(told, expected, rtol=1e-6, atol=1e-7)


def test_batchnorm_is_that_of_the_photos_and_is_gone_afterwards(
    of_photos: Trained, tmp_path: Path, unseen: Command
) -> None:
    photos = write_photos(tmp_path / "photos", each=60)
    x = load("folder", path=str(photos), size=8)["west"].x.float() / 255
    before = of_photos.model.buffers.clone()
    found = predict_adapted(of_photos, [photos / "west"], ["batchnorm"], batch=13)
    assert torch.equal(of_photos.model.buffers, before)
    told = torch.tensor([line.answer.probabilities for line in found.lines], dtype=torch.float64)
    module = of_photos.model.module.train()
    with torch.no_grad():
        expected = of_photos.model(x).double().softmax(-1)
    module.eval()
    of_photos.model.buffers.copy_(before)
    torch.testing.assert_close(told, expected, rtol=1e-4, atol=1e-5)
    assert "cannot be told" in found.notes[1] and "far from training" in found.notes[-1]
    out = tmp_path / "o.jsonl"
    ran = unseen("predict", of_photos.folder, photos / "west", "--adapt", "prior, batchnorm",
                 "--out", out)  # fmt: skip
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert ran.code == 0 and len(lines) == 120
    assert all(line["transductive"] == ["batchnorm", "prior"] for line in lines)


def test_they_combine_in_one_order(of_rows: Trained, rows: Path) -> None:
    assert adaptations(["prior", "inputs", "prior"]) == ("inputs", "prior")
    inputs = predict_adapted(of_rows, [rows], ["inputs"])
    both = predict_adapted(of_rows, [rows], ["prior", "inputs"])
    p = torch.tensor([line.answer.probabilities for line in inputs.lines], dtype=torch.float64)
    shares = torch.tensor(of_rows.spec[KEY]["class shares"], dtype=torch.float64)
    shift = reestimated(p, shares)
    assert both.shift is not None and both.methods == ("inputs", "prior")
    told = torch.tensor([line.answer.probabilities for line in both.lines])
    np.testing.assert_allclose(told, posterior(p, shares, shift.after), atol=1e-7)


def test_few_rows_are_refused_and_faulty_ones_do_not_count(
    of_rows: Trained, rows: Path, tmp_path: Path, unseen: Command
) -> None:
    lines = rows.read_text().splitlines()
    few = tmp_path / "few.csv"
    few.write_text("\n".join([*lines[:LEAST], "x,south,old,1,a,no,1"]) + "\n")
    out = tmp_path / "o.csv"
    ran = unseen("predict", of_rows.folder, few, "--adapt", "prior", "--out", out)
    assert ran.code == 2 and "100 rows or more; 99 can be predicted" in ran.err
    assert "Leave out --adapt" in ran.err and not out.exists()
    few.write_text("\n".join([*lines[: LEAST + 1], "x,south,old,1,a,no,1"]) + "\n")
    ran = unseen("predict", of_rows.folder, few, "--adapt", "prior")
    found = table(ran.out)
    assert ran.code == 1 and len(found) == 101 and found[-1]["transductive"] == ""


@pytest.mark.parametrize(
    ("model", "arguments", "words"),
    [
        ("of_rows", ("--adapt", "priors"), "did you mean 'prior'"),
        ("of_rows", ("--adapt", ""), "--adapt must be one of"),
        ("of_rows", ("--adapt", "batchnorm"), "has none. Leave out batchnorm; inputs"),
        ("of_numbers", ("--adapt", "prior"), "predicts a number. Leave out prior; inputs"),
        ("of_photos", ("--adapt", "inputs"), "takes none. Leave out inputs; batchnorm"),
    ],
)
def test_what_cannot_be_adapted_is_refused_with_a_remedy(
    model: str,
    arguments: tuple[str, ...],
    words: str,
    unseen: Command,
    request: pytest.FixtureRequest,
) -> None:
    ran = unseen("predict", request.getfixturevalue(model).folder, "x.csv", *arguments)
    assert ran.code == 2 and words in ran.err


def test_batchnorm_goes_with_no_other_statistics(of_photos: Trained) -> None:
    from unseen.serving.transductive import check

    with pytest.raises(UnseenError, match="--runtime onnx"):
        check(of_photos, ("batchnorm",), exported=True)
    with pytest.raises(UnseenError, match="that --as-site takes"):
        check(of_photos, ("batchnorm",), site="north")


def test_numbers_are_adapted_too(of_numbers: Trained, rows: Path) -> None:
    found = predict_adapted(of_numbers, [rows], ["inputs"])
    plain = [line.answer.label for line in predict(of_numbers, [rows])]
    assert found.shift is None and [line.answer.label for line in found.lines] != plain
    assert "there were 3 training sites, and fewer than 4 say nothing" in found.notes[1]


def test_an_older_directory_is_read_and_its_shares_are_taken_as_equal(
    of_rows: Trained, rows: Path, tmp_path: Path
) -> None:
    """Written without what this version adds, in the same format."""
    shutil.copy(of_rows.folder / TENSORS, tmp_path)
    spec = json.loads((of_rows.folder / SPEC).read_bytes())
    assert spec["format"] == directory.FORMAT
    for key in ("tensors", "fingerprint", KEY):
        del spec[key]
    directory.write(tmp_path, spec, (tmp_path / TENSORS).read_bytes())
    found = predict_adapted(directory.read(tmp_path), [rows], ["prior", "inputs"])
    assert "does not say how they went together" in found.notes[1]
    assert "they are taken as equally frequent" in found.notes[2]
    assert found.shift is not None and found.shift.before.tolist() == [0.5, 0.5]


def test_no_ranges_keeps_nothing_of_the_sites(tmp_path: Path) -> None:
    from support.federations import table_study

    from unseen.serving.fit import study_of, train

    model = train(study_of(str(table_study(tmp_path)), {}), tmp_path / "m", ranges=False)
    assert KEY not in model.spec
    assert "--adapt" not in " ".join(model.spec["left the sites"]["what"])


def made(folder: Path, slope: float, sites: int) -> Path:
    """Sites whose mean age goes with their share of deaths, or does not; `dose` never does."""
    draws = np.random.default_rng(3)
    lines = ["site,age,dose,died"]
    for k in range(sites):
        share = 0.2 + 0.6 * k / (sites - 1)
        age = 60 + slope * k + (0 if slope else (3, -3)[k * k % 3 == 0])
        for i in range(80):
            died = "yes" if (i * 37 % 80) / 80 < share else "no"
            dose = draws.normal((1, -1, -1, 1)[k % 4], 1)
            lines.append(f"s{k},{draws.normal(age, 1):.2f},{dose:.3f},{died}")
    (folder / "made.csv").write_text("\n".join(lines) + "\n")
    dataset = f"table(path='{folder / 'made.csv'}', domain='site', label='died')"
    return write_study(folder / "made.toml", dataset)


@pytest.mark.parametrize(("slope", "sites"), [(4.0, 8), (0.0, 8), (4.0, 3)])
def test_it_warns_where_the_sites_means_carry_the_label(
    slope: float, sites: int, tmp_path: Path, unseen: Command
) -> None:
    model = trained(made(tmp_path, slope, sites), tmp_path / "model")
    ran = unseen("predict", model.folder, tmp_path / "made.csv", "--adapt", "inputs")
    assert ran.code == 0
    warned = "warning: over the training sites the mean of age (r 1.00 over 8 sites" in ran.err
    assert warned == (slope > 0 and sites > 3) and "dose (r" not in ran.err
    assert ("there were 3 training sites, and fewer than 4 say nothing" in ran.err) == (sites == 3)
    assert "warning" not in unseen("predict", model.folder, tmp_path / "made.csv", "--adapt",
                                   "prior").err  # fmt: skip


def test_the_statistic_is_that_of_scipy() -> None:
    draws = np.random.default_rng(0)
    means, share = draws.normal(size=9), draws.random(9)
    found = link(torch.tensor(means), torch.tensor(np.stack([1 - share, share], 1)))
    expected = stats.pearsonr(means, share)
    assert found is not None and found.sites == 9
    assert (found.r, found.p) == pytest.approx((expected.statistic, expected.pvalue))
    labels = draws.dirichlet(np.ones(3), 9)
    three = link(torch.tensor(means), torch.tensor(labels))
    each = [stats.pearsonr(means, labels[:, c]) for c in range(3)]
    best = max(each, key=lambda e: abs(e.statistic))
    assert three is not None and three.r == pytest.approx(best.statistic)
    assert three.p == pytest.approx(min(1, 3 * best.pvalue))


@pytest.mark.parametrize(
    "change",
    [
        lambda m, y: (m[:3], y[:3]),
        lambda m, y: (torch.full_like(m, 0.1), y),
        lambda m, y: (m, torch.full_like(y, 0.3)),
        lambda m, y: (m.index_fill(0, torch.tensor([1, 2, 3]), float("nan")), y),
    ],
)
def test_without_variation_or_sites_nothing_is_told(change: Callable[..., Any]) -> None:
    means, share = torch.arange(6.0), torch.arange(6.0)[:, None] ** 2
    assert link(means, share) is not None
    assert link(*change(means, share)) is None
    kept = {KEY: {"site means": {"sites": 6, "columns": {}}}}
    assert len(notes(kept, ("inputs",), 100, 0, None)) == 1


def test_rows_far_from_training_are_said_to_be_among_them(of_rows: Trained, rows: Path,
                                                          tmp_path: Path) -> None:  # fmt: skip
    far = tmp_path / "far.csv"
    far.write_text(rows.read_text() + "x,south,145000,1,a,no,1\n")
    found = predict_adapted(of_rows, [far], ["inputs"])
    flagged = sum(bool(line.item.unusual) for line in found.lines)
    assert f"{flagged} of the 121 that were adapted to are far from training" in found.notes[-1]
    strict = predict_adapted(of_rows, [far], ["inputs"], strict=True)
    assert strict.lines[-1].item.x is None and f"to all {121 - flagged} inputs" in strict.notes[0]
    alone = predict_adapted(of_rows, [rows], ["inputs"], strict=True)
    assert [replace(line, item=None) for line in strict.lines[:-1]] == [  # type: ignore[arg-type]
        replace(line, item=None)
        for line in alone.lines  # type: ignore[arg-type]
    ]
