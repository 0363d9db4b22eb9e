"""`unseen choose FILE.csv`: what the label is, and what a choice will take."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.command_line import Command

from unseen.data.tables.delimited import load
from unseen.studies.choice.choice_request import source_of, task_of
from unseen.studies.choice.playing import Candidates, play
from unseen.studies.settings.study import StudySpec


def table(folder: Path, labels: list[str], sites: str = "abc") -> Path:
    """Sites, whose rows have these labels in turn."""
    draw = np.random.default_rng(0)
    lines = [f"{sites[i % len(sites)]},{draw.normal():.4f},{y}" for i, y in enumerate(labels)]
    path = folder / "sites.csv"
    path.write_text("\n".join(["site,x,y", *lines, ""]))
    return path


def command(path: Path, *more: str) -> list[str]:
    return [
        "choose", str(path), "--site", "site", "--label", "y", "rounds=1",
        "model=mlp(widths=[2])", "--recipes", "glm", "--rates", "1,5", "--out",
        str(path.parent / "out"), *more,
    ]  # fmt: skip


def test_a_folder_of_images_is_its_own_data_folder(tmp_path: Path, unseen: Command) -> None:
    ran = unseen("choose", str(tmp_path), "--data-dir", "elsewhere")
    assert ran.code == 2 and "--data-dir names another place" in ran.err


def test_how_images_of_a_folder_are_read_may_be_said(tmp_path: Path, unseen: Command) -> None:
    for i, place in enumerate(f"{site}/{kind}" for site in "abc" for kind in "xy"):
        (tmp_path / place).mkdir(parents=True)
        for j in range(2):
            Image.new("L", (12, 12), 40 * i + j).save(tmp_path / place / f"{j}.png")
    settings = ["model=mlp(widths=[4])", "freeze=none", "weights=", "size=8", "grey=true"]
    ran = unseen(
        "choose", str(tmp_path), *settings, "--recipes", "fedavg", "--no-pool", "--no-alone",
        "--rates", "1", "rounds=1", "validation=0.5", "--out", str(tmp_path.parent / "out"),
    )  # fmt: skip
    assert ran.code == 0, ran.err
    answer = json.loads((tmp_path.parent / "out" / "choice.json").read_text())
    assert answer["study"]["dataset"] == "folder(size=8, grey=True)"
    assert unseen("choose", str(tmp_path), "drop=['x']").code == 2
    assert source_of(str(tmp_path), None, None, None, {})[1]["dataset"] == "folder"


NUMBERS = [f"{20 + 0.5 * i:g}" for i in range(60)]


def test_a_number_with_many_values_is_predicted_as_one(tmp_path: Path, unseen: Command) -> None:
    ran = unseen(*command(table(tmp_path, NUMBERS), "--no-alone"))
    assert ran.code == 0, ran.err
    assert "the label 'y' is a number with 60 values, and is predicted as one" in ran.err
    assert "--task classification" in ran.err
    assert "At a new site: rmse" in ran.out


def test_the_task_may_be_said(tmp_path: Path, unseen: Command) -> None:
    path = table(tmp_path, [str(i % 2) for i in range(60)])
    ran = unseen(*command(path, "--no-alone", "--task", "regression"))
    assert ran.code == 0, ran.err
    assert "At a new site: rmse" in ran.out
    assert "is predicted as one" not in ran.err
    ran = unseen(*command(path, "--task", "numbers"))
    assert ran.code == 2
    assert "--task must be one of 'classification', 'regression'" in ran.err
    ran = unseen("choose", "heart", "--task", "regression")
    assert ran.code == 2
    assert "--task are of a csv file" in ran.err


@pytest.mark.parametrize(
    "labels",
    [
        [str(i % 15) for i in range(60)], [str(i % 16) for i in range(60)],
        [f"{i % 10}.5" for i in range(60)], [f"{i % 11}.5" for i in range(60)],
        [f"c{i % 30}" for i in range(60)], [str(i % 20) for i in range(59)] + ["x"],
    ],
)  # fmt: skip
def test_a_number_is_what_the_remark_on_a_table_takes_for_one(
    tmp_path: Path, labels: list[str]
) -> None:
    path = table(tmp_path, labels)
    notes = load(None, path=path, domain="site", label="y").notes
    remark = any("task='regression'" in note for note in notes)
    assert task_of(path, "site", "y", {}) == ("regression" if remark else "classification")


# Four groups, fedavg and pooled rows at two rates, glm at one, and each site's model alone.
@pytest.mark.parametrize(("more", "jobs"), [([], 4 * 5 + 4), (["--no-pool"], 4 * 3 + 4)])
def test_a_dry_run_counts_what_a_choice_trains_and_trains_nothing(
    tmp_path: Path, unseen: Command, more: list[str], jobs: int
) -> None:
    parts = command(table(tmp_path, [str(i // 4 % 2) for i in range(160)], sites="abcd"), *more)
    out = tmp_path / "out"
    dry = unseen(*parts, "--dry-run")
    assert dry.code == 0, dry.err
    assert not out.exists()
    assert f"trainings: {jobs}, of which {jobs} are still to run" in dry.out
    assert "length of a training: 1 round, unless" in dry.out
    assert unseen(*parts).code == 0
    assert len(list(out.rglob("done.json"))) == jobs
    again = unseen(*parts, "--dry-run")
    assert f"trainings: {jobs}, of which 0 are still to run" in again.out


def test_options_of_the_table_follow_the_refusal_that_names_them(
    tmp_path: Path, unseen: Command
) -> None:
    path = table(tmp_path, [str(i % 2) for i in range(60)])
    lines = path.read_text().splitlines()
    names = [f"{line},P{i:04}x" for i, line in enumerate(lines[1:])]
    path.write_text("\n".join([f"{lines[0]},person", *names, ""]))
    refused = unseen(*command(path, "--dry-run"))
    assert refused.code == 2 and "To leave out: drop=['person']" in refused.err
    ran = unseen(*command(path, "--dry-run", "drop=['person']"))
    assert ran.code == 0, ran.err


def test_times_until_an_event_are_no_numbers_to_predict(tmp_path: Path, unseen: Command) -> None:
    path = table(tmp_path, NUMBERS)
    lines = path.read_text().splitlines()
    seen = [f"{line},{i % 3 > 0:d}" for i, line in enumerate(lines[1:])]
    path.write_text("\n".join([f"{lines[0]},seen", *seen, ""]))
    options = ("--no-alone", "--no-pool", "--event", "seen", "--recipes", "fedavg", "--rates", "1")
    ran = unseen(*command(path, *options))
    assert ran.code == 0, ran.err
    assert "At a new site: concordance" in ran.out and "is predicted as one" not in ran.err


def test_a_file_that_is_not_there(tmp_path: Path, unseen: Command) -> None:
    ran = unseen(*command(tmp_path / "nowhere.csv"))
    assert ran.code == 2 and "there is no file" in ran.err


def test_the_label_is_read_as_the_table_is(tmp_path: Path, unseen: Command) -> None:
    """In latin-1, with decimal commas, and with a word for what is missing."""
    lines = [f"K\xf6ln;{'.' if i % 9 == 0 else f'{i},25'};{i % 7}" for i in range(1, 90)]
    lines += [f"Ulm;{i},5;{i % 5}" for i in range(1, 60)]
    path = tmp_path / "latin.csv"
    path.write_bytes("\n".join(["klinik;tot;x", *lines, ""]).encode("latin-1"))
    ran = unseen(
        "choose", str(path), "--site", "klinik", "--label", "tot", "encoding=latin-1",
        "missing=['.']", "missing_label=drop", "decimal=,", "separator=;", "--recipes", "glm",
        "--dry-run",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert "is predicted as one" in ran.err


def test_every_recipe_that_cannot_be_played_is_named_whatever_the_rates(tmp_path: Path) -> None:
    rows = [f"{['ab', 'c', 'd'][i % 3]},{i % 5},{1 + i % 9},{i % 2}" for i in range(90)]
    path = tmp_path / "times.csv"
    path.write_text("\n".join(["site,x,days,died", *rows, ""]))
    data = f"table(path='{path}', domain='site', label='days', event='died', task='survival')"
    study = StudySpec(dataset=data, model="mlp(widths=[2])", rounds=1)
    candidates = Candidates(study, ("fedavg", "glm"), groups=3, rates=(1, 5), alone=False)
    trials = play(candidates, tmp_path / "out")
    assert "loss" in trials.refused["glm"]


def test_a_setting_that_was_written_as_an_option_is_named_as_one(
    tmp_path: Path, unseen: Command
) -> None:
    path = table(tmp_path, [str(i % 2) for i in range(60)])
    ran = unseen(*command(path, "--drop", "x"))
    assert ran.code == 2 and "--groups" not in ran.err
    assert "--drop. It is a setting: write drop=VALUE" in " ".join(ran.err.split())
    ran = unseen(*command(path, "--group", "5"))
    assert ran.code == 2 and "--groups" in ran.err


def test_one_sites_troubles_are_not_printed_as_the_studys(tmp_path: Path, unseen: Command) -> None:
    """At the site a the column x is constant, at the others it is not."""
    path = table(tmp_path, [str(i // 3 % 2) for i in range(90)])
    lines = path.read_text().splitlines()
    flat = [f"a,1,{line[-1]}" if line.startswith("a,") else line for line in lines]
    path.write_text("\n".join([*flat, ""]))
    ran = unseen(*command(path, "--no-pool"))
    assert ran.code == 0, ran.err
    assert (tmp_path / "out" / "records" / "alone").is_dir()
    assert "counts as constant" not in ran.err
    assert "fedavg is played as well: all recipes are compared with it" in ran.err
    assert "counts as constant" not in unseen(*command(path, "--no-pool", "--dry-run")).out
