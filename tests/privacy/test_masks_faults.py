"""A site that answers wrongly in any phase of a masked sum is left out by name, and no other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

pytest.importorskip("cryptography", reason="the extra `he` is not installed")

from support.channels import difference
from test_masks import behind

from unseen import start
from unseen.core.round import play
from unseen.errors import BadReply
from unseen.privacy.masks.masked_answers import blamed
from unseen.privacy.wire import pack, unpack

PHASES = ("shared", "masked", "confirmed", "unmasked")
Lie = Callable[[dict[str, Any], list[bytes]], bytes]


def half_cut(value: Any) -> Any:
    """A value of the same type with half of its content."""
    if isinstance(value, dict):
        return dict([*value.items()][: len(value) // 2])
    return value[: len(value) // 2] if isinstance(value, str | list) else value


#: What a site sends in place of its answer, of header and parts.
LIES: Mapping[str, Lie] = {
    "two bytes": lambda h, p: b"xy",
    "nothing": lambda h, p: b"",
    "a refusal": lambda h, p: pack({"kind": "refused", "why": "no"}),
    "a refusal without words": lambda h, p: pack({"kind": "refused"}),
    "another kind": lambda h, p: pack({**h, "kind": "weights"}, p),
    "a list as its kind": lambda h, p: pack({**h, "kind": ["shared"]}, p),
    "another round": lambda h, p: pack({**h, "round": 99}, p),
    "a header of one list": lambda h, p: pack({"kind": h["kind"], "x": [1] * 99}),
    "no parts": lambda h, p: pack(h),
    "a part more": lambda h, p: pack(h, [*p, b"x"]),
    "empty parts": lambda h, p: pack(h, [b"" for _ in p]),
    "short parts": lambda h, p: pack(h, [part[:3] for part in p]),
    "garbage in parts": lambda h, p: pack(h, [bytes(len(part)) for part in p]),
    "parts of each other": lambda h, p: pack(h, p[::-1]),
    "a deep header": lambda h, p: _framed(b"[" * 100_000 + b"]" * 100_000),
    "numbers for texts": lambda h, p: pack(
        {**h, **{k: 7 for k in ("keys", "commits", "marks")}}, p
    ),
    "half of the header": lambda h, p: pack(
        {**h, **{k: half_cut(v) for k, v in h.items() if k in ("keys", "commits", "marks")}}, p
    ),
    "wrong keys": lambda h, p: pack({**h, "keys": _spoilt(h.get("keys"))}, p),
    "wrong commits": lambda h, p: pack({**h, "commits": _spoilt(h.get("commits"))}, p),
    "wrong marks": lambda h, p: pack({**h, "marks": _spoilt(h.get("marks"))}, p),
    "a row of 3": lambda h, p: pack({**h, "size": 3}, [bytes(24)]),
    "no model": lambda h, p: pack({**h, "received": None}, p),
    "accuses nobody": lambda h, p: pack({**h, "kind": "accused", "accused": []}),
    "accuses a number": lambda h, p: pack({**h, "kind": "accused", "accused": 7}),
}
#: Lies that say nothing wrong in these phases: such an answer has nothing of the kind.
TRUE = {
    "numbers for texts": ("masked", "confirmed", "unmasked"),
    "half of the header": ("masked", "confirmed", "unmasked"),
    "wrong keys": ("masked", "confirmed", "unmasked"),
    "wrong commits": ("masked", "confirmed", "unmasked"),
    "wrong marks": ("masked", "confirmed", "unmasked"),
    # Any vector may be a masked one; where it counts, bounded() and robust rules have no say.
    "garbage in parts": ("masked",),
    "parts of each other": ("masked",),
    "no model": ("shared", "confirmed", "unmasked"),
}


def _framed(head: bytes) -> bytes:
    """A message with a header that no site of this package would send."""
    import hashlib
    import struct

    body = b"unseen-1" + struct.pack("<I", len(head)) + head
    return body + hashlib.sha256(body).digest()


def _spoilt(value: Any) -> Any:
    """Numbers of the same form that are other numbers."""
    if isinstance(value, dict):
        return {key: _spoilt(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_spoilt(inner) for inner in value]
    return "ab" * (len(value) // 2) if isinstance(value, str) else value


def lying(backend: Any, phase: str, liars: Mapping[str, Lie]) -> None:
    """In a phase, some sites answer something else."""
    ask = backend.put

    def asked(questions: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = dict(ask(questions))
        for name in liars.keys() & answers.keys():
            header, parts = unpack(answers[name], "an answer")
            if header["kind"] == phase:
                header.pop("lengths")
                answers[name] = liars[name](header, [bytes(part) for part in parts])
        return answers

    backend.put = asked


def one_round(K: int, phase: str = "", liars: Mapping[str, Lie] = {}) -> Any:
    """The state after a round, the outcome and what the server found wrong with whom."""
    backend, made, model, names = behind(K, named="fedavg", batch_size=7)
    lying(backend, phase, liars)
    state, (outcome,) = play(made, start(made, model, names, 0), backend, names, 1)  # type: ignore[arg-type]
    return state, outcome, backend.server.faults  # type: ignore[attr-defined]


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("phase", PHASES)
def test_a_wrong_answer_leaves_its_site_out(phase: str, lie: str) -> None:
    state, outcome, faults = one_round(4, phase, {"site-b": LIES[lie]})
    assert bool(torch.isfinite(state.inbox["model"]).all())
    if phase in TRUE.get(lie, ()):
        assert not outcome.dropped
        return
    early = phase in ("shared", "masked")  # later its row is in the sum, which the others open
    assert list(outcome.dropped) == (["site-b"] if early else [])
    assert early or lie not in ("two bytes", "short parts") or set(faults) <= {"site-b"}
    words = " ".join([*outcome.dropped.values(), *faults.values()])
    assert "argument" not in words and "broadcast" not in words and "ValueError" not in words


@pytest.mark.parametrize("phase", PHASES)
def test_the_others_of_fifteen_go_on_without_four(phase: str) -> None:
    """As many as may be wrong: of fifteen eleven open a sum."""
    liars = {f"site-{letter}": LIES["garbage in parts"] for letter in "abcd"}
    if phase == "masked":
        liars = dict.fromkeys(liars, LIES["a row of 3"])
    state, outcome, faults = one_round(15, phase, liars)
    early = phase in ("shared", "masked")
    assert set(outcome.dropped) == (set(liars) if early else set())
    assert early or phase == "confirmed" or set(faults) == set(liars)
    plain, _, _ = one_round(15)
    if not early:  # their rows are in the sum, and it is the same
        assert torch.equal(state.inbox["model"], plain.inbox["model"])
    else:
        assert 0 < difference(state.inbox["model"], plain.inbox["model"]) < 1


def test_wrong_shares_are_named() -> None:
    _, outcome, faults = one_round(15, "unmasked", {"site-a": LIES["garbage in parts"]})
    assert not outcome.dropped
    assert faults == {"site-a": "a share that is not the one that 'site-a' dealt to it"}


def test_too_many_wrong_shares_end_the_round_with_their_names() -> None:
    liars = {f"site-{letter}": LIES["garbage in parts"] for letter in "abcde"}
    with pytest.raises(BadReply, match="10 sites help to open.*11 are needed.*site-a: a share"):
        one_round(15, "unmasked", liars)


def test_a_site_that_deals_one_other_a_wrong_share_takes_it_along() -> None:
    def to_one(header: dict[str, Any], parts: list[bytes]) -> bytes:
        return pack(header, [bytes(len(parts[0])), *parts[1:]])

    _, outcome, _ = one_round(5, "shared", {"site-b": to_one})
    assert list(outcome.dropped) == ["site-a", "site-b"]
    assert (
        "'site-a' says that it cannot use the shares that 'site-b' dealt"
        in outcome.dropped["site-a"]
    )


def test_a_site_that_accuses_another_goes_with_it() -> None:
    def accuse(header: dict[str, Any], parts: list[bytes]) -> bytes:
        return pack({**header, "kind": "accused", "accused": ["site-c"]})

    _, outcome, _ = one_round(5, "masked", {"site-b": accuse})
    assert list(outcome.dropped) == ["site-b", "site-c"]


def test_who_is_blamed() -> None:
    assert [*blamed({"b": ["a"], "c": ["a"], "d": ["a"]}, 3)] == ["a"]
    assert {*blamed({"b": ["a"], "c": ["a"], "d": ["a", "b"]}, 3)} == {"a", "b", "d"}
    assert {*blamed({"b": ["a"]}, 1)} == {"a", "b"}
    assert {*blamed({"b": ["a"]}, 3)} == {"a", "b"}


def test_a_dealer_whose_shares_do_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares are as it published them, and give another seed: it is found once they are opened."""
    backend, made, model, names = behind(4, named="fedavg")
    site = backend.sites["site-b"]  # type: ignore[attr-defined]
    split = site.share

    def other(header: Mapping[str, Any], parts: Any) -> bytes:
        from unseen.privacy.masks import shares

        with monkeypatch.context() as patched:
            patched.setattr(shares, "commitment", lambda seed: "ab" * 32)
            return bytes(split(header, parts))

    site.share = other
    with pytest.raises(BadReply, match="the shares that 'site-b' dealt give another seed"):
        play(made, start(made, model, names, 0), backend, names, 1)  # type: ignore[arg-type]
