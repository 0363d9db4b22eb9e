"""A ledger that no question can spoil, and that shows what a server took besides."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from support.hall import OPEN, Hall, kits
from test_hall import SITES, _quick, written

from unseen.errors import UnseenError
from unseen.sites.flower import gate
from unseen.sites.flower import server_run as federated
from unseen.sites.flower.site import Site
from unseen.sites.flower.site_handler import handle
from unseen.sites.policy import site_ledger
from unseen.sites.policy.approvals import Approvals
from unseen.sites.policy.ledger_check import against
from unseen.sites.policy.site_ledger import LONGEST, SiteLedger, check_chain

__all__ = ["_quick"]  # the fixture of test_hall


def ran(folder: Path, rounds: int = 1) -> tuple[Site, dict[str, Any], Path]:
    """Site 0 after a federation, its last question of training, and the server's records."""
    numbers, out = kits(folder, SITES, folder), folder / "out"
    hall = Hall(numbers)
    federated.run(str(written(folder, "fedavg", rounds)), str(out), hall, list(SITES))
    questions = [q for name, q in hall.sent if name == "0" and "train" in str(q["about"])]
    return Site.read(numbers[1]), questions[-1], out


def changed(question: Mapping[str, Any], position: Mapping[str, Any] = {}, **agreed: Any) -> Any:
    head = json.loads(question["head"])
    head["position"] |= position
    head["agreement"] |= agreed
    return {**question, "head": json.dumps(head)}


def study_changed(question: Mapping[str, Any], **study: Any) -> Any:
    head = json.loads(question["head"])
    return {**question, "head": json.dumps(head | {"study": head["study"] | study})}


LONG = "x" * 3_000_000
TEXTS: Mapping[str, Any] = {
    "kind": lambda q: {"kind": LONG, "protocol": q["protocol"], "about": "a", "head": "{}"},
    "name of the study": lambda q: study_changed(q, name=LONG),
    "run": lambda q: changed(q, run=LONG),
    "method": lambda q: changed(q, {"method": LONG}),
    "exchange": lambda q: changed(q, {"exchange": LONG}),
    "round": lambda q: changed(q, {"round": [LONG]}),
    "half a letter": lambda q: {**q, "kind": "\ud800" * 3_000_000},
    "large number": lambda q: changed(q, {"round": 10**4000}),
}


@pytest.mark.parametrize("where", TEXTS)
def test_no_text_of_a_question_spoils_the_ledger(tmp_path: Path, where: str) -> None:
    site, good, _ = ran(tmp_path)
    for policy in ("", OPEN):  # what is refused before the study is read, and after
        (tmp_path / "kits" / "0" / "site.toml").write_text(policy)
        site, ledger = Site.read(tmp_path / "kits" / "0"), SiteLedger(site.account)
        before = ledger.path.stat().st_size
        answer = handle(TEXTS[where](good), site)
        assert answer.get("failed") != gate.UNACCOUNTED
        assert ledger.path.stat().st_size - before <= LONGEST
    assert handle(good, site).get("failed") is None
    assert not check_chain(ledger.lines())


def test_a_study_with_a_long_name_is_kept_nowhere(tmp_path: Path) -> None:
    site, good, _ = ran(tmp_path)
    (tmp_path / "kits" / "0" / "site.toml").write_text("signed = false\n")
    answer = handle(study_changed(good, name=LONG), Site.read(tmp_path / "kits" / "0"))
    assert "bytes of settings" in str(answer["refused"]) and answer["rule"] == "study"
    sizes = [path.stat().st_size for path in site.account.rglob("*") if path.is_file()]
    assert max(sizes) < 100_000 and len(Approvals(site.account).every()) == 1


def test_a_ledger_goes_on_behind_a_line_of_any_length(tmp_path: Path) -> None:
    """An older version may have written one."""
    ledger = SiteLedger(tmp_path)
    line = {"n": 1, "kind": LONG, "left": [], "previous": site_ledger.BEGINNING}
    line["hash"] = site_ledger.hash_of(line)
    ledger.path.write_text(json.dumps(line) + "\n")
    for _ in range(2):
        ledger.append(kind="hello", left=[])
    assert [x["n"] for x in ledger.lines()] == [1, 2, 3] and not check_chain(ledger.lines())


