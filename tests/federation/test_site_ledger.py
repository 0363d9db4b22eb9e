"""Approvals, signatures and the ledger of a site: what it agreed to, and what left it."""

from __future__ import annotations

import json
import shutil
import stat
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from support.hall import OPEN, Hall, kits
from support.kits import provisioned
from test_hall import SITES, _quick, written
from typer.testing import CliRunner

from unseen.cli.main import app
from unseen.errors import UnseenError
from unseen.sites.flower import gate, site_messages
from unseen.sites.flower import server_run as federated
from unseen.sites.flower.site import Site
from unseen.sites.flower.site_handler import handle
from unseen.sites.flower.site_messages import Waiting
from unseen.sites.kits import provision, signatures
from unseen.sites.kits.kit import Kit
from unseen.sites.policy import ledger_check, site_ledger
from unseen.sites.policy.approvals import Approvals, Proposal
from unseen.sites.policy.approvals import federated as as_federated
from unseen.sites.policy.site_ledger import SiteLedger, check_chain
from unseen.sites.policy.study_review import review
from unseen.sites.serve import settle
from unseen.studies.settings.study import StudySpec

__all__ = ["_quick"]  # the fixture of test_hall
WAIT = OPEN.replace('"auto"', '"wait"')


def proposal(file: Path) -> Proposal:
    return Proposal(as_federated(StudySpec.read(file)))


def test_a_study_waits_until_every_site_approved_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_messages, "AGAIN", 0.01)
    numbers = kits(tmp_path, SITES, tmp_path, WAIT)
    file = written(tmp_path, "fedavg", 1)
    hall, out = Hall(numbers), tmp_path / "out"
    with pytest.raises(Waiting, match=r"0 sites are here.*rule approval: study 'study', \w{12}"):
        federated.run(str(file), str(out), hall, list(SITES))
    # Nothing left: every answer was that it waits.
    sites = [Site.read(kit) for kit in numbers.values()]
    for site in sites:
        lines = SiteLedger(site.account).lines()
        assert {line["rule"] for line in lines} == {"approval"}
        (request,) = Approvals(site.account).every()
        assert request.digest == proposal(file).digest and not request.approval
        Approvals(site.account).approve(request)
    hall = Hall(numbers)
    federated.run(str(file), str(out), hall, list(SITES))
    # A changed study needs a new approval, and a withdrawn one ends the old.
    changed = tmp_path / "changed" / "study.toml"
    changed.parent.mkdir()
    changed.write_text(file.read_text().replace("batch_size = 16", "batch_size = 8"))
    with pytest.raises(Waiting, match="rule approval"):
        federated.run(str(changed), str(tmp_path / "other"), Hall(numbers), list(SITES))
    approvals = Approvals(sites[0].account)
    approvals.withdraw(approvals.find(proposal(file).digest[:12]))
    question = next(q for s, q in hall.sent if s == "0" and q["kind"] == "exchange")
    assert handle(question, sites[0])["rule"] == "approval"


def test_a_run_goes_on_by_itself_once_the_last_site_approves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_messages, "AGAIN", 0.01)
    numbers = kits(tmp_path, SITES, tmp_path, WAIT)
    file = written(tmp_path, "fedavg", 1)
    file.write_text(file.read_text().replace("patience = 0", "patience = 60"))
    for kit in list(numbers.values())[1:]:
        approvals = Approvals(Site.read(kit).account)
        approvals.approve(approvals.ask(proposal(file)))
    late = Approvals(Site.read(numbers[1]).account)
    news: list[str] = []

    def approve_later(site: str, question: Any, answer: Any) -> list[Any]:
        waiting = json.loads((tmp_path / "out" / "federation.json").read_text())["waiting"]
        news.append(waiting)
        if answer.get("rule") == "approval" and len(news) > 6:
            late.approve(late.every()[0])
        return [answer]

    federated.run(str(file), str(tmp_path / "out"), Hall(numbers, approve_later), list(SITES))
    assert any("not yet approved at 0" in text for text in news)
    facts = json.loads((tmp_path / "out" / "terms.json").read_text())["facts"]
    assert sorted(facts) == sorted(SITES)


