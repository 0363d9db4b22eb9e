"""What a site lets a server have: every rule of site.toml, whatever the server asks."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra flower")

from support.hall import OPEN, Hall, kits
from test_hall import SITES, _quick, written

from unseen.errors import UnseenError
from unseen.sites.asked_studies import model_study
from unseen.sites.doctor import _data as findings_of
from unseen.sites.flower import server_run as federated
from unseen.sites.flower.gate import RULES
from unseen.sites.flower.site import Site, load
from unseen.sites.flower.site_handler import answer_from, handle
from unseen.sites.flower.site_messages import Waiting
from unseen.sites.flower.terms import Refused
from unseen.sites.kits.kit import Kit
from unseen.sites.policy import spending
from unseen.sites.policy.approvals import Proposal
from unseen.sites.policy.few_rows import nearly_unique
from unseen.sites.policy.site_ledger import SiteLedger
from unseen.sites.policy.site_policy import SitePolicy
from unseen.sites.policy.study_review import review
from unseen.sites.policy.study_rules import breaches
from unseen.sites.templates import source
from unseen.studies.settings.study import StudySpec

__all__ = ["_quick"]  # the fixture of test_hall
VISITS = "table(path='visits.csv', domain='hospital', label='died'{})"
STUDY = """
dataset = "{dataset}"
methods = ["{method}"]
seeds = 1
rounds = {rounds}
model = "mlp(widths=[4])"
targets = ["west"]
[training]
batch_size = 4
{training}
[privacy]
{privacy}
[federation]
patience = 0
minimum = {minimum}
"""
NAMES = ("north", "south", "west")
AUTO = 'approval = "auto"\nsigned = false\n'


def study(
    folder: Path, more: str = "", method: str = "fedavg", rounds: int = 1, training: str = "",
    privacy: str = "", minimum: int = 2, dataset: str = VISITS,
) -> Path:  # fmt: skip
    """A study of patients whose names, notes and numbers lie beside what may be read."""
    for site in NAMES:
        lines = ["patient,ssn,note,age,sex,died"]
        for i in range(40):
            note = f"note {i} of {site}" if i % 3 == 0 else "none"
            died = ("no", "yes")[(i * 7 + len(site)) % 3 == 0]
            lines.append(f"{site} {i},61-{i:04},{note},{30 + i % 17},{'mf'[i % 2]},{died}")
        (folder / f"{site}.csv").write_text("\n".join(lines) + "\n")
    file = folder / "study.toml"
    file.write_text(
        STUDY.format(
            dataset=dataset.format(more), method=method, rounds=rounds, training=training,
            privacy=privacy, minimum=minimum,
        )
    )  # fmt: skip
    return file


def hospitals(folder: Path, policy: str, data: str = "{}.csv") -> dict[int, Path]:
    found = kits(folder, dict.fromkeys(NAMES, "train"), folder, policy)
    for kit in found.values():
        file = kit / "join.toml"
        own = folder / data.format(kit.name)
        file.write_text(file.read_text().replace(f'"{folder}"', f'"{own}"'))
    return found


def ask(folder: Path, file: Path, policy: str, **named: Any) -> Hall:
    hall = Hall(hospitals(folder, policy, **named))
    federated.run(str(file), str(folder / "out"), hall, NAMES)
    return hall


def told(folder: Path) -> str:
    """All that the server wrote down."""
    return "".join(p.read_text() for p in (folder / "out").rglob("*.json*"))


COLUMNS = AUTO + (
    '[columns]\nage = "feature"\nsex = ["feature", "levels"]\ndied = ["label", "levels"]\n'
    "[least]\nexamples = 2\n"
)


def test_only_the_columns_that_the_site_names_are_read(tmp_path: Path) -> None:
    hall = ask(tmp_path, study(tmp_path), COLUMNS)
    facts = json.loads((tmp_path / "out" / "terms.json").read_text())["facts"]["north"]
    assert sorted(facts["columns"]) == ["age", "sex"] and not facts["levels"]
    assert facts["categories"] == {"sex": ["f", "m"]} and facts["classes"] == ["no", "yes"]
    assert "61-0001" not in told(tmp_path) and "note" not in told(tmp_path)
    assert hall.sent


@pytest.mark.parametrize(
    ("more", "policy", "why"),
    [
        (", groups=['patient','ssn','note']", COLUMNS, "columns: the column 'patient' may not"),
        (", unit='ssn'", COLUMNS, "columns: the column 'ssn' may not be used as unit"),
        (", text='note'", COLUMNS, "columns: the column 'note' may not be used as text"),
        (
            ", groups=['note'], drop=['patient','ssn']",
            COLUMNS.replace("[columns]\n", '[columns]\nnote = ["group", "levels"]\n'),
            "columns: the column 'note' has nearly a value of its own for each row",
        ),
        (
            ", groups=['sex']",
            COLUMNS.replace('sex = ["feature", "levels"]', 'sex = "group"'),
            "columns: the names of the values of 'sex' do not leave",
        ),
        ("", AUTO, r"columns: approval is 'auto', and no \[columns\]"),
    ],
)
def test_names_of_patients_do_not_leave(tmp_path: Path, more: str, policy: str, why: str) -> None:
    """S1: under a channel that hides all updates, `hello` told names, numbers and notes."""
    blind = 'channel = "ckks"\nserver = "blind"'
    with pytest.raises(Waiting, match=f"refused by its rule {why}"):
        ask(tmp_path, study(tmp_path, more, privacy=blind), policy)
    assert "61-0001" not in told(tmp_path) and "north 3" not in told(tmp_path)


def test_a_table_that_names_no_domain_is_refused_with_words(tmp_path: Path) -> None:
    """By whoever signs, runs, approves, reviews it, and by the doctor."""
    lacks = r"does not say domain=.*Add domain='hospital'.*has the site's name"
    file = study(tmp_path, dataset="table(path='visits.csv', label='died')")
    folders = hospitals(tmp_path, OPEN)
    for refuse in (
        lambda: federated.federated(StudySpec.read(file)),
        lambda: model_study(file),
        lambda: federated.run(str(file), str(tmp_path / "out"), Hall(folders)),
        lambda: load(Site.read(folders[1]), StudySpec.read(file)),
    ):
        with pytest.raises(UnseenError, match=lacks):
            refuse()
    site, spec = Site.read(folders[1]), StudySpec.read(file)
    text = "\n".join(review(site, Proposal(spec)))
    assert "refused     the data cannot be read as it says" in text and "does not say" in text
    kit = Kit(
        folder=folders[1], kind="site", federation="net", servers=("localhost",), port=1,
        name="north", role="train", listen="127.0.0.1",
    )  # fmt: skip
    (finding,) = [f for f in findings_of(kit, file, None) if f.state == "fault"]
    assert "does not say domain=" in finding.text and "Add domain=" in finding.remedy


def test_a_value_of_its_own_for_each_row_never_leaves(tmp_path: Path) -> None:
    """Not even where a person approved it, or every column is open."""
    every = AUTO + '[columns]\n"*" = ["feature", "label", "group", "levels"]\n'
    more = ", groups=['ssn'], drop=['patient','note']"
    with pytest.raises(Waiting, match="rule columns: the column 'ssn' has nearly"):
        ask(tmp_path, study(tmp_path, more), every)


def test_no_other_file_of_the_folder_is_read(tmp_path: Path) -> None:
    """S1's second: any csv beside the site's own, or behind a link, was read."""
    file = study(tmp_path)
    for name in NAMES:
        folder = tmp_path / "data" / name
        folder.mkdir(parents=True)
        (folder / "visits.csv").write_text((tmp_path / f"{name}.csv").read_text())
        (folder / "salaries.csv").write_text("employee,age,sex,died\nann,1,m,no\nbob,2,f,yes\n")
    asked = file.read_text().replace("visits.csv", "salaries.csv")
    file.write_text(asked)
    with pytest.raises(Waiting, match="rule files: the data of 'north' are a folder"):
        ask(tmp_path, file, COLUMNS, data="data/{}")
    named = f'files = ["visits.csv"]\n{COLUMNS}'
    kit = hospitals(tmp_path, named, data="data/{}")[1]
    data = load(Site.read(kit), StudySpec.read(file))
    assert len(data.domains[0].y) == 40  # its own, whatever the study calls the file
    (tmp_path / "data" / "north" / "visits.csv").unlink()
    (tmp_path / "data" / "north" / "visits.csv").symlink_to(tmp_path / "south.csv")
    with pytest.raises(Refused, match="a link leads out") as refused:
        load(Site.read(kit), StudySpec.read(file))
    assert refused.value.rule == "files"


def test_a_folder_of_tables_is_refused_in_words_that_help(tmp_path: Path) -> None:
    spec = StudySpec.read(study(tmp_path))
    folder = tmp_path / "north"
    folder.mkdir()
    (folder / "notes.txt").write_text("nothing")

    def said(*files: str) -> str:
        with pytest.raises(Refused) as refused:
            load(Site("north", folder, tmp_path, policy=SitePolicy(files=files)), spec)
        assert refused.value.rule == "files"
        return str(refused.value)

    text = said()
    assert "a folder without a table (.csv, .csv.gz). " in text and "--data FILE" in text
    for name in ("one.csv", "two.csv"):
        (folder / name).write_text((tmp_path / "north.csv").read_text())
    text = said()
    assert "a folder of several tables, and its site.toml does not say which is meant. " in text
    assert text.endswith('files = ["..."] in site.toml.') and "one.csv" not in text
    text = said("one.csv", "two.csv")
    assert "the study asks for 'visits.csv', which `files` in site.toml does not list. " in text


@pytest.mark.parametrize("options", [", groups='ward'", ", unit='ward'", ", text='ward'"])
def test_an_unknown_column_is_answered_by_those_of_the_file(tmp_path: Path, options: str) -> None:
    spec = StudySpec.read(study(tmp_path, options))
    site = Site("north", tmp_path / "north.csv", tmp_path)
    with pytest.raises(UnseenError, match=r"ward.*Known: .*age") as unknown:
        load(site, spec)
    assert "site of these rows" not in str(unknown.value)


def test_no_link_leads_out_of_a_folder_of_images(tmp_path: Path) -> None:
    data, outside = tmp_path / "photos", tmp_path / "outside"
    (data / "north" / "cat").mkdir(parents=True)
    outside.mkdir()
    (data / "north" / "dog").symlink_to(outside)
    spec = StudySpec(dataset="folder(size=8)", methods=("fedavg",))
    with pytest.raises(Refused, match="a link leads out"):
        load(Site("north", data, tmp_path / "state"), spec)


CASES = {
    "least.channel": ('[least]\nchannel = "masks"', {}, "the channel is clear"),
    "least.blind": ("[least]\nblind = true", {}, "must be blind"),
    "least.batch_size": ("[least]\nbatch_size = 8", {}, "a step is of 4 examples"),
    "least.steps": ("[least]\nsteps = 40", {}, "the reply would be of 9 steps"),
    "least.examples": ("", {"training": "steps = 1"}, "a reply is made of 4 examples"),
    "least.sites": ("[least]\nsites = 3", {}, "2 sites train together, and 3 are the least"),
    "least.noise": ("[least]\nnoise = 1.0", {}, "it asks for no secret noise"),
    "most.rounds": ("[most]\nrounds = 1", {"rounds": 2}, "it has 2 rounds"),
    "most.questions": ("[most]\nquestions = 2", {}, "2 questions of this study were answered"),
    "methods": ('[methods]\nsees = "scalars"', {"method": "ppdg"}, "sees products of updates"),
    "datasets": ('datasets = ["folder"]', {}, "the data set is 'table'"),
    "evaluate": ('evaluate = ["validation"]', {}, "metrics of its rows as target do not leave"),
}


@pytest.mark.parametrize("rule", CASES)
def test_a_server_that_asks_for_less_is_refused_by_the_rule(tmp_path: Path, rule: str) -> None:
    """S2: channel, batch, steps, quorum, rounds and noise were the server's choice alone."""
    policy, changes, why = CASES[rule]
    columns = COLUMNS.partition("[columns]")
    tables = columns[1] + columns[2].partition("[least]")[0]
    if "[" not in policy.partition("=")[0]:  # a setting outside every table comes first
        policy, tables = f"{AUTO}{policy}\n{tables}", ""
    else:
        policy = f"{AUTO}{policy}\n{tables}"
    if rule != "least.examples":
        policy = policy.replace("[least]\n", "[least]\nexamples = 2\n")
        policy += "" if "[least]" in policy else "[least]\nexamples = 2\n"
    file = study(tmp_path, **changes)
    hall = Hall(hospitals(tmp_path, policy))
    answers: list[dict[str, Any]] = []
    hall.tamper = lambda site, question, answer: (answers.append(answer), [answer])[1]
    try:
        federated.run(str(file), str(tmp_path / "out"), hall, NAMES)
    except UnseenError as error:
        assert why in str(error) or rule == "evaluate"
    refusals = [a for a in answers if "refused" in a]
    assert refusals and {a["rule"] for a in refusals} == {rule}
    assert why in str(refusals[0]["refused"])
    lines = SiteLedger(Site.read(hall.kits[1]).account).lines()
    logged = [line for kit in hall.kits.values() for line in _refusals(kit)]
    assert {line["rule"] for line in logged} == {rule} and lines


