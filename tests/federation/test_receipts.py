"""A server that sends different models to sites: they stop, and say which round and which sites."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from support.kits import membership
from test_hall import _quick
from test_hostile_server import Run, at, played

from unseen.sites.flower.receipts import check_receipt
from unseen.sites.flower.site import Site
from unseen.sites.flower.site_handler import handle
from unseen.sites.kits.signatures import MEMBER, MEMBER_KEY, RECEIPT, read, revoke, signed

__all__ = ["_quick"]  # the fixture of test_hall
Parcel = dict[str, Any]


def trainings(run: Run, site: str) -> list[Parcel]:
    """The questions about training that a site got, by round."""
    own = (question for name, question in run.hall.sent if name == site)
    trained = [q for q in own if json.loads(q["head"]).get("position", {})
               and json.loads(q["head"])["position"]["exchange"] == "train"]  # fmt: skip
    return sorted(trained, key=lambda q: json.loads(q["head"])["position"]["round"])


def receipts(question: Parcel) -> list[dict[str, Any]]:
    return list(json.loads(question["head"])["receipts"])


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return played(tmp_path, monkeypatch, rounds=3)


@pytest.fixture
def site(run: Run, tmp_path: Path) -> Site:
    """A source that has answered in round 1."""
    begun = run.hall.begun("0", tmp_path / "again", tmp_path)
    assert RECEIPT in handle(trainings(run, "0")[0], begun)
    return begun


def asked(site: Site, question: Parcel, documents: list[dict[str, Any]]) -> Mapping[str, Any]:
    return handle(at(question, {"receipts": documents}), site)


def test_the_next_message_carries_what_the_sites_signed(run: Run, site: Site) -> None:
    first, second, _ = trainings(run, "0")
    assert receipts(first) == []
    assert {r["site"]["name"] for r in receipts(second)} == {"0", "15", "30"}
    assert "row/model" in handle(second, site)


def test_sites_that_received_different_models_stop(run: Run, site: Site, tmp_path: Path) -> None:
    other = run.hall.begun("15", tmp_path / "fooled", tmp_path)
    handle(trainings(run, "15")[0], other)
    second, third = trainings(run, "15")[1:]
    assert RECEIPT in handle(trainings(run, "0")[1], site)
    fooled = handle({**second, "inbox/model": second["inbox/model"] + 1e-6}, other)
    mixed = [r for r in receipts(third) if r["site"]["name"] != "15"]
    mixed.append(json.loads(fooled[RECEIPT]))
    for place in (site, other):
        answer = asked(place, third, mixed)
        assert answer["rule"] == "receipts", answer
        assert "different messages in round 2, train" in answer["refused"]
        assert "15" in answer["refused"]


def test_a_site_goes_on_with_no_model_that_it_alone_received(run: Run, site: Site) -> None:
    _, second, third = trainings(run, "0")
    own = [r for r in receipts(second) if r["site"]["name"] == "0"]
    for documents in ([], own, receipts(third)):
        answer = asked(site, second, documents)
        assert answer["rule"] == "receipts" and "1 of at least 2 sites" in answer["refused"]
    assert "row/model" in handle(second, site)


def test_receipts_that_no_site_signed_count_for_nobody(
    run: Run, site: Site, tmp_path: Path
) -> None:
    second = trainings(run, "0")[1]
    (theirs, *_) = (r for r in receipts(second) if r["site"]["name"] != "0")
    forged = [{**theirs, "message": theirs["message"][::-1]}, {**theirs, "signature": "00"}]
    membership(tmp_path / "others", ["15"])  # of another authority
    outsider = tmp_path / "others" / "15"
    own = {word: value for word, value in theirs.items() if word != "signature"}
    claim = own | {"site": read(outsider / MEMBER)}
    forged.append(signed(claim, outsider / MEMBER_KEY))
    forged += [signed(own, outsider / MEMBER_KEY), {}, {"site": 7}, {**theirs, "site": {}}]
    for document in forged:
        assert asked(site, second, [document])["rule"] == "receipts", document
    assert "row/model" in asked(site, second, [theirs])


def test_the_receipt_of_a_key_that_was_revoked_counts_for_nobody(
    run: Run, site: Site, tmp_path: Path
) -> None:
    second = trainings(run, "0")[1]
    (theirs, *_) = (r for r in receipts(second) if r["site"]["name"] != "0")
    assert site.kit is not None
    content = revoke(tmp_path / "kits" / "ca", [theirs["site"]["key"]])
    (site.kit / "revoked.json").write_bytes(content)
    assert asked(site, second, [theirs])["rule"] == "receipts"


def test_a_message_before_anything_was_trained_has_no_receipts(run: Run, tmp_path: Path) -> None:
    begun = run.hall.begun("0", tmp_path / "again", tmp_path)
    first, second, _ = trainings(run, "0")
    assert asked(begun, first, receipts(second))["rule"] == "receipts"


def test_the_server_takes_no_receipt_of_another_message(run: Run) -> None:
    second = trainings(run, "0")[1]
    document = receipts(second)[0]
    answer = {"site": document["site"]["name"], RECEIPT: json.dumps(document)}
    assert check_receipt(answer, document["message"]) == document
    for wrong in ({**answer, "site": "another"}, {**answer, RECEIPT: "{"}, {"site": "0"},
                  {**answer, RECEIPT: json.dumps({**document, "round": 9})}):  # fmt: skip
        with pytest.raises(Exception, match="receipt"):
            check_receipt(wrong, document["message"])
    with pytest.raises(Exception, match="another message"):
        check_receipt(answer, "0" * 64)
