"""From a study's file to a model's directory: what is trained, and that all of it is kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from support.alone import only
from support.command_line import Command
from support.federations import photo_study, table_study, trained, write_study

from unseen.core.metrics.evaluation import forward
from unseen.core.round import play_round, start
from unseen.core.vector import Model
from unseen.engine.inprocess import InProcess
from unseen.errors import UnseenError
from unseen.serving import directory
from unseen.serving.directory import Trained
from unseen.serving.fit import study_of, train
from unseen.serving.one_model import RECORDS
from unseen.studies.execution import Study
from unseen.studies.execution.plan import prepare_study
from unseen.studies.execution.prepare import prepare
from unseen.studies.execution.runtime import adapted, composed, first_network


@pytest.mark.parametrize(
    ("method", "buffers"),
    [
        ("fedavg+ga", "average"),
        ("fedavg+ga", "local"),
        ("copa(norm='hybrid')", "average"),
        ("harmofl(window='low')", "average"),
        ("gperxan", "average"),
        pytest.param("copa(norm='hybrid')", "local", marks=pytest.mark.slow),
        pytest.param("gperxan", "local", marks=pytest.mark.slow),
        pytest.param("deepall", "average", marks=pytest.mark.slow),
    ],
)
def test_the_directory_predicts_as_the_model_did_in_memory(
    tmp_path: Path, method: str, buffers: str
) -> None:
    """The same federation, played round by round here, to the round that was chosen."""
    file = photo_study(tmp_path, 'holdout = "west"', f'buffers = "{buffers}"')
    found = trained(file, tmp_path / "model", method)
    study = Study(**found.spec["study"])
    planned = prepare_study(study, tmp_path / "again")
    prepared = prepare(planned.data, planned.tasks[0], study, 0)
    made = composed(method, study, planned.data)
    network = adapted(made, only(first_network(planned.setting, prepared, 0)))
    model = Model(network, "cpu", prepared.shape)
    roster = made.gather(prepared.sources) if made.gather else prepared.sources
    backend = InProcess(model, roster)
    state = start(made, model, sorted(roster), 0)
    while state.round < found.spec["round"]:
        state, _ = play_round(made, state, backend, sorted(roster), study.rounds)
    model.bind(state.inbox["model"].clone(), state.inbox["buffers"].clone())
    split = prepared.targets["west"].split("validation")
    expected = forward(model, split, made.predict, state.inbox)
    torch.testing.assert_close(found.outputs(split.batch(slice(None))[0]), expected, rtol=0, atol=0)
    if buffers == "local":
        own = backend.memories.before("south", (study.rounds, 0))["buffers"]
        model.buffers.copy_(own)
        found.at("south")
        at_home = forward(model, split, made.predict, state.inbox)
        torch.testing.assert_close(found.outputs(split.batch(slice(None))[0]), at_home)
        assert not torch.equal(at_home, expected)


def test_rows_are_encoded_as_in_training(of_rows: Trained) -> None:
    study = Study(**of_rows.spec["study"])
    planned = prepare_study(study, of_rows.folder / RECORDS)
    prepared = prepare(planned.data, planned.tasks[0], study, 0)
    schema, west = planned.data.schema, planned.data["west"]
    assert schema is not None
    expected = prepared.targets["west"].split("validation").x[:]
    inputs = directory.from_json(of_rows.spec["input"])
    assert torch.equal(inputs.recode(schema, west.x), expected)  # type: ignore[union-attr]


def test_what_the_directory_says_of_the_training(of_rows: Trained) -> None:
    spec, folder = of_rows.spec, of_rows.folder
    assert spec["sites"] == {"sources": ["north", "south"], "validation": [], "targets": ["west"]}
    assert spec["classes"] == ["no", "yes"] and spec["seed"] == 0
    sites = {r["site"]: (r["role"], r["trained on"], r["examples"]) for r in spec["results"]}
    assert sites == {
        "north": ("source", 22, 2), "south": ("source", 22, 2), "west": ("target", 0, 24)
    }  # fmt: skip
    low, high = spec["results"][-1]["metrics"]["accuracy"][1:]
    assert 0 <= low <= high <= 1
    size = sum(p.numel() for p in of_rows.model.module.parameters())
    statistics = 8 * len(spec["input"]["statistics"])
    ranges = 2 * 8 * 2  # the ends of age and dose
    F = spec["decisions"]["novelty"]["features"]
    # Rows by class and bin of the logit; by class, sums and products; distances in bins.
    ranges += 8 * (2 * 402 + 2 + 2 * F + F * F + 2001)
    assert spec["left the sites"]["by site"]["north"] == {
        "rounds": 2, "down": 2 * 4 * size + statistics, "up": 2 * 4 * size + statistics + ranges
    }  # fmt: skip
    card = (folder / "README.md").read_text()
    assert "\n- seed " in card  # a point of the list begins its own line
    for word in ("## Privacy", "## Limits", "| west | held out | 24 |", spec["fingerprint"]):
        assert word in card
    assert "mcmahan2017" in (folder / "citations.bib").read_text().lower()
    assert (folder / "report" / "report.html").stat().st_size > 10_000


def test_without_a_holdout_every_site_trains(of_numbers: Trained) -> None:
    spec = of_numbers.spec
    assert spec["sites"]["sources"] == ["north", "south", "west"] and not spec["sites"]["targets"]
    assert spec["classes"] is None and {r["role"] for r in spec["results"]} == {"source"}
    assert "never tried at a site" in (of_numbers.folder / "README.md").read_text()
    report = (of_numbers.folder / "report" / "report.html").read_text()
    assert "validation splits" in report


def test_a_study_may_hold_nothing_out(tmp_path: Path) -> None:
    results = Study.read(table_study(tmp_path, "seeds = 1"), {"holdout": "none"}).run(
        tmp_path / "o"
    )
    table = results.table("loss")
    assert table.columns[0] == "all"
    assert any("no target" in note for note in results.protocol("last"))


def test_the_second_time_nothing_is_trained_and_another_rule_chooses_anew(tmp_path: Path) -> None:
    file = table_study(tmp_path)
    first = trained(file, tmp_path / "model")
    done = next((tmp_path / "model").rglob("done.json"))
    before, when = first.spec["tensors"], done.stat().st_mtime_ns
    assert trained(file, tmp_path / "model").spec == first.spec
    assert done.stat().st_mtime_ns == when
    study = study_of(str(file), {"selection": "last", "evaluate_every": 1})
    other = train(study, tmp_path / "model")
    assert other.spec["round"] == 2 and other.spec["selection"] == "last"
    assert (other.spec["tensors"] == before) == (first.spec["round"] == 2)


@pytest.mark.parametrize(
    ("more", "overrides", "words"),
    [
        ('methods = ["fedavg", "ppdg"]', {}, "--method"),
        ('holdout = "leave-one-domain-out"', {}, "3 tasks: north, south, west"),
        ('holdout = "wset"', {}, "did you mean 'west'"),
        ("", {"selection": "target-oracle"}, "leaves none"),
        ('methods = ["harmofl"]', {}, "needs images"),
        ("", {"training.optimiser": "sgd(lr=1e30)"}, "there is no model"),
    ],
)
def test_what_makes_no_one_model_is_refused(
    tmp_path: Path, more: str, overrides: dict[str, object], words: str
) -> None:
    file = table_study(tmp_path, more)
    with pytest.raises(UnseenError, match=words):
        train(study_of(str(file), overrides), tmp_path / "model")
    assert not (tmp_path / "model" / "model.json").exists()


def test_statistics_of_the_batch_are_refused(tmp_path: Path) -> None:
    file = photo_study(tmp_path, training='buffers = "batch"')
    with pytest.raises(UnseenError, match="what else is predicted"):
        trained(file, tmp_path / "model")


def test_a_model_that_lacks_what_it_predicts_with_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory.Trained, "outputs", lambda self, x: torch.zeros(len(x), 2))
    monkeypatch.setattr(
        "unseen.serving.one_model.forward", lambda model, split, *_: torch.zeros(len(split), 2)
    )
    with pytest.raises(UnseenError, match="does not hold all that it predicts with"):
        trained(table_study(tmp_path), tmp_path / "model")


def test_a_model_of_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unseen: Command
) -> None:
    (tmp_path / "my_deployed.py").write_text(
        "from torch import nn\n\n\n"
        "def net(shape, outputs):\n"
        "    return nn.Sequential(nn.Linear(shape[0], 3), nn.Tanh(), nn.Linear(3, outputs))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    table_study(tmp_path, 'model = "my_deployed:net"')
    ran = unseen("train", "visits.toml", "--holdout", "south", "--out", "own")
    assert ran.code == 0, ran.err  # type: ignore[attr-defined]
    assert directory.read("own", allow_code=True).outputs(torch.zeros(1, 6)).shape == (1, 2)
    spec = json.loads((tmp_path / "own" / "model.json").read_text())
    assert spec["model"] == "my_deployed:net" and spec["sites"]["targets"] == ["south"]


def test_data_that_no_file_of_the_user_holds_can_be_measured_but_not_predicted(
    tmp_path: Path, unseen: Command
) -> None:
    more = 'holdout = "75"\nmodel = "logistic"'
    file = write_study(tmp_path / "digits.toml", "rotated-digits", more)
    found = trained(file, tmp_path / "model")
    ran = unseen("predict", found.folder, tmp_path)
    assert ran.code == 2 and "predicts from no files" in ran.err  # type: ignore[attr-defined]
    ran = unseen("evaluate", found.folder, "--sites", "75", "--format", "json")
    told = json.loads(ran.out)["domains"][0]  # type: ignore[attr-defined]
    recorded = found.spec["results"][-1]["metrics"]
    assert told["examples"] == 299 and told["in training"] == "held out"
    assert told["accuracy"] == pytest.approx(recorded["accuracy"])


def test_the_first_round_is_said_to_be_the_first(tmp_path: Path) -> None:
    """At a step so long that every later round is worse."""
    lines: list[str] = []
    overrides = {"training.optimiser": "sgd(lr=50.0)", "rounds": 4, "metric": "loss"}
    model = train(
        study_of(str(table_study(tmp_path)), overrides), tmp_path / "model", say=lines.append
    )
    assert model.spec["round"] == 1
    assert any("this is the first round" in line for line in lines)
    assert "nothing that came later is better" in (tmp_path / "model" / "README.md").read_text()


def test_a_file_that_compares_with_another_method_trains_one(tmp_path: Path) -> None:
    path = table_study(tmp_path)
    path.write_text('methods = ["fedavg", "glm"]\nreference = "fedavg"\n' + path.read_text())
    assert study_of(str(path), {}, method="glm").reference is None
    assert study_of(str(path), {}, method="fedavg").reference == "fedavg"