def _refusals(kit: Path) -> list[Any]:
    lines = SiteLedger(Site.read(kit).account).lines()
    return [line for line in lines if "rule" in line]


def test_one_example_is_not_a_reply(tmp_path: Path) -> None:
    """S2: `steps = 1, batch_size = 1` of one site alone gave an example's gradient."""
    file = study(tmp_path, training="steps = 1", minimum=1)
    file.write_text(file.read_text().replace("batch_size = 4", "batch_size = 1"))
    with pytest.raises(Waiting, match="rule least.batch_size: a step is of 1 examples"):
        ask(tmp_path, file, AUTO + '[columns]\n"*" = ["feature", "label", "levels"]\n')


def test_a_message_that_leaves_the_study_is_refused(tmp_path: Path) -> None:
    """What was agreed to is the study: no message asks for another method, seed, model or round."""
    numbers = kits(tmp_path, SITES, tmp_path, OPEN)
    hall = Hall(numbers)
    federated.run(str(written(tmp_path, "fedavg", 1)), str(tmp_path / "out"), hall, list(SITES))
    name, question = next((s, q) for s, q in hall.sent if "train" in q.get("about", ""))
    site = Site.read(next(kit for kit in numbers.values() if kit.name == name))
    head = json.loads(question["head"])
    for change in ({"method": "ppdg"}, {"seed": 4}, {"round": 5}, {"task": "other"},
                   {"exchange": "other"}):  # fmt: skip
        position = head["position"] | change
        answer = handle({**question, "head": json.dumps(head | {"position": position})}, site)
        assert answer["rule"] == "study", change
    for field in ({"model": "mlp(widths=[2])"}, {"metrics": ["loss", "f1"]}, {"role": "source"}):
        answer = handle({**question, "head": json.dumps(head | field)}, site)
        assert answer["rule"] == "protocol", field
    assert "row/model" in handle(question, site)


