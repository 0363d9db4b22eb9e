"""Every field of every message, found in the messages themselves, and what a change of it does.

A changed message gets the bytes that the unchanged one got, or a refusal with its rule's name:
never another computation. A field that is new is changed here without being added.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr", reason="needs the extra flower")

from support.hall import OPEN, Hall, kits
from test_hall import SITES, _quick, written

from unseen.sites.flower import server_run as federated
from unseen.sites.flower import terms
from unseen.sites.flower.script import Agreement, Position
from unseen.sites.flower.site import Site
from unseen.sites.flower.site_handler import handle
from unseen.sites.flower.site_question import Head
from unseen.sites.kits.provision import write_sum_keys
from unseen.sites.policy.approvals import Approvals, Proposal
from unseen.sites.policy.site_ledger import digest_of_parcel
from unseen.studies.settings.study import StudySpec

__all__ = ["_quick"]  # the fixture of test_hall
WAIT = OPEN.replace('"auto"', '"wait"')
Parcel = dict[str, Any]
GONE = object()
PRIVACY = {
    "clear": "", "masks": '[privacy]\nchannel = "masks()"\n',
    "blind": '[privacy]\nchannel = "ckks"\nserver = "blind"\n',
}  # fmt: skip


def words(value: Any) -> Iterator[tuple[str, Any]]:
    """What else may stand where JSON has a value."""
    yield "absent", GONE
    yield "another type", 7 if isinstance(value, str | dict | list) else "seven"
    yield from (("a list", [value, value]), ("nothing", None), ("NaN", math.nan))
    if isinstance(value, bool):
        yield "the other", not value
    elif isinstance(value, int):
        yield from (("one more", value + 1), ("below 0", -1 - value), ("huge", 2**70))
    elif isinstance(value, float):
        yield from (("one ulp", math.nextafter(value, math.inf)), ("huge", 1e300))
    elif isinstance(value, str):
        yield from (("another text", value + "x"), ("huge", "x" * 100_000), ("empty", ""))
    elif isinstance(value, list):
        yield from (("reordered", value[::-1]), ("shorter", value[:-1]))
    elif isinstance(value, dict):
        yield "one more key", {**value, "another": 1}


def arrays(value: Tensor, other: Tensor | None) -> Iterator[tuple[str, Any]]:
    """What else may come where a message has a tensor."""
    yield "absent", GONE
    yield from (("a text", "x"), ("bytes", b"x"), ("a number", 1.0))
    yield from (("another type", value.half()), ("longer", torch.cat([value, value[:1]])))
    yield from (("one ulp", torch.nextafter(value, value + 1)), ("huge", value + 1e30))
    yield from (("NaN", value * math.nan), ("reordered", value.flip(0)), ("zero", value * 0))
    if other is not None:
        yield "another round's", other


def contents(value: bytes, other: bytes | None) -> Iterator[tuple[str, Any]]:
    yield "absent", GONE
    yield from (("a text", "x"), ("cut", value[: len(value) // 2]), ("empty", b""))
    yield "a bit", value[:-40] + bytes([value[-40] ^ 1]) + value[-39:]
    if other is not None:
        yield "another round's", other


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every value in nested JSON, and every table and list on the way."""
    if path:
        yield path, value
    inner = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list) and value and isinstance(value[0], dict):
        inner = enumerate(value[:1])  # the others are like it
    for key, own in inner:
        yield from leaves(own, (*path, key))