def test_a_review_says_what_would_leave(tmp_path: Path) -> None:
    numbers = kits(tmp_path, SITES, tmp_path, WAIT)
    file = written(tmp_path, "ppdg+ga", 3)
    site = Site.read(numbers[1])
    text = "\n".join(review(site, proposal(file)))
    for words in (
        "40 rows are read here", "features    a, b, c, d", "label       died",
        "the names of died: 0, 1", "clear: the server reads every update", "needs products",
        "train, each round: model (about 58 numbers), scalars", "3 rounds × 1 methods × 1 seeds",
        "ε is not bounded", "sums over the training rows of every column",
        "site.toml allows it",
    ):  # fmt: skip
        assert words in text, text
    assert not SiteLedger(site.account).lines()  # it is read here, and nothing leaves
    stricter = replace(site, policy=site.policy.model_copy(update={"datasets": ("folder",)}))
    assert "refused     the data set is 'table'" in "\n".join(review(stricter, proposal(file)))


TURN = "a target in turn, and trains in the other tasks"


@pytest.mark.parametrize(
    ("plan", "site", "role", "trains", "tests"),
    [
        ("", "0", "source: it trains", True, ""),
        ("", "75", "target: this site never trains", False, "target"),
        ('validation = ["30"]', "30", "validation: it only evaluates", False, "validation"),
        ("others", "15", "source: it trains", True, ""),
        ("others", "75", "target: this site never trains", False, "target"),
        ("groups", "0", f"source and target: each group of sites is {TURN}", True, "target"),
        ("groups", "75", "target: this site never trains", False, "target"),
        ("each", "0", f"source and target: each site is {TURN}", True, "target"),
        ("0 alone", "0", "target: it only evaluates", False, "target"),
        ("0 alone", "15", "source: it trains", True, ""),
        ("none", "75", "none: this site never trains, and is not a target", False, ""),
    ],
)
def test_a_review_says_what_this_site_does(
    tmp_path: Path, plan: str, site: str, role: str, trains: bool, tests: str
) -> None:
    file = written(tmp_path, "fedavg", 3)
    named = '[holdout]\nsource = ["0", "15", "30"]\ntarget = ["75"]\n'
    plans = {
        "": named, "others": '[holdout]\nsource = "others"\ntarget = ["75"]\n',
        'validation = ["30"]': named.replace(', "30"', "") + 'validation = ["30"]\n',
        "groups": "[holdout]\ngroups = 2\n", "each": "", "0 alone": "", "none": "",
    }  # fmt: skip
    top = {"0 alone": 'targets = ["0"]\n', "none": 'holdout = "none"\n'}.get(plan, "")
    file.write_text(top + file.read_text().replace(named, plans[plan]))
    numbers = kits(tmp_path, SITES, tmp_path)
    lines = review(Site.read(numbers[[*SITES].index(site) + 1]), proposal(file))
    assert next(x for x in lines if x.startswith("  role")).startswith(f"  role        {role}")
    text = "\n".join(lines)
    for words in ("train, each round: model", "sums over the training rows", "needs scalars"):
        assert (words in text) == trains, text
    assert ("trains nothing of it" in text) == (not trains)
    shown = [x for x in lines if "metrics of all its rows as" in x]
    assert [x.rpartition(" as ")[2] for x in shown] == ([tests] if tests else [])
    assert "the rule evaluate keeps" not in text


def test_a_review_says_which_metrics_the_site_keeps(tmp_path: Path) -> None:
    policy = 'evaluate = ["validation"]\n' + OPEN
    numbers, file = kits(tmp_path, SITES, tmp_path, policy), written(tmp_path, "fedavg", 3)
    text = "\n".join(review(Site.read(numbers[4]), proposal(file)))
    assert "test, each round: metrics of all its rows as target (the rule evaluate keeps" in text