def test_a_budget_of_epsilon_holds_over_all_studies(tmp_path: Path) -> None:
    pytest.importorskip("opacus", reason="needs the extra dp")
    ranges = "columns = {age = [20, 90]}\n"
    noise = f'examples = "dp(clip=1.0, noise=8.0, delta=1e-3)"\n{ranges}'
    policy = COLUMNS + "[most]\nepsilon = 1.0\ndelta = 1e-3\n"
    with pytest.raises(Waiting, match="least.noise: it asks for no secret noise"):
        ask(tmp_path, study(tmp_path), policy)
    numbers = hospitals(tmp_path, policy)
    one, other = study(tmp_path, privacy=noise, rounds=2), tmp_path / "other.toml"
    federated.run(str(one), str(tmp_path / "one"), Hall(numbers), NAMES)
    account = Site.read(numbers[1]).account
    lines = SiteLedger(account).lines()
    used = spending.epsilon(lines, 1e-3)["example"]
    assert 0 < used < 1 and sum("releases" in line for line in lines) == 2
    for kit in numbers.values():
        (kit / "site.toml").write_text(policy.replace("epsilon = 1.0", f"epsilon = {used * 1.01}"))
    # Another study on the same data, and the budget is that of both.
    other.write_text(one.read_text())
    with pytest.raises(UnseenError, match="rule most.epsilon: with this answer ε would be"):
        federated.run(str(other), str(tmp_path / "two"), Hall(numbers), NAMES)
    after = SiteLedger(account).lines()
    assert spending.epsilon(after, 1e-3)["example"] == used
    assert any(line.get("rule") == "most.epsilon" for line in after)


