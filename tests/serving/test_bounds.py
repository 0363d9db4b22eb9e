"""Inputs far from what training saw: flagged, counted and, if asked, refused."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps
from support.bounds import gamma
from support.command_line import Command
from support.federations import table_study, write_photos, write_table

from unseen.errors import UnseenError
from unseen.serving import directory
from unseen.serving.answer_options import PredictOptions, TrainOptions
from unseen.serving.directory import Trained
from unseen.serving.fit import study_of, train
from unseen.serving.predict import predict
from unseen.serving.reading.bounds import (
    Bounds,
    Quantity,
    check_strict,
    measures,
    outward,
    quantities_of,
)

HEAD = "age,dose,drug"
ROWS = f"{HEAD}\n61,0.5,a\n145000,0.5,a\n-5,,b\n61,900,b\n"


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def known(of_rows: Trained) -> dict[str, np.ndarray]:
    """The values of the training rows, as the file has them: training split of north and south."""
    from unseen.studies.execution import Study
    from unseen.studies.execution.plan import prepare_study
    from unseen.studies.execution.prepare import split_rows

    study = Study(**of_rows.spec["study"])
    data = prepare_study(study, of_rows.folder / "training").data
    x = [data[n].x[split_rows(data[n], study, 0)[0]] for n in of_rows.spec["sites"]["sources"]]
    assert data.schema is not None
    raw = torch.cat(x).numpy()
    columns = {name: raw[:, data.schema.columns.index(name)] for name in ("age", "dose")}
    return {name: values[~np.isnan(values)] for name, values in columns.items()}


def test_rows_far_from_training_are_flagged_and_counted(
    of_rows: Trained, tmp_path: Path, unseen: Command
) -> None:
    (tmp_path / "new.csv").write_text(ROWS)
    ran = unseen("predict", of_rows.folder, tmp_path / "new.csv")
    found = table(ran.out)
    assert ran.code == 0 and all(r["prediction"] and not r["error"] for r in found)
    values = known(of_rows)
    z = {n: (v - values[n].mean()) / values[n].std() for n, v in (("age", 145000), ("dose", 900))}
    assert [r["unusual"].partition(" ")[0] for r in found] == [
        "",
        "age=145000",
        "age=-5",
        "dose=900",
    ]
    for row, name in ((found[1], "age"), (found[3], "dose")):
        told = float(row["unusual"].partition("(z ")[2].partition(";")[0])
        assert told == pytest.approx(z[name], rel=0.01)
    said = "3 of 4 rows hold values far from what training saw: age (2), dose (1)"
    assert said in ran.err
    ran = unseen("predict", of_rows.folder, tmp_path / "new.csv", "--out", tmp_path / "o.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert "unusual" not in lines[0] and list(lines[1]["unusual"]) == ["age"]


def test_strict_predicts_nothing_for_them(
    of_rows: Trained, tmp_path: Path, unseen: Command
) -> None:
    (tmp_path / "new.csv").write_text(ROWS)
    plain = table(unseen("predict", of_rows.folder, tmp_path / "new.csv").out)
    ran = unseen("predict", of_rows.folder, tmp_path / "new.csv", "--strict")
    found = table(ran.out)
    assert ran.code == 1
    # The row is answered in a batch of other rows: sums of float32 in another order, none of them
    # longer than the net is wide.
    numbers = [name for name in plain[0] if name.startswith("p(")]
    assert {k: v for k, v in found[0].items() if k not in numbers} == {
        k: v for k, v in plain[0].items() if k not in numbers
    }
    for name in numbers:
        assert float(found[0][name]) == pytest.approx(
            float(plain[0][name]), rel=gamma(64, torch.float32)
        )
    assert [r["prediction"] for r in found[1:]] == [r["p(yes)"] for r in found[1:]] == ["", "", ""]
    assert all(r["error"].startswith("far from what training saw: ") for r in found[1:])
    assert "new.csv, line 3: far from what training saw: age=145000" in ran.err
    lines = list(predict(of_rows, [tmp_path / "new.csv"], PredictOptions(strict=True)))
    assert [line.answer.label is None for line in lines] == [False, True, True, True]
    assert lines[1].item.unusual.keys() == {"age"}


def test_no_training_row_is_out_of_range(of_rows: Trained, tmp_path: Path) -> None:
    """Ranges are rounded outward, and are no patient's values."""
    values = known(of_rows)
    for name, (low, high) in of_rows.spec["usual inputs"]["ranges"].items():
        assert low <= values[name].min() and values[name].max() <= high
        assert not {low, high} & set(values[name].tolist())
        step = values[name].std()
        assert values[name].min() - low <= 2.5 * step and high - values[name].max() <= 2.5 * step
    within = write_table(tmp_path / "visits.csv")
    lines = list(predict(of_rows, [within], PredictOptions(accept_unseen=True)))
    far = {(i.item.cells["id"], *i.item.unusual) for i in lines if i.item.unusual}
    wanted = {
        (line.item.cells["id"], name)
        for line in lines
        for name, (low, high) in of_rows.spec["usual inputs"]["ranges"].items()
        if line.item.cells[name] and not low <= float(line.item.cells[name]) <= high
    }
    assert far == wanted