def ran(tmp_path: Path, methods: str = "fedavg", rounds: int = 2) -> tuple[dict[int, Path], Path]:
    numbers = kits(tmp_path, SITES, tmp_path)
    out = tmp_path / "out"
    federated.run(str(written(tmp_path, methods, rounds)), str(out), Hall(numbers), list(SITES))
    return numbers, out


def test_the_ledger_has_all_that_left_and_the_server_says_the_same(tmp_path: Path) -> None:
    numbers, out = ran(tmp_path, "scaffold+ga fedavg")
    for name, kit in zip(SITES, numbers.values(), strict=True):
        ledger = SiteLedger(Site.read(kit).account)
        assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600
        lines = ledger.lines()
        assert not check_chain(lines) and lines[0]["kind"] == "hello"
        assert ledger_check.against(lines, name, out) == ([], [])
        assert all(datetime.fromisoformat(line["time"]) and line["study"] for line in lines)
    first = SiteLedger(Site.read(numbers[1]).account).lines()
    left = {(line["kind"], item["slot"]) for line in first for item in line["left"]}
    assert left >= {("hello", "facts"), ("statistics", "statistics"), ("exchange", "model")}


def test_a_server_that_claims_more_or_other_is_found_out(tmp_path: Path) -> None:
    numbers, out = ran(tmp_path)
    lines = SiteLedger(Site.read(numbers[1]).account).lines()
    (path,) = out.rglob("ledger.jsonl")
    records = path.read_text().splitlines()
    changed = [json.loads(text) for text in records]
    trained = next(line for line in changed if line["exchange"] == "train")
    trained["left"][0]["form"] = "masked"
    path.write_text("".join(json.dumps(line) + "\n" for line in changed))
    differences, extra = ledger_check.against(lines, "0", out)
    assert len(differences) == 1 and "model, masked" in differences[0]
    assert len(extra) == 1 and "model, plain" in extra[0]
    # An answer that the server has and this ledger has not.
    differences, _ = ledger_check.against(lines[:-1], "0", out)
    assert any("that is not in this ledger" in text for text in differences)


def test_a_ledger_that_was_changed_is_not_whole(tmp_path: Path) -> None:
    numbers, _ = ran(tmp_path)
    ledger = SiteLedger(Site.read(numbers[1]).account)
    lines = ledger.lines()
    smaller = [{**item, "bytes": 1} for item in lines[2]["left"]]
    for wrong, why in (
        ([*lines[:2], {**lines[2], "left": smaller}, *lines[3:]], "line 3 was changed"),
        ([*lines[:2], *lines[3:]], "line 3 says that it is line 4"),
        (lines[1:], "line 1 says that it is line 2"),
        ([lines[1], lines[0], *lines[2:]], "line 1 says that it is line 2"),
    ):
        assert why in check_chain(wrong)[0]
    # A line that a crash left half written was never followed by an answer.
    with ledger.path.open("ab") as file:
        file.write(b'{"n": 99, "ti')
    line = ledger.append(kind="approval", left=[])
    assert line["n"] == len(lines) + 1 and not check_chain(ledger.lines())