def test_rules_that_cannot_be_read_answer_nothing_but_that(tmp_path: Path) -> None:
    kit = hospitals(tmp_path, "least = 3\n")[1]
    answer = answer_from(kit, {"kind": "hello"})
    assert set(answer) == {"site", "protocol", "kind", "failed"}
    for text, why in (
        ("bach_size = 4", "unknown setting 'bach_size'"),
        ('[least]\nchannel = "cks"', "'clear', 'masks' or 'ckks'"),
        ('[columns]\nage = "input"', "columns"),
        ('files = ["../x.csv"]', "must be a file of the data's folder"),
        ("approval = ", "is not TOML"),
    ):
        (kit / "site.toml").write_text(text)
        with pytest.raises(UnseenError, match=why):
            SitePolicy.read(kit)


def test_the_file_that_join_writes_says_what_holds_without_it(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(source("site.toml"))
    assert SitePolicy.read(tmp_path) == SitePolicy() == SitePolicy.read(tmp_path / "nowhere")
    # With every # taken away that stands before a setting it is a file that can be read.
    lines = [line.removeprefix("# ") for line in source("site.toml").splitlines()[4:]]
    (tmp_path / "site.toml").write_text("\n".join(lines))
    assert SitePolicy.read(tmp_path).least.examples == SitePolicy().least.examples


def test_every_rule_that_a_study_breaks_is_said_at_once() -> None:
    spec = StudySpec(dataset="rotated-digits", methods=("ppdg",), rounds=9)
    policy = SitePolicy(
        datasets=("table",), most={"rounds": 3}, methods={"sees": "scalars"},
        least={"channel": "ckks", "blind": True},
    )  # fmt: skip
    rules = [breach.rule for breach in breaches(policy, spec)]
    assert rules == ["datasets", "methods", "least.channel", "least.blind", "most.rounds"]


def test_an_answer_that_reaches_the_budget_is_given_and_counts_once() -> None:
    pytest.importorskip("opacus", reason="needs the extra dp")
    release = {"protects": "example", "noise": 2.0, "rate": 0.1, "steps": 10, "delta": 1e-5,
               "clip": 1.0}  # fmt: skip
    line = {"answer": "a", "trained": True, "releases": [release]}
    used = spending.epsilon([line], 1e-5)["example"]
    assert spending.epsilon([line, line], 1e-5) == {"example": used}
    assert spending.over_budget([], line, used, 1e-5) == ""
    assert "ε would be" in spending.over_budget([], line, 0.999 * used, 1e-5)


def test_values_without_rows_do_not_make_a_column_nearly_unique() -> None:
    assert not nearly_unique(torch.tensor([10, 10, 0, 0, 0]), 5)
    assert not nearly_unique(torch.tensor([0, 0]), 5)
    assert nearly_unique(torch.tensor([4, 5]), 5)  # 4.5 on the average


def test_no_more_questions_are_answered_than_the_most(tmp_path: Path) -> None:
    policy = SitePolicy(most={"questions": 2})
    site = SimpleNamespace(policy=policy, account=tmp_path)
    ledger, check = SiteLedger(tmp_path), RULES["hello"]["most.questions"]

    def asked() -> Any:
        study = SimpleNamespace(digest="d")
        return SimpleNamespace(site=site, proposal=study, lines=ledger.lines())

    ledger.append(study="d", kind="approval")
    ledger.append(study="d", answer="1", rule="columns")  # its words may say something of the data
    ledger.append(study="d", answer="2", rule="approval")  # and these do not
    ledger.append(study="other", answer="3")
    assert not list(check(asked()))
    ledger.append(study="d", answer="4")
    assert list(check(asked()))


def test_a_study_at_the_limits_breaks_no_rule() -> None:
    training = {"steps": 5, "batch_size": 4}
    spec = StudySpec(dataset="rotated-digits", methods=("fedavg",), rounds=3, training=training)
    least, most = {"examples": 20, "steps": 5, "batch_size": 4}, {"rounds": 3}
    assert not list(breaches(SitePolicy(least=least, most=most), spec))
    least, most = {"examples": 21, "steps": 6, "batch_size": 5}, {"rounds": 2}
    rules = [breach.rule for breach in breaches(SitePolicy(least=least, most=most), spec)]
    assert rules == ["least.batch_size", "least.steps", "least.examples", "most.rounds"]
