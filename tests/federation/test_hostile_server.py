"""A server that lies, against the sites' own program: each attack is refused by a rule's name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

pytest.importorskip("flwr", reason="needs the extra flower")

from support.hall import OPEN, Hall, kits, vouched
from test_hall import SITES, _quick, written

from unseen.errors import UnseenError
from unseen.privacy import wire
from unseen.privacy.masks.masked_sums import MaskedRows
from unseen.sites.flower import server_run as federated
from unseen.sites.flower.site import Site
from unseen.sites.flower.site_handler import handle
from unseen.sites.kits.provision import write_sum_keys
from unseen.sites.policy.approvals import Approvals

__all__ = ["_quick"]  # the fixture of test_hall
BLIND = '[privacy]\nchannel = "ckks"\nserver = "blind"\n'


@dataclass
class Run:
    """A federation that ended, and all that its sites were asked."""

    hall: Hall
    places: Mapping[str, Path]

    def asked(self, site: str, exchange: str, kind: str = "exchange") -> dict[str, Any]:
        """The first question of an exchange that a site got."""
        return next(
            question
            for name, question in self.hall.sent
            if name == site and question["kind"] == kind
            and json.loads(question["head"])["position"]["exchange"] == exchange
        )  # fmt: skip

    def ask(self, site: str, question: Mapping[str, Any]) -> dict[str, Any]:
        return handle(dict(question), Site.read(self.places[site]))


def played(
    folder: Path, monkeypatch: pytest.MonkeyPatch, method: str = "fedavg", privacy: str = "",
    policy: str = OPEN, rounds: int = 1,
) -> Run:  # fmt: skip
    study = written(folder, method, rounds)
    text = study.read_text() + privacy
    study.write_text(text.replace('save = ["final"]\n', "") if "blind" in privacy else text)
    places = kits(folder, SITES, folder, policy)
    if channel := next((name for name in ("masks", "ckks") if name in privacy), ""):
        write_sum_keys(folder / "kits", list(SITES), [channel])
    monkeypatch.setenv("FLWR_HOME", str(folder / "kits" / "server" / "flower"))
    hall = Hall(places)
    federated.run(str(study), str(folder / "out"), hall, list(SITES))
    return Run(hall, {kit.name: kit for kit in places.values()})


def at(question: Mapping[str, Any], head: Mapping[str, Any] = {}, **position: Any) -> Any:
    """A question at another position, or with other words in its head."""
    words = json.loads(question["head"])
    words["position"] |= position
    return {**question, "head": json.dumps({**words, **head})}


def test_a_target_does_not_train_and_a_source_is_not_measured_as_a_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = played(tmp_path, monkeypatch)
    train, test = run.asked("0", "train"), run.asked("75", "test")
    assert run.ask("75", train)["rule"] == "role"
    assert run.ask("0", test)["rule"] == "study"  # to whom "test" is no exchange of its part
    for field in ({"role": "source"}, {"digest": "0"}, {"metrics": ["loss"]}, {"turn": {}}):
        assert run.ask("75", at(train, field))["rule"] == "protocol", field
    members = json.loads(train["head"])["agreement"] | {"members": {"0": "train", "75": "train"}}
    assert run.ask("75", at(train, {"agreement": members}))["rule"] == "role"


def test_one_question_is_answered_at_a_position_and_positions_go_forward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = played(tmp_path, monkeypatch, rounds=2)
    later = [
        question for name, question in run.hall.sent
        if name == "0" and question["kind"] == "exchange"
    ]  # fmt: skip
    last = next(q for q in later if json.loads(q["head"])["position"] ==
                json.loads(q["head"])["position"] | {"round": 1, "exchange": "train"})  # fmt: skip
    first = run.ask("0", last)
    again = run.ask("0", last)
    assert first.keys() == again.keys() and first["ledger"] == again["ledger"]
    assert torch.equal(first["row/model"], again["row/model"])
    nearly = torch.nextafter(last["inbox/model"], last["inbox/model"] + 1)
    assert run.ask("0", {**last, "inbox/model": nearly})["rule"] == "once"
    assert run.ask("0", at(last, place="elsewhere"))["rule"] == "once"
    moved = last["statistics"] * 2
    assert run.ask("0", {**last, "statistics": moved})["rule"] == "once"


def test_a_run_of_another_name_needs_another_approval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = played(tmp_path, monkeypatch)
    train = run.asked("0", "train")
    agreement = json.loads(train["head"])["agreement"]
    other = at(train, {"agreement": agreement | {"run": "another"}})
    assert run.ask("0", other)["rule"] == "approval"
    fewer = at(train, {"agreement": agreement | {"members": {"0": "train", "15": "train"}}})
    assert run.ask("0", fewer)["rule"] == "once"
    approvals = Approvals(Site.read(run.places["0"]).account)
    approvals.approve(*approvals.every())
    assert "row/model" in run.ask("0", other)
    assert run.ask("0", train)["rule"] == "approval"  # the first run is over


def test_an_approval_ends_after_its_days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = played(tmp_path, monkeypatch)
    approvals = Approvals(Site.read(run.places["0"]).account)
    (request,) = approvals.every()
    approvals._keep(type(request)(**{**vars(request), "approval": {"time": "2020-01-01T00:00:00+00:00"}}))  # noqa: E501 # fmt: skip
    assert run.ask("0", run.asked("0", "train"))["rule"] == "approval"


def test_the_first_model_is_the_study_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = played(tmp_path, monkeypatch)
    train = run.asked("0", "train")
    agreement = json.loads(train["head"])["agreement"] | {"run": "another"}
    approvals = Approvals(Site.read(run.places["0"]).account)
    approvals.approve(*approvals.every())
    chosen = at(train, {"agreement": agreement}) | {"inbox/model": train["inbox/model"] + 1}
    assert run.ask("0", chosen)["rule"] == "study"
    huge = at(train, {"agreement": agreement}) | {"inbox/model": train["inbox/model"] + 1e30}
    assert run.ask("0", huge)["rule"] == "model"


def test_derivatives_of_one_row_do_not_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Coefficients that give every row but one a curvature of 0."""
    policy = OPEN.replace("examples = 1", "examples = 4")
    run = played(tmp_path, monkeypatch, "glm", policy=policy, rounds=3)
    later = next(
        q for name, q in run.hall.sent
        if name == "0" and q["kind"] == "exchange"
        and json.loads(q["head"])["position"]["exchange"] == "train"
        and json.loads(q["head"])["position"]["round"] == 1
    )  # fmt: skip
    site = Site.read(run.places["0"])
    agreement = json.loads(later["head"])["agreement"] | {"run": "another"}
    Approvals(site.account).approve(*Approvals(site.account).every())
    generator = torch.Generator().manual_seed(0)
    steep = 400 * torch.randn(len(later["inbox/model"]), generator=generator).to(
        later["inbox/model"]
    )
    honest = vouched(at(later, {"agreement": agreement}), tmp_path / "kits")
    answer = run.ask("0", honest | {"inbox/model": steep})
    assert answer["rule"] == "least.examples" and "rows in effect" in answer["refused"]
    assert "row/model" in run.ask("0", honest)


