"""Environments of the sources: FedILC's Tables 3 and 5 from records whose numbers are worked out by
hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unseen.errors import UnseenError
from unseen.studies.execution import Study
from unseen.studies.results import records
from unseen.studies.results.fairness import at_environments, offered
from unseen.studies.results.records import Job
from unseen.studies.results.selection import less_is_better
from unseen.studies.results.study_results import Results
from unseen.studies.settings.holdout import Task

EACH = "source accuracy@angle"
VARIANCE, ENTROPY = f"variance {EACH}", f"entropy {EACH}"


def evaluation(
    domain: str, number: int, groups: dict[str, float | None], role: str = "source"
) -> dict[str, Any]:
    """One evaluation of 4 examples in every group of an angle; None: a group of none."""
    defined = [x for x in groups.values() if x is not None]
    return {
        "round": number,
        "role": role,
        "domain": domain,
        "accuracy": sum(defined) / len(defined),
        "accuracy@angle": groups,
        "examples": 4 * len(defined),
        "examples@angle": {k: 0 if x is None else 4 for k, x in groups.items()},
    }


def write(folder: Path, job: Job, found: list[dict[str, Any]], diverged: str = "") -> None:
    place = job.folder(folder)
    place.mkdir(parents=True)
    key = {"method": job.method, "task": job.task, "seed": job.seed}
    for name in records.FILES:
        kept = [r for r in found if (r["role"] == "target") == (name == "target.jsonl")]
        lines = [] if name == "rounds.jsonl" else [json.dumps(key | record) for record in kept]
        (place / name).write_text("".join(f"{line}\n" for line in lines))
    records.mark_done(place, {"unseen": "0"}, 1.0, 1.0, diverged=diverged)


def results(folder: Path, tasks: tuple[str, ...] = ("target",), **settings: Any) -> Results:
    study = Study(
        methods=["fedsgd", "fishr"], seeds=2, groups=["angle"], **{"selection": "last"} | settings
    )
    plan = tuple(Task(name, ("a", "b"), ("t",)) for name in tasks)
    return Results(study, folder, ("fedsgd", "fishr"), plan, ("accuracy",), "m", "d", {})


@pytest.fixture
def finished(tmp_path: Path) -> Results:
    """Two methods, two seeds; client a has the angles 0 and 10, client b the angle 20."""
    figures = {
        ("fedsgd", 0): (0.2, 0.4, 0.6),
        ("fedsgd", 1): (0.5, 0.5, 0.5),
        ("fishr", 0): (0.25, 0.5, 0.75),
        ("fishr", 1): (0.75, 0.5, 0.25),
    }
    for (method, seed), (first, second, third) in figures.items():
        found = [evaluation("a", 0, {"0": 0.0, "10": 0.0, "20": None})]
        found += [evaluation("b", 0, {"0": None, "10": None, "20": 0.0})]
        found += [evaluation("t", 0, {"0": 1.0, "10": 1.0, "20": 1.0}, "target")]
        found += [evaluation("a", 1, {"0": first, "10": second, "20": None})]
        found += [evaluation("b", 1, {"0": None, "10": None, "20": third})]
        found += [evaluation("v", 1, {"0": 0.1, "10": 0.1, "20": 0.1}, "ood-validation")]
        found += [evaluation("t", 1, {"0": 0.9, "10": 0.9, "20": 0.9}, "target")]
        write(tmp_path, Job(method, "target", seed), found)
    return results(tmp_path)


def texts(made: Any) -> dict[str, list[str]]:
    return {row[0]: row[1:] for row in made.rows(lambda text, _: text)}


def test_a_column_per_environment_at_the_selected_round(finished: Results) -> None:
    made = finished.table(EACH)
    # fedsgd at a/0: 20 and 50, mean 35, s = 15 √2, se = 15. Averages over environments: 40, 50.
    assert texts(made) == {
        "method": ["a/0", "a/10", "b/20", "average", "worst"],
        "fedsgd": ["35.0 ± 15.0", "45.0 ± 5.0", "55.0 ± 5.0", "45.0 ± 5.0", "35.0 ± 15.0"],
        "fishr": ["50.0 ± 25.0", "50.0 ± 0.0", "50.0 ± 25.0", "50.0 ± 0.0", "25.0 ± 0.0"],
    }
    assert "validation split" in made.notes[1] and "'angle'" in made.notes[1]


def test_variance_and_entropy_in_the_units_of_the_paper(finished: Results) -> None:
    found = texts(finished.table(VARIANCE))
    # ((.2 − .4)² + 0 + (.6 − .4)²) / 3 = 0.08 / 3, and 0: mean 13.333, half their difference as se.
    assert found["fedsgd"][0] == "13.333 ± 13.333"
    assert found["fishr"][0] == f"{1000 * 0.125 / 3:.3f} ± 0.000"
    uneven = math.log(6) / 6 + math.log(3) / 3 + math.log(2) / 2  # shares 1/6, 1/3, 1/2
    centre, error = 5 * (uneven + math.log(3)), 5 * (math.log(3) - uneven)
    made = finished.table(ENTROPY)
    assert texts(made)["fedsgd"][0] == f"{centre:.3f} ± {error:.3f}"
    assert not made.lower and finished.table(VARIANCE).lower
    assert "in nats x 10" in made.notes[0] and "x 1000" in finished.table(VARIANCE).notes[0]


def test_validation_domains_stand_beside_the_target(finished: Results) -> None:
    with pytest.raises(UnseenError, match="unknown metric 'validation accuracy'"):
        finished.table("validation accuracy")
    held = replace(finished, tasks=(Task("target", ("a", "b"), ("t",), ("v",)),))
    assert texts(held.table("validation accuracy"))["fedsgd"][0] == "10.0 ± 0.0"
    assert texts(held.table())["fedsgd"][0] == "90.0 ± 0.0"
    worst = held.table("validation worst accuracy@angle")
    assert texts(worst)["fishr"][0] == "10.0 ± 0.0" and not worst.lower
    assert less_is_better("validation loss") and less_is_better("validation worst loss@angle")


def test_without_groups_the_environments_are_the_clients(finished: Results) -> None:
    # fishr, seed 0: a has the mean of .25 and .5, b has .75; seed 1: a .625, b .25.
    assert texts(finished.table("source accuracy"))["fishr"][:2] == ["50.0 ± 12.5", "50.0 ± 25.0"]
    first, second = (0.375 / 2) ** 2, (0.375 / 2) ** 2
    shown = texts(finished.table("variance source accuracy"))["fishr"][0]
    assert shown == f"{500 * (first + second):.3f} ± 0.000"


def test_a_study_of_several_tasks_has_no_columns_for_environments(tmp_path: Path) -> None:
    for task in ("s", "t"):
        for seed in (0, 1):
            found = [evaluation("a", 0, {"0": 0.5}), evaluation("x", 0, {"0": 0.5}, "target")]
            write(tmp_path, Job("fedsgd", task, seed), found)
    made = results(tmp_path, ("s", "t"))
    with pytest.raises(UnseenError, match="column per environment.*s, t.*--targets s"):
        made.table(EACH)
    assert texts(made.table(VARIANCE))["fedsgd"] == ["0.000 ± 0.000"] * 4


def test_undefined_where_a_job_diverged_or_nothing_is_right(tmp_path: Path) -> None:
    def sites(*values: float) -> list[dict[str, Any]]:
        found = [evaluation(name, 0, {"0": x}) for name, x in zip("ab", values, strict=True)]
        return [*found, evaluation("t", 0, {"0": 0.5}, "target")]

    write(tmp_path, Job("fedsgd", "target", 0), sites(0.0, 0.0))
    write(tmp_path, Job("fedsgd", "target", 1), sites(0.5, 0.5))
    write(tmp_path, Job("fishr", "target", 0), [], diverged="it is not finite")
    write(tmp_path, Job("fishr", "target", 1), sites(0.25, 0.75))
    made = results(tmp_path)
    each, even = texts(made.table(EACH)), texts(made.table(ENTROPY))
    assert each["fedsgd"][0] == "25.0 ± 25.0"
    assert each["fishr"][0] == "25.0 (1 undefined)"
    assert even["fedsgd"][0] == f"{10 * math.log(2):.3f} (1 undefined)"
    assert "undefined" in even["fishr"][0]


def test_figures_of_ones_own_stand_below(finished: Results) -> None:
    own = {VARIANCE: {"FedSGD": {"target": ("3.333", "1.0")}}}
    made = results(finished.out, published=own).table(VARIANCE)
    assert texts(made)["fedsgd − published"][0] == f"{10 / math.hypot(13.3333, 1):+.1f} se"


def test_what_is_offered_and_what_is_not(finished: Results) -> None:
    assert offered(["loss"], ["g"]) == ("source loss", "source loss@g")
    assert finished.among(["auroc", EACH]) == (EACH,) and finished.among(["auroc"]) == (None,)
    with pytest.raises(UnseenError, match="unknown metric 'source acuracy@angle'; did you mean"):
        finished.table("source acuracy@angle")
    undefined = evaluation("a", 0, {"0": 0.5, "1": None}) | {"examples@angle": {"0": 2, "1": 2}}
    assert at_environments([undefined], 0, "accuracy@angle") == {"a/0": 0.5, "a/1": None}


def test_results_of_a_folder_offer_the_same_names_as_those_of_its_study(finished: Results) -> None:
    """Records of a folder name the worst of a column's groups themselves, which has no groups."""
    again = replace(finished, metrics=("accuracy", "worst accuracy@angle"))
    assert set(again.offered) == set(finished.offered)
    assert all(again.table(name).metric == name for name in again.offered)