def test_a_line_that_is_too_long_is_not_written(tmp_path: Path) -> None:
    ledger = SiteLedger(tmp_path)
    item = {"slot": "s" * LONGEST, "form": "plain", "bytes": 1}
    with pytest.raises(UnseenError, match=f"longer than {LONGEST}"):
        ledger.append(kind="exchange", left=[item])
    assert not ledger.lines()


def test_refusals_count_among_the_questions_of_a_study(tmp_path: Path) -> None:
    """The words of a refusal may say something of the data, such as how many rows there are."""
    site, good, _ = ran(tmp_path)
    asked = len([line for line in SiteLedger(site.account).lines() if "rule" not in line])
    (site.kit or tmp_path).joinpath("site.toml").write_text(
        OPEN.replace("examples = 1", "examples = 1000") + f"[most]\nquestions = {asked + 2}\n"
    )
    site = Site.read(tmp_path / "kits" / "0")
    refused = [handle(changed(good, {"seed": s}), site)["rule"] for s in (0, 1, 0, 1)]
    assert refused[0] == "least.examples" and refused[2] == "most.questions"


def test_a_refusal_that_repeats_the_last_line_adds_none(tmp_path: Path) -> None:
    site, good, _ = ran(tmp_path)
    (tmp_path / "kits" / "0" / "site.toml").write_text("signed = false\n")
    site = Site.read(tmp_path / "kits" / "0")
    other = study_changed(good, name="other")
    lines = [handle(question, site)["ledger"] for question in (other, other, good, other, other)]
    assert lines[0] == lines[1] != lines[3] == lines[4]
    assert len(SiteLedger(site.account).lines()) == 7


def test_a_day_has_room_for_a_number_of_refusals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_ledger, "REFUSALS", 5)
    site, good, _ = ran(tmp_path)
    answers = [handle({**good, "kind": f"kind {n}"}, site) for n in range(8)]
    lines = SiteLedger(site.account).lines()
    assert sum("rule" in line for line in lines) == 5 and not check_chain(lines)
    assert all(answer["refused"] == gate.MANY and "ledger" not in answer for answer in answers[5:])
    assert handle(good, site).get("failed") is None


def test_every_answer_that_the_server_does_not_account_for_is_listed(tmp_path: Path) -> None:
    site, _, out = ran(tmp_path)
    ledger = SiteLedger(site.account)
    assert against(ledger.lines(), "0", out) == ([], [])
    train = next(line for line in ledger.lines() if line.get("exchange") == "train")
    own = {k: v for k, v in train.items() if k not in ("n", "time", "previous", "hash")}
    run = str(train["job"]).partition("/")[0]
    for i in range(3):  # the same exchange of another run
        ledger.append(**{**own, "job": own["job"].replace(run, "another"), "answer": str(i)})
    differences, extra = against(ledger.lines(), "0", out)
    assert not differences and len(extra) == 1
    assert "run another: 3 answers" in extra[0] and "round 1, train" in extra[0]
    ledger.append(**{**own, "answer": "of other bits"})
    differences, extra = against(ledger.lines(), "0", out)
    assert not differences and len(extra) == 2 and f"run {run}: 1 answer of" in extra[1]
    # A server that notes the answer down has two for one exchange.
    (messages,) = (path for path in out.rglob("messages.jsonl") if path.parent != out)
    noted = [json.loads(text) for text in messages.read_text().splitlines()]
    train = next(x for x in noted if x["site"] == "0" and x["exchange"] == "train")
    entry = site_ledger.entry_of(ledger.lines()[-1])
    with messages.open("a") as file:
        file.write(json.dumps(train | {"entry": entry}) + "\n")
    differences, extra = against(ledger.lines(), "0", out)
    assert not differences and any("train: 2 answers, lines" in text for text in extra)


def test_an_entry_that_stands_at_another_exchange_is_a_difference(tmp_path: Path) -> None:
    site, _, out = ran(tmp_path, 2)
    lines = SiteLedger(site.account).lines()
    assert against(lines, "0", out) == ([], [])
    (messages,) = (path for path in out.rglob("messages.jsonl") if path.parent != out)
    noted = [json.loads(text) for text in messages.read_text().splitlines()]
    trained = [x for x in noted if x["site"] == "0" and x["exchange"] == "train"]
    trained[0]["entry"], trained[1]["entry"] = trained[1]["entry"], trained[0]["entry"]
    messages.write_text("".join(json.dumps(x) + "\n" for x in noted))
    differences, _ = against(lines, "0", out)
    assert len(differences) == 2 and "round 1, train: the server has an answer that here" in str(
        differences
    )