def test_a_line_that_a_power_cut_left_unfinished_costs_no_run(tmp_path: Path) -> None:
    numbers, _ = ran(tmp_path)
    site = Site.read(numbers[1])
    ledger = SiteLedger(site.account)
    lines, whole = ledger.lines(), ledger.path.read_bytes()
    ledger.path.write_bytes(whole[:-40])
    assert ledger.lines() == lines[:-1]  # whoever only reads leaves it as it is
    assert ledger.path.read_bytes() == whole[:-40]
    assert ledger.unfinished()
    for kit in numbers.values():  # another run needs another approval
        approvals = Approvals(Site.read(kit).account)
        approvals.approve(*approvals.every())
    federated.run(str(tmp_path / "study.toml"), str(tmp_path / "again"), Hall(numbers), list(SITES))
    after = ledger.lines()
    assert after[: len(lines) - 1] == lines[:-1] and after[len(lines) - 1]["kind"] == "hello"
    assert "rule" not in after[len(lines) - 1] and not check_chain(after)
    assert ledger.set_aside.read_bytes() == whole.splitlines()[-1][:-39] + b"\n"
    assert stat.S_IMODE(ledger.set_aside.stat().st_mode) == 0o600
    # A line that lacks its end alone is whole, and may have been answered by.
    ledger.path.write_bytes(whole[:-1])
    assert ledger.lines() == lines
    with ledger.lock():
        assert ledger.path.read_bytes() == whole
    # Anything else that is wrong with it stays an error.
    torn = whole.splitlines(keepends=True)
    ledger.path.write_bytes(b"".join([*torn[:2], torn[2][:-40] + b"\n", *torn[3:]]))
    with ledger.lock(), pytest.raises(UnseenError, match="line 3 of .* cannot be read"):
        ledger.lines()


def test_nothing_leaves_that_the_ledger_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = kits(tmp_path, SITES, tmp_path)
    hall = Hall(numbers)
    federated.run(str(written(tmp_path, "fedavg", 1)), str(tmp_path / "out"), hall, list(SITES))
    questions = {str(q["kind"]): q for s, q in hall.sent if s == "0"}
    site = Site.read(numbers[1])

    def full(descriptor: int, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    def ask() -> None:
        shutil.rmtree(site.state)  # else what left before leaves again
        site.state.mkdir()
        for kind in ("hello", "statistics", "exchange"):
            answer = handle(questions[kind], site)
            assert answer["failed"] == gate.UNACCOUNTED
            assert not {"facts", "row/model", "row/statistics"} & set(answer)

    # An answer that left before is in the ledger, and may leave again.
    assert "failed" not in handle(questions["exchange"], site)
    SiteLedger(site.account).path.unlink()
    with monkeypatch.context() as patched:
        patched.setattr(site_ledger, "_append", full)
        ask()
    assert "facts" in handle(questions["hello"], site)
    SiteLedger(site.account).path.unlink()
    SiteLedger(site.account).path.mkdir()
    ask()


def test_a_study_runs_only_as_a_coordinator_signed_it(tmp_path: Path) -> None:
    out = provisioned(
        tmp_path / "kits", sites=dict(SITES), people={"anna": "coordinator", "ben": "coordinator"}
    )
    file = written(tmp_path, "fedavg", 1)
    numbers = {}
    for number, name in enumerate(SITES, 1):
        settle(Kit.read(out / name), tmp_path)
        (out / name / "site.toml").write_text(OPEN.replace("signed = false\n", ""))
        numbers[number] = out / name
    records = tmp_path / "out"
    records.mkdir()

    def run(document: Any, text: str = "") -> None:
        (records / "signature.json").write_text(json.dumps(document))
        study = tmp_path / "study.toml"
        study.write_text(text or file.read_text())
        federated.run(str(study), str(records), Hall(numbers), list(SITES))

    digest = proposal(file).digest
    right = signatures.sign_study(out / "anna", digest)
    certificate = {**_without(signatures.read(out / "ben" / "person.json")), "role": "auditor"}
    ben = signatures.signed(certificate, out / "ca" / "authority.key")
    (out / "ben" / "person.json").write_text(json.dumps(ben))
    with pytest.raises(UnseenError, match="not of a coordinator"):
        signatures.sign_study(out / "ben", digest)
    forged = signatures.signed({**_without(right), "person": ben}, out / "ben" / "person.key")
    promoted = signatures.signed(
        {**_without(right), "person": {**ben, "role": "coordinator"}}, out / "ben" / "person.key"
    )
    other = file.read_text().replace("batch_size = 16", "batch_size = 8")
    original = file.read_text()
    for document, text, why in (
        ({}, "", "no coordinator's signature"),
        (forged, "", "is not of a coordinator"),
        (promoted, "", "does not bear the signature"),
        ({**right, "study": "0"}, "", "does not bear the signature"),
        (right, other, "under another study"),
    ):
        with pytest.raises(Waiting, match=f"rule signed.*{why}"):
            run(document, text or original)
    run(right, original)
    # Revoked: the sites that have the new list refuse what it signed before, too.
    carried = provision.revoke(out, "anna")
    assert out / "0" / "revoked.json" in carried
    with pytest.raises(Waiting, match="rule signed.*was revoked"):
        run(right, original)


def _without(document: Any) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != "signature"}