@given(
    st.floats(-1e6, 1e6), st.floats(0, 1e6), st.floats(1e-6, 1e6)
)  # fmt: skip
def test_a_rounded_range_holds_what_it_is_of(low: float, width: float, deviation: float) -> None:
    high = low + width
    found = outward(low, high, deviation)
    slack = 1e-6 * max(deviation, abs(low), abs(high))
    assert found[0] <= low + slack and found[1] >= high - slack
    assert low - found[0] <= 2.5 * deviation + slack and found[1] - high <= 2.5 * deviation + slack


def test_a_constant_column_flags_any_other_value() -> None:
    quantity = Quantity("dose", 3.0, 0.0)
    assert quantity.span == pytest.approx((-1, 1))
    assert quantity.describe(5.0) == "5 (training always 3)"


def test_columns_of_public_range_are_flagged_by_it(tmp_path: Path, unseen: Command) -> None:
    """Under noise, too: nothing else is kept."""
    columns = {"age": [0, 120], "dose": [-5, 5]}
    privacy = {
        "privacy.columns": columns,
        "privacy.examples": "dp(clip=1.0, noise=1.0, delta=1e-3)",
    }
    file = table_study(tmp_path)
    found = train(study_of(str(file), {**privacy, "model": "logistic"}), tmp_path / "model")
    assert found.spec["usual inputs"] is None
    (tmp_path / "new.csv").write_text(f"{HEAD}\n119,0.5,a\n121,4.9,a\n-1,,b\n")
    rows = table(unseen("predict", found.folder, tmp_path / "new.csv").out)
    assert [r["unusual"] for r in rows] == [
        "",
        "age=121 (range 0 to 120)",
        "age=-1 (range 0 to 120)",
    ]


def test_ranges_stay_at_the_sites_where_they_must(tmp_path: Path, unseen: Command) -> None:
    file = table_study(tmp_path)
    with pytest.raises(UnseenError, match=r"privacy.channel = 'masks\(\)'"):
        train(
            study_of(str(file), {"privacy.channel": "masks()"}), tmp_path / "no", TrainOptions(True)
        )
    sealed = train(study_of(str(file), {"privacy.channel": "masks()"}), tmp_path / "masks")
    plain = train(study_of(str(file), {}), tmp_path / "plain", TrainOptions(False))
    (tmp_path / "new.csv").write_text(ROWS)
    for found in (sealed, plain):
        assert found.spec["usual inputs"] is None
        assert "rounded" not in "".join(found.spec["left the sites"]["what"])
        rows = table(unseen("predict", found.folder, tmp_path / "new.csv").out)
        assert "age=145000 (z " in rows[1]["unusual"] and "training" not in rows[1]["unusual"]


def test_a_table_without_numbers_may_be_strict(of_rows: Trained, of_photos: Trained) -> None:
    check_strict(Bounds(of_rows.inputs, ()))
    with pytest.raises(UnseenError, match="does not say what training's images were like"):
        check_strict(Bounds(of_photos.inputs, ()))