def put(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    if not path:
        return other
    first, *rest = path
    if isinstance(value, list):
        own = put(value[first], tuple(rest), other)
        return [*value[:first], *([] if own is GONE else [own]), *value[first + 1 :]]
    if other is GONE and not rest:
        return {key: own for key, own in value.items() if key != first}
    return {**value, first: put(value[first], tuple(rest), other)}


def changed(parcel: Parcel, another: Parcel) -> Iterator[tuple[str, str, Parcel]]:
    """Every field of a message, how it was changed, and the message with that."""
    head = json.loads(parcel["head"])
    for path, value in leaves(head):
        for how, other in words(value):
            if other == value and type(other) is type(value):
                continue
            yield f"head/{'/'.join(map(str, path))}", how, {
                **parcel, "head": json.dumps(put(head, path, other))
            }  # fmt: skip
    yield "head/another", "a new field", {**parcel, "head": json.dumps({**head, "another": 1})}
    yield "another", "a new field", {**parcel, "another": 1}
    yield "inbox/another", "a new field", {**parcel, "inbox/another": torch.ones(2)}
    for name, value in parcel.items():
        others: Any = another.get(name)
        if isinstance(value, Tensor):
            ways = arrays(value, others)
        elif isinstance(value, bytes):
            ways = contents(value, others)
        elif name != "head":
            ways = words(value)
        else:
            ways = iter([("not JSON", "{"), ("deep", "[" * 9000 + "]" * 9000), ("a list", "[]")])
        for how, other in ways:
            without = {key: own for key, own in parcel.items() if key != name}
            yield name, how, without if other is GONE else {**without, name: other}


def same(answer: Mapping[str, Any], first: Mapping[str, Any], under_masks: bool) -> bool:
    apart = {"ledger"} if answer.get("kind") == "hello" else set[str]()
    if under_masks and any(name.startswith(terms.SEALED) for name in first):
        apart = {terms.ENTRY}  # the same row once more, which the ledger counts
    one, two = ({k: v for k, v in a.items() if k not in apart} for a in (answer, first))
    return digest_of_parcel(one) == digest_of_parcel(two)


SLOW = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.mark.parametrize(
    "channel", ["clear", *(pytest.param(name, marks=SLOW) for name in ("masks", "blind"))]
)
def test_no_field_of_a_message_makes_a_site_compute_anything_else(
    channel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    if channel != "clear":
        pytest.importorskip("tenseal" if channel == "blind" else "cryptography", reason="needs he")
    file = written(tmp_path, "fedavg", 2)
    text = file.read_text().replace('save = ["final"]\n', "") if channel == "blind" else None
    file.write_text((text or file.read_text()) + PRIVACY[channel])
    places = kits(tmp_path, SITES, tmp_path, WAIT)
    if channel != "clear":
        write_sum_keys(tmp_path / "kits", list(SITES), [{"blind": "ckks"}.get(channel, channel)])
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "kits" / "server" / "flower"))
    proposal = Proposal(federated.federated(StudySpec.read(file)))
    for kit in places.values():
        approvals = Approvals(Site.read(kit).account)
        approvals.approve(approvals.ask(proposal))
    answers: list[tuple[str, Parcel, Parcel]] = []

    def note(site: str, question: Parcel, answer: Parcel) -> list[Parcel]:
        answers.append((site, question, answer))
        return [answer]

    federated.run(str(file), str(tmp_path / "out"), Hall(places, note), list(SITES))
    site = Site.read(next(kit for kit in places.values() if kit.name == "0"))
    own = [(q, a) for name, q, a in answers if name == "0" and q["kind"] != "channel"]
    last = {(q["kind"], position(q).get("exchange", "")): (q, a) for q, a in own}
    earlier: dict[Any, Parcel] = {}
    for q, _ in own:
        earlier.setdefault((q["kind"], position(q).get("exchange", "")), q)
    named = {field.name for kind in (Head, Agreement, Position) for field in fields(kind)}
    tried, seen = Counter[str](), set[str]()
    for key, (question, first) in last.items():
        for field, how, other in changed(question, earlier[key]):
            seen |= set(field.split("/"))
            answer = handle(other, site)
            tried["changes"] += 1
            refused = "refused" in answer and bool(answer.get("rule"))
            assert refused or same(answer, first, channel == "masks"), (key, field, how, answer)
            tried["same bytes"] += not refused
    for name, question, _ in answers:  # what other sites were asked
        if name != "0" and question["kind"] == "exchange":
            answer = handle(question, site)
            tried["changes"] += 1
            assert "refused" in answer or any(
                same(answer, first, channel == "masks") for _, first in own
            )
    assert named <= seen
    assert tried["changes"] > 500
    with capsys.disabled():
        print(f"\n{channel}: {len(seen)} names, {dict(tried)}, other answers 0")


def position(question: Parcel) -> dict[str, Any]:
    return dict(json.loads(question["head"]).get("position") or {})