def test_keys_are_renewed_and_revoked_by_one_call(tmp_path: Path) -> None:
    pytest.importorskip("tenseal", reason="encrypted sums need the extra he")
    out = provisioned(tmp_path / "kits", ckks=True, masks=True)
    Kit.read(out / "server").check()
    files = ("ckks.secret", "masks.private", "ca.crt", "masks.public.json")

    def contents(name: str) -> dict[str, bytes]:
        return {file: (out / name / file).read_bytes() for file in files}

    first = contents("north")
    provision.renew(out, "masks")
    second = contents("north")
    assert {f for f in files if first[f] != second[f]} == {"masks.private", "masks.public.json"}
    provision.renew(out, "ckks")
    third = contents("north")
    assert {f for f in files if second[f] != third[f]} == {"ckks.secret"}
    assert third["ckks.secret"] == (out / "south" / "ckks.secret").read_bytes()
    Kit.read(out / "server").check()  # signed again
    carried = provision.revoke(out, "west")
    fourth = contents("north")
    assert fourth["ckks.secret"] != third["ckks.secret"]
    assert set(json.loads(fourth["masks.public.json"])) == {"north", "south"}
    assert not (out / "server" / "sites" / "west.pub").exists() and carried
    assert (out / "west" / "ckks.secret").read_bytes() == third["ckks.secret"]
    provision.revoke(out, "server")
    assert contents("north")["ca.crt"] != fourth["ca.crt"]
    Kit.read(out / "server").check()
    (out / "server" / "kit.toml").write_text(
        (out / "server" / "kit.toml").read_text().replace("trial", "other")
    )
    with pytest.raises(UnseenError, match="kit.toml of .* differ from what the federation's"):
        Kit.read(out / "server").check()


def test_the_commands_of_a_site(tmp_path: Path) -> None:
    out = provisioned(tmp_path / "kits", sites=dict(SITES))
    kit, file = out / "0", written(tmp_path, "fedavg", 1)
    settle(Kit.read(kit), tmp_path)

    def say(*words: object) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["federation", *map(str, words)])
        return result.exit_code, result.output + str(result.exception or "")

    assert say("sign", file, "--kit", out / "coordinator")[0] == 0
    assert "waits" not in say("review", kit)[1]
    code, text = say("review", kit, file)
    assert code == 0 and "signed      by coordinator" in text
    assert "4 held back, and figures of fewer than 10 do not leave" in text
    assert "asked 2" in say("review", kit)[1] and "waits" in say("review", kit)[1]
    code, text = say("approve", kit)
    assert code == 0 and "approval of study study" in text
    assert "approved 2" in say("review", kit)[1]
    assert "0 studies wait" in say("approve", kit)[1]
    assert say("approve", kit, "--withdraw")[0] == 0
    code, text = say("ledger", kit, "--verify")
    assert code == 0 and text.startswith("2 lines, each follows")
    assert "withdrawal" in say("ledger", kit)[1]
    ledger = kit / "account" / "ledger.jsonl"
    whole = ledger.read_text()
    ledger.write_text(whole[:-40])
    code, text = say("ledger", kit, "--verify")
    assert code == 0 and "the last line is unfinished" in text and "1 lines, each follows" in text
    ledger.write_text(whole)
    assert "unfinished" not in say("ledger", kit, "--verify")[1]
    ledger.write_text(whole.replace("approval", "approvel"))
    code, text = say("ledger", kit, "--verify")
    assert code == 1 and "broken: line 1 was changed" in text