def test_a_blind_site_takes_no_model_in_the_clear_and_decrypts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tenseal", reason="needs extra he")
    run = played(tmp_path, monkeypatch, privacy=BLIND)
    test, train = run.asked("75", "test"), run.asked("0", "train")
    site = Site.read(run.places["75"])
    agreement = json.loads(test["head"])["agreement"] | {"run": "another"}
    Approvals(site.account).approve(*Approvals(site.account).every())
    bare = {k: v for k, v in test.items() if not k.startswith("carried/")}
    own = {"inbox/model": train["inbox/model"] + 1, "inbox/buffers": train["inbox/buffers"]}
    other = at(bare | own, {"agreement": agreement})
    answer = run.ask("75", vouched(other, tmp_path / "kits"))
    assert answer["rule"] == "state" and "in the clear" in answer["refused"]
    about = {"kind": "weigh", "slot": "model", "round": 0, "exchange": "train"}
    question = {key: train[key] for key in ("protocol", "about", "head", "statistics")}
    asked = question | {"kind": "channel", "question": wire.pack(about)}
    first = run.ask("0", asked)
    head, _ = wire.unpack(first["answer"], "it") if "answer" in first else (first, ())
    assert ("why" in head and "blind" in head["why"]) or first["rule"] == "once"


@pytest.mark.parametrize(
    ("method", "channel"), [("pcgrad", "ckks"), ("fedavg", "masks()"), ("fedavg", "clear")]
)
def test_a_server_that_was_killed_asks_the_same_again(
    method: str, channel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its products are covered by other random numbers, and its seeds are others."""
    pytest.importorskip("tenseal" if channel == "ckks" else "cryptography", reason="needs he")
    study = written(tmp_path, method, 2)
    study.write_text(study.read_text() + f'[privacy]\nchannel = "{channel}"\n')
    finals = []
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        places = kits(tmp_path / name, SITES, tmp_path)
        if channel != "clear":
            write_sum_keys(tmp_path / name / "kits", list(SITES), [channel[:5].removesuffix("(")])
        home = tmp_path / name / "kits" / "server" / "flower"
        monkeypatch.setenv("FLWR_HOME", str(home))
        left = [name == "killed"]

        def kill(site: str, question: Any, answer: Any, left: list[bool] = left) -> list[Any]:
            position = json.loads(question["head"]).get("position", {})
            if left[0] and position.get("exchange") == "validate" and position["round"] == 1:
                left[0] = False
                raise KeyboardInterrupt
            return [answer]

        out, hall = tmp_path / name / "out", Hall(places, kill)
        if left[0]:
            with pytest.raises(KeyboardInterrupt):
                federated.run(str(study), str(out), hall, list(SITES))
        federated.run(str(study), str(out), hall, list(SITES))
        (rounds,) = out.rglob("rounds.jsonl")
        assert not any(json.loads(line)["dropped"] for line in rounds.read_text().splitlines())
        (final,) = out.rglob("final.safetensors")
        finals.append(load(final.read_bytes()))
    assert all(torch.allclose(finals[0][k], finals[1][k], atol=1e-6) for k in finals[0])


@pytest.mark.parametrize("method", ["boost(trees=2,depth=3)", "forest(trees=2,depth=3)"])
def test_counts_of_trees_are_of_enough_rows(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the server asks about another model's nodes."""
    run = played(tmp_path, monkeypatch, method, policy=OPEN.replace("examples = 1", "examples = 4"))
    site = Site.read(run.places["0"])
    questions = [
        q for name, q in run.hall.sent
        if name == "0" and q["kind"] == "exchange" and "test" not in str(q["about"])
    ]  # fmt: skip
    looked = 0
    for place, question in enumerate(questions):
        if "validate" in json.loads(question["head"])["position"]["exchange"]:
            continue
        agreement = json.loads(question["head"])["agreement"] | {"run": f"another {place}"}
        Approvals(site.account).approve(*Approvals(site.account).every())
        answer = run.ask("0", vouched(at(question, {"agreement": agreement}), tmp_path / "kits"))
        row, exchange = answer["row/model"], json.loads(question["head"])["position"]["exchange"]
        if exchange == "bins":
            rows = row[: 4 * 1025]
        else:
            rows = row.view(-1, 3)[:, 2] if "boost" in method else row.view(-1, 2).sum(1)
        if exchange in ("bins", "train") or "forest" in method:
            assert bool(((rows == 0) | (rows >= 4 - 1e-6)).all()), exchange
            looked += int((rows > 0).sum())
    assert looked > 10


@pytest.mark.parametrize(
    ("method", "exchange"),
    [("boost(trees=1,depth=2)", "bins"), ("boost(trees=1,depth=2)", "train"), ("glm", "train")],
)
def test_sums_of_trees_and_linear_models_that_no_rows_have_are_left_out(
    method: str, exchange: str, tmp_path: Path
) -> None:
    def tamper(site: str, question: Any, answer: Any) -> list[Any]:
        position = json.loads(question["head"]).get("position", {})
        if site == "15" and position.get("exchange") == exchange:
            return [{**answer, "row/model": -1e6 * answer["row/model"] - 1}]
        return [answer]

    file, out = written(tmp_path, method, 2), tmp_path / "out"
    federated.run(str(file), str(out), Hall(kits(tmp_path, SITES, tmp_path), tamper), [*SITES])
    lines = [json.loads(line) for path in out.rglob("messages.jsonl")
             for line in path.read_text().splitlines()]  # fmt: skip
    faults = {(line["site"], line["exchange"]) for line in lines if line.get("fault")}
    assert faults == {("15", exchange)}
    assert all("below 0" in x["fault"] or "whole" in x["fault"] for x in lines if x.get("fault"))


@pytest.mark.parametrize("weights", [[1.0, 1e-3, 1e-3], [1.0, 0.5, 0.5], [1.0, 0.0, 0.0]])
def test_a_server_weighs_no_site_above_the_others_under_masks(
    weights: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The study is fedavg with equal weights, which every site knows."""
    pytest.importorskip("Crypto", reason="needs the extra he")
    honest = MaskedRows.linear

    def chosen(self: Any, own: torch.Tensor, blocks: Any = None) -> torch.Tensor:
        return honest(self, torch.tensor(weights[: len(own)], dtype=torch.float64), blocks)

    monkeypatch.setattr(MaskedRows, "linear", chosen)
    with pytest.raises(UnseenError, match="weighs all rows alike|it would be that client's own"):
        played(tmp_path, monkeypatch, privacy='[privacy]\nchannel = "masks()"\n')


def test_under_masks_a_round_is_not_asked_for_again_in_a_run_of_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("Crypto", reason="needs the extra he")
    run = played(tmp_path, monkeypatch, privacy='[privacy]\nchannel = "masks()"\n')
    train = run.asked("0", "train")
    agreement = json.loads(train["head"])["agreement"] | {"run": "another"}
    assert run.ask("0", at(train, {"agreement": agreement}))["rule"] == "approval"
    model = train["inbox/model"]
    nearly = {"inbox/model": torch.nextafter(model, model + 1)}
    assert run.ask("0", {**train, **nearly})["rule"] in ("once", "study")
    fewer = agreement | {"members": {"0": "train", "15": "train"}}
    assert run.ask("0", at(train, {"agreement": fewer}))["rule"] == "approval"


def test_a_blind_server_plays_no_rule_of_products(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tenseal", reason="needs extra he")
    with pytest.raises(UnseenError, match=r"pcgrad\+blind cannot be.*inner products"):
        played(tmp_path, monkeypatch, "pcgrad", privacy=BLIND)
