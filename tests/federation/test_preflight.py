"""What a site would refuse later is said by `doctor`, `review` and `approve`, with the remedy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from support.hall import OPEN, Hall, kits
from support.kits import provisioned
from test_hall import SITES, _quick, written
from typer.testing import CliRunner

from unseen.cli.main import app
from unseen.sites import doctor
from unseen.sites.flower import gate
from unseen.sites.flower import server_run as federated
from unseen.sites.flower.site import Site, load
from unseen.sites.flower.site_messages import Waiting
from unseen.sites.kits.kit import Kit
from unseen.sites.policy import preflight, study_rules
from unseen.sites.policy.approvals import Proposal
from unseen.sites.policy.approvals import federated as as_federated
from unseen.sites.policy.site_policy import Least, Methods, Most, SitePolicy
from unseen.sites.policy.study_review import review
from unseen.sites.serve import settle
from unseen.studies.settings.study import StudySpec

__all__ = ["_quick"]
TEN = OPEN.replace("examples = 1\n", "examples = 10\n")


def fewer(folder: Path, rows: int) -> Path:
    """The study, where site 0 has so many rows."""
    file = written(folder, "fedavg", 1)
    head, *lines = (folder / "visits.csv").read_text().splitlines()
    own = [line for line in lines if line.startswith("0,")][:rows]
    others = [line for line in lines if not line.startswith("0,")]
    (folder / "visits.csv").write_text("\n".join([head, *own, *others]) + "\n")
    return file


def say(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["federation", *map(str, words)])
    return result.exit_code, result.output + str(result.exception or "")


def test_a_site_of_22_rows_hears_of_it_before_the_first_round(tmp_path: Path) -> None:
    out = provisioned(tmp_path / "kits", sites=dict(SITES))
    kit, file = out / "0", fewer(tmp_path, 22)
    settle(Kit.read(kit), tmp_path)
    (kit / "site.toml").write_text(TEN.replace('"auto"', '"wait"'))
    # 0.1 of 22 rows are 2, and figures of 2 rows do not leave.
    site, study = Site.read(kit), as_federated(StudySpec.read(file))
    text = "\n".join(review(site, Proposal(study)))
    assert "rows        20 to train on, 2 held back" in text
    assert "refused     of 22 rows 20 are trained on and 2 held back, and figures of fewer" in text
    assert "validation = 0.45 in the study holds back 10" in text
    assert "lower least.examples in site.toml to 2" in text and "site.toml allows it" not in text
    found = {f.what: f for f in doctor.examine(Kit.read(kit), file) if f.state != "ok"}
    assert found["rules"].state == "warning" and "2 held back" in found["rules"].text
    assert "validation = 0.45" in found["rules"].remedy
    code, words = say("approve", kit, file)
    assert code == 0 and "stays here: of 22 rows 20 are trained on and 2 held back" in words
    # With the remedy nothing is said.
    file.write_text(file.read_text().replace("[holdout]", "validation = 0.46\n[holdout]"))
    assert "site.toml allows it" in "\n".join(review(site, Proposal(StudySpec.read(file))))
    code, words = say("approve", kit, file)
    assert code == 0 and "stays here" not in words


def test_what_would_be_refused_is_not_approved(tmp_path: Path) -> None:
    out = provisioned(tmp_path / "kits", sites=dict(SITES))
    kit, file = out / "0", fewer(tmp_path, 9)
    settle(Kit.read(kit), tmp_path)
    (kit / "site.toml").write_text(TEN)
    code, words = say("approve", kit, file)
    assert code != 0 and "9 rows are here, and 10 are the least (rule least.examples)" in words
    assert "waits" in say("review", kit)[1] or "no study" in say("review", kit)[1]


@pytest.mark.parametrize(
    ("policy", "change", "rule"),
    [
        ("[most]\nrounds = 2", ("rounds = 1", "rounds = 3"), "most.rounds"),
        ("[methods]\nsees = 'scalars'", ('"fedavg"', '"pcgrad"'), "methods"),
        ("[methods]\nextras = false", ('"fedavg"', '"scaffold"'), "methods"),
        ("", ("batch_size = 16", "batch_size = 64\ndrop_last = true"), "study"),
        ("", ("[training]", '[privacy]\nchannel = "masks()"\n[training]'), "study"),
    ],
)
def test_what_doctor_finds_is_what_the_run_refuses(
    tmp_path: Path, policy: str, change: tuple[str, str], rule: str
) -> None:
    file = written(tmp_path, "fedavg", 1)
    file.write_text(file.read_text().replace(*change))
    places = kits(tmp_path, SITES, tmp_path, OPEN + policy)
    site, study = Site.read(places[1]), as_federated(StudySpec.read(file))
    refusals = preflight.of_study(site, study)
    refusals = refusals or [*preflight.of_data(site, study, load(site, study), ("source",))]
    assert rule in {refusal.rule for refusal in refusals}
    assert all(refusal.remedy for refusal in refusals)
    with pytest.raises(Exception, match=r"\w"):
        federated.run(str(file), str(tmp_path / "out"), Hall(places), list(SITES))


@pytest.mark.parametrize(
    ("least", "rule"),
    [
        ({"examples": 37}, "least.examples"),
        ({"examples": 5}, "least.examples"),
        ({"steps": 4}, "least.steps"),
        ({"sites": 4}, "least.sites"),
        ({"rows_per_level": 30}, "columns"),
    ],
)
def test_every_minimum_is_looked_at(tmp_path: Path, least: dict[str, int], rule: str) -> None:
    file = written(tmp_path, "fedavg", 1)
    site = Site.read(kits(tmp_path, SITES, tmp_path, OPEN)[1])
    study = as_federated(StudySpec.read(file))
    data = load(site, study)
    assert not [*preflight.of_data(site, study, data, ("source",))]
    open_least = {"examples": 1, "rows_per_level": 2, **least}
    fields = site.policy.model_dump() | {"least": open_least}
    strict = replace(site, policy=SitePolicy(**fields))
    refusals = [*preflight.of_data(strict, study, data, ("source",))]
    assert {refusal.rule for refusal in refusals} == {rule}
    assert all(refusal.remedy for refusal in refusals)


def test_five_rows_are_too_few_rows_first(tmp_path: Path) -> None:
    file = fewer(tmp_path, 5)
    site = Site.read(kits(tmp_path, SITES, tmp_path, TEN)[1])
    study = as_federated(StudySpec.read(file))
    site = replace(site, policy=SitePolicy(**site.policy.model_dump() | {"least": {}}))
    first, *_ = preflight.of_data(site, study, load(site, study), ("source",))
    assert first.why == "5 rows are here, and 10 are the least"
    places = kits(tmp_path, SITES, tmp_path, TEN.replace("level = 2", "level = 5"))
    with pytest.raises(Waiting, match="5 rows are here, and 10 are the least to train on"):
        federated.run(str(file), str(tmp_path / "out"), Hall(places), [*SITES])


NOISE = '[privacy]\nexamples = "dp(clip=1.0, noise=1.0, delta=1e-5)"\n'
NOISE += "columns = {a = [-4, 4], b = [-4, 4], c = [-4, 4], d = [-4, 4]}\n"
#: Rule of site.toml -> what the site sets it to, what the study says, and what is named.
FOUND: dict[str, tuple[dict[str, Any], tuple[str, str], str]] = {
    "datasets": ({"datasets": ["folder"]}, ("", ""), "datasets"),
    "columns": ({"columns": {"*": "feature"}}, ("", ""), "columns"),
    "evaluate": ({"evaluate": ["target"]}, ("", ""), "evaluate"),
    "code": ({}, ('"fedavg"', '"evil:f"'), "code"),
    "least.channel": ({"least": {"channel": "masks"}}, ("", ""), "least.channel"),
    "least.blind": ({"least": {"blind": True}}, ("", ""), "least.blind"),
    "least.batch_size": ({"least": {"batch_size": 17}}, ("", ""), "least.batch_size"),
    "least.steps": ({"least": {"steps": 4}}, ("", ""), "least.steps"),
    "least.examples": ({"least": {"examples": 37}}, ("", ""), "least.examples"),
    "least.rows_per_level": ({"least": {"rows_per_level": 30}}, ("", ""), "columns"),
    "least.sites": ({"least": {"sites": 4}}, ("", ""), "least.sites"),
    "least.noise": ({"least": {"noise": 1.0}}, ("", ""), "least.noise"),
    "most.rounds": ({"most": {"rounds": 2}}, ("rounds = 1", "rounds = 3"), "most.rounds"),
    "most.questions": ({"most": {"questions": 2}}, ("", ""), "most.questions"),
    "most.epsilon": ({"most": {"epsilon": 0.1}}, ("[training]", NOISE + "[training]"),
                     "most.epsilon"),
    "methods.names": ({"methods": {"names": ["glm"]}}, ("", ""), "methods"),
    "methods.sees": ({"methods": {"sees": "scalars"}}, ('"fedavg"', '"pcgrad"'), "methods"),
    "methods.extras": ({"methods": {"extras": False}}, ('"fedavg"', '"scaffold"'), "methods"),
}  # fmt: skip
#: What no look at study and rows can find, and why.
APART = {
    "approval": "is what comes next", "signed": "review names who signed",
    "files": "the data cannot be read then", "most.days": "is about the time of the run",
    "most.delta": "belongs to most.epsilon",
    "least.rows_per_value": "refuses nothing: the values count as missing",
}  # fmt: skip


def rules() -> list[str]:
    """Every rule of site.toml, and what the gate looks at besides."""
    tables = {"least": Least, "most": Most, "methods": Methods}
    own = [
        f"{name}.{field}" if name in tables else name
        for name in SitePolicy.model_fields
        for field in (tables[name].model_fields if name in tables else ("",))
    ]
    return own


@pytest.mark.parametrize("rule", rules())
def test_every_rule_is_applied_before_a_study_is_approved(tmp_path: Path, rule: str) -> None:
    """A new rule needs a line above."""
    if rule in APART:
        assert APART[rule] and rule not in FOUND
        return
    changes, words, named = FOUND[rule]
    file = written(tmp_path, "fedavg", 1)
    file.write_text(file.read_text().replace(*words) if words[0] else file.read_text())
    site = Site.read(kits(tmp_path, SITES, tmp_path, OPEN)[1])
    study = as_federated(StudySpec.read(file))
    relaxed = site.policy.model_dump() | {"least": {"examples": 1, "rows_per_level": 2}}

    def refusals(changes: dict[str, Any]) -> set[str]:
        fields = {k: relaxed[k] | v if isinstance(v, dict) and k != "columns" else v
                  for k, v in changes.items()}  # fmt: skip
        strict = replace(site, policy=SitePolicy(**relaxed | fields))
        broken = preflight.of_study(strict, study)
        data = None if broken else load(strict, study)
        roles = ("source",)
        return {r.rule for r in broken or preflight.of_data(strict, study, data, roles)}

    assert named in refusals(changes)
    assert rule == "code" or named not in refusals({})


def test_what_the_gate_refuses_has_a_rule_that_is_looked_at() -> None:
    names = {*study_rules.RULES, *(rule for own in gate.RULES.values() for rule in own)}
    found = {named for _, _, named in FOUND.values()} | {"study", "files", "receipts"}
    assert names <= found