def test_the_card_says_what_is_flagged(of_rows: Trained, of_photos: Trained) -> None:
    for trained, word in ((of_rows, "names a number"), (of_photos, "names an image")):
        text = (trained.folder / "README.md").read_text()
        assert word in text and "`--strict`" in text and "rounded" in text


def test_images_far_from_training_are_flagged(
    of_photos: Trained, tmp_path: Path, unseen: Command
) -> None:
    photos = write_photos(tmp_path / "photos")
    one = Image.open(photos / "north" / "cat" / "0.png")
    odd = tmp_path / "odd"
    odd.mkdir()
    one.save(odd / "a-same.png")
    Image.new("RGB", one.size, (90, 90, 90)).save(odd / "b-blank.png")
    ImageOps.invert(one).save(odd / "c-inverted.png")
    one.resize((300, 200)).save(odd / "d-large.png")
    ran = unseen("predict", of_photos.folder, odd)
    found = [r["unusual"] for r in table(ran.out)]
    assert found[0] == "" and "contrast=0 (" in found[1]
    assert "brightness" in found[2] and "width=300 (training always 12)" in found[3]
    assert "3 of 4 images are far from what training saw" in ran.err
    ran = unseen("predict", of_photos.folder, odd, "--strict")
    assert ran.code == 1 and [bool(r["prediction"]) for r in table(ran.out)] == [True] + 3 * [False]
    lines = list(predict(of_photos, [photos / "north", photos / "south"]))
    held_back = sum(r["examples"] for r in of_photos.spec["results"] if r["role"] == "source")
    assert sum(bool(line.item.unusual) for line in lines) <= held_back == 4


def test_measures_of_images_by_hand() -> None:
    """Left half 0, right half 1 in red, all 0 in green and blue."""
    x = torch.zeros(1, 3, 4, 4, dtype=torch.uint8)
    x[:, 0, :, 2:] = 255
    found = {name: float(value) for name, value in measures(x).items()}
    assert found["red brightness"] == 0.5 and found["blue brightness"] == 0
    assert found["red contrast"] == pytest.approx(math.log(0.5 + 1 / 512))
    # Of 3 x 4 neighbours across 4 differ by 1, in one channel of three; none down.
    assert found["detail"] == pytest.approx(math.log(1 / 3 / 3 / 2 + 1 / 512), rel=1e-5)
    assert found["colour"] == pytest.approx(math.log(0.5 + 1 / 512))
    (bright,) = quantities_of({"brightness": torch.tensor([0.25, 0.75], dtype=torch.float64)})
    assert (bright.mean, bright.deviation, bright.low, bright.high) == (0.5, 0.25, 0.0, 1.0)


def old(trained: Trained, folder: Path) -> Path:
    """A directory as it was written before it held anything of training's inputs."""
    shutil.copytree(trained.folder, folder, ignore=shutil.ignore_patterns("training", "report"))
    spec = json.loads((folder / "model.json").read_text())
    del spec["usual inputs"], spec["precision"]
    spec["fingerprint"] = directory.fingerprint(spec)
    (folder / "model.json").write_text(json.dumps(spec))
    return folder


def test_older_directories_predict_and_say_once_what_they_cannot_tell(
    of_photos: Trained, of_rows: Trained, tmp_path: Path, unseen: Command
) -> None:
    photos = write_photos(tmp_path / "photos")
    folder = old(of_photos, tmp_path / "old")
    ran = unseen("predict", folder, photos / "west")
    assert ran.code == 0 and all(r["prediction"] and not r["unusual"] for r in table(ran.out))
    assert ran.err.count("does not say what training's images were like") == 1
    ran = unseen("predict", folder, photos / "west", "--strict", "--out", tmp_path / "o.csv")
    assert ran.code == 2 and not (tmp_path / "o.csv").exists()
    (tmp_path / "new.csv").write_text(ROWS)
    rows = table(unseen("predict", old(of_rows, tmp_path / "rows"), tmp_path / "new.csv").out)
    assert "age=145000 (z " in rows[1]["unusual"]
