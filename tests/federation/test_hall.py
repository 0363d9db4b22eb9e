"""Both sides of a message without a network: the records of one process, and every fault."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from safetensors.torch import load

pytest.importorskip("flwr", reason="needs the extra flower")

from support.hall import Answer, Hall, contents, kits

from unseen import Study
from unseen.core.turn import keyed
from unseen.errors import UnseenError
from unseen.sites.flower import server_run as federated
from unseen.sites.flower import site_messages
from unseen.sites.flower.answers import introduced
from unseen.sites.flower.site import Site
from unseen.sites.flower.site_handler import handle
from unseen.sites.flower.site_messages import Waiting
from unseen.sites.flower.terms import PROTOCOL, Facts, Refused, Terms
from unseen.studies.results.study_folder import StudyFolder

SITES = {"0": "train", "15": "train", "30": "train", "75": "evaluate"}
TABLE = "table(path='visits.csv', domain='site', label='died')"
STUDY = """
dataset = "{dataset}"
methods = [{methods}]
seeds = 1
rounds = {rounds}
model = {model}
on_bad_reply = "drop"
save = ["final"]
participation = {participation}
[holdout]
source = ["0", "15", "30"]
target = ["75"]
[training]
batch_size = 16
[federation]
deadline = 60
patience = 0
minimum = 2
"""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_messages, "POLL", 0.005)
    monkeypatch.setattr(site_messages, "LOOK", 0.01)


def soon(file: Path) -> None:
    """Let a study wait no longer than some seconds for a site that has left."""
    file.write_text(file.read_text().replace("deadline = 60", "deadline = 8"))


def written(
    folder: Path, methods: str, rounds: int = 2, model: str = "mlp(widths=[8])",
    participation: float = 1.0,
) -> Path:  # fmt: skip
    file = folder / "study.toml"
    quoted = ", ".join(f'"{m}"' for m in methods.split())
    dataset = "rotated-digits" if model == "bn-cnn" else TABLE
    file.write_text(
        STUDY.format(
            methods=quoted, rounds=rounds, model=f'"{model}"', participation=participation,
            dataset=dataset,
        )
    )  # fmt: skip
    lines = ["site,a,b,c,d,died"]
    for shift, name in enumerate(SITES):
        x = torch.randn(40 + shift, 4, generator=keyed(name)) + 0.2 * shift
        y = (x.sum(1) > shift).long().tolist()
        rows = zip(x.tolist(), y, strict=True)
        lines += [",".join(map(str, (name, *values, label))) for values, label in rows]
    (folder / "visits.csv").write_text("\n".join(lines) + "\n")
    return file


def same(one: Path, other: Path) -> None:
    expected, found = contents(one), contents(other)
    assert set(expected) == set(found) and expected
    for name, content in expected.items():
        if name.endswith(".safetensors"):
            left, right = load(content), load(found[name])
            # One module counts the batches of all clients, and each site its own: no number.
            counted = [k for k in left if not k.endswith("num_batches_tracked")]
            assert all(torch.equal(left[k], right[k]) for k in counted), name
        else:
            assert content == found[name], name


@pytest.mark.parametrize(
    ("methods", "model", "participation"),
    [
        ("ppdg+ga", "mlp(widths=[8])", 1.0),
        ("fedilc-inter", "mlp(widths=[8])", 0.67),  # two exchanges
        pytest.param("fedavg scaffold copa", "mlp(widths=[8])", 1.0, marks=pytest.mark.slow),
        # BatchNorm, memories, two of three sites a round
        pytest.param("scaffold+ga", "bn-cnn", 0.67, marks=pytest.mark.slow),
    ],
)
def test_sites_write_the_records_of_one_process(
    tmp_path: Path, methods: str, model: str, participation: float
) -> None:
    file = written(tmp_path, methods, 2, model, participation)
    Study.read(file).run(tmp_path / "one", data_dir=tmp_path)
    hall = Hall(kits(tmp_path, SITES, tmp_path))
    federated.run(str(file), str(tmp_path / "sites"), hall, list(SITES))
    same(tmp_path / "one", tmp_path / "sites")
    one, sites = (StudyFolder.open(tmp_path / name) for name in ("one", "sites"))
    assert [job.job for job in sites.jobs()] == [job.job for job in one.jobs()]
    assert all(job.finished for job in sites.jobs())
    assert (sites.about["tasks"], sites.settings["rounds"]) == (one.about["tasks"], 2)
    asked = {site for site, question in hall.sent if "train" in str(question["head"])}
    assert asked == set(SITES)


def test_a_site_smaller_than_a_batch_takes_part_in_what_takes_none(tmp_path: Path) -> None:
    """An exact fit needs no batches, so that a dropped short one leaves nothing out."""
    file = written(tmp_path, "glm")
    text = file.read_text().replace("batch_size = 16", "batch_size = 64\ndrop_last = true")
    file.write_text(text)
    Study.read(file).run(tmp_path / "one", data_dir=tmp_path)
    hall = Hall(kits(tmp_path, SITES, tmp_path))
    federated.run(str(file), str(tmp_path / "sites"), hall, list(SITES))
    same(tmp_path / "one", tmp_path / "sites")


def test_tables_are_encoded_by_what_the_sites_exchange(tmp_path: Path) -> None:
    rows = {
        "north": ["a,1,0.5,yes", "b,2,?,no", "a,3,1.5,yes", "b,,2.5,no", "a,5,3.0,no"] * 4,
        "south": ["c,7,0.1,no", "b,8,?,yes", "b,1,9,no", "c,2,4,yes", "c,3,?,yes"] * 4,
        "west": ["b,4,0.2,no", "c,?,1,yes", "b,2,2,yes", "b,1,3,no"] * 4,
    }
    header = "kind,age,dose,died"
    whole = [f"hospital,{header}", *(f"{s},{line}" for s, own in rows.items() for line in own)]
    (tmp_path / "visits.csv").write_text("\n".join(whole) + "\n")
    study = tmp_path / "study.toml"
    study.write_text(
        """
dataset = "table(path='visits.csv', domain='hospital', label='died', positive='no')"
methods = ["fedavg", "ppdg"]
rounds = 2
seeds = 2
on_bad_reply = "drop"
targets = ["west"]
[training]
batch_size = 4
"""
    )
    Study.read(study).run(tmp_path / "one", data_dir=tmp_path)
    found = kits(tmp_path, dict.fromkeys(rows, "train"), tmp_path)
    for kit in found.values():
        own = tmp_path / f"{kit.name}.csv"
        own.write_text("\n".join([header, *rows[kit.name]]) + "\n")
        text = (kit / "join.toml").read_text().replace(f'data = "{tmp_path}"', f'data = "{own}"')
        (kit / "join.toml").write_text(text)
    hall = Hall(found)
    federated.run(str(study), str(tmp_path / "sites"), hall, list(rows))
    same(tmp_path / "one", tmp_path / "sites")
    # Without its data the server still knows nothing but names, sums and models.
    told = json.loads((tmp_path / "sites" / "terms.json").read_text())["facts"]["north"]
    assert told["categories"] == {"kind": ["a", "b"]}


@pytest.mark.slow
def test_numbers_are_standardised_by_what_the_sites_exchange(tmp_path: Path) -> None:
    """cost = 1000 + 50 a: the sites' sums make the records of one process, in the cost's units."""
    file = written(tmp_path, "fedavg", 6)
    rows = [line.split(",") for line in (tmp_path / "visits.csv").read_text().splitlines()[1:]]
    lines = [",".join([*row[:-1], repr(1000 + 50 * float(row[1]))]) for row in rows]
    (tmp_path / "visits.csv").write_text("\n".join(["site,a,b,c,d,cost", *lines]) + "\n")
    changed = "label='cost', task='regression'"
    file.write_text(file.read_text().replace("label='died'", changed))
    Study.read(file).run(tmp_path / "one", data_dir=tmp_path)
    hall = Hall(kits(tmp_path, SITES, tmp_path))
    federated.run(str(file), str(tmp_path / "sites"), hall, list(SITES))
    same(tmp_path / "one", tmp_path / "sites")
    (found,) = (tmp_path / "sites").rglob("target.jsonl")
    last = json.loads(found.read_text().splitlines()[-1])
    assert last["rmse"] < 40  # of a label around 1000 that spreads by 50
    told = json.loads((tmp_path / "sites" / "terms.json").read_text())["facts"]["15"]
    assert told["standardise"] == "cost"


def test_sites_that_standardise_other_labels_do_not_fit(tmp_path: Path) -> None:
    plain = Facts("a", "train", "table", None, {}, {}, {}, (2,), "")
    other = replace(plain, site="b", standardise="cost")
    with pytest.raises(UnseenError, match="labels to standardise None at the one, cost at"):
        Terms.agree([plain, other])
    found = Terms.agree([other, replace(other, site="c")])
    assert found.empty().standardise == "cost"
    assert TypeAdapter(Terms).validate_json(json.dumps(vars(found))).standardise == "cost"


def test_hospitals_and_an_unseen_one(tmp_path: Path, real_data: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text(
        'dataset = "heart-disease"\nmethods = ["ppdg"]\nrounds = 2\nseeds = 1\n'
        'targets = ["switzerland"]\non_bad_reply = "drop"\n'
    )
    Study.read(study).run(tmp_path / "one", data_dir=real_data)
    sites = dict.fromkeys(("cleveland", "hungary", "va"), "train")
    hall = Hall(kits(tmp_path, sites, real_data))
    federated.run(str(study), str(tmp_path / "sites"), hall, list(sites))
    expected, found = contents(tmp_path / "one"), contents(tmp_path / "sites")
    for name in ("source.jsonl", "rounds.jsonl"):
        path = f"records/ppdg/switzerland/seed-0/{name}"
        assert expected[path] == found[path]


def spoiled(
    site: str, change: Callable[[Answer], Iterable[Answer] | str], rounds: tuple[int, ...] = (1,)
) -> Callable[[str, Answer, Answer], Iterable[Answer] | str]:
    """Training answers of one site in some rounds, changed."""

    def tamper(name: str, question: Answer, answer: Answer) -> Iterable[Answer] | str:
        turn = json.loads(question["head"]).get("position", {})
        if name == site and turn.get("exchange") == "train" and turn["round"] in rounds:
            return change(answer)
        return [answer]

    return tamper


def not_a_number(answer: Answer) -> list[Answer]:
    return [{**answer, "row/model": answer["row/model"] * float("nan")}]


def too_short(answer: Answer) -> list[Answer]:
    return [{**answer, "row/model": answer["row/model"][:-1]}]


def older(answer: Answer) -> list[Answer]:
    return [{**answer, "about": answer["about"].replace("layout ", "layout 0ld")}]


FAULTS: list[tuple[Any, str]] = [
    (not_a_number, "NaN or infinite values in 'model'"),
    (too_short, "of shape [57] where [58] was expected"),
    (older, "layout 0ld"),
    (lambda answer: [], "no answer within the deadline of 1 s"),
    (lambda answer: "killed", "killed"),
    (lambda answer: [{**answer, "protocol": 0}], f"'protocol': 0 where {PROTOCOL} was asked"),
    (lambda answer: [{**answer, "protocol": torch.zeros(2)}], "'protocol': Tensor where"),
    (lambda answer: [{**answer, "refused": torch.zeros(2)}], "refused without words"),
    (lambda answer: [{**answer, "site": b"x"}], "'site': bytes where '15' was asked"),
    (lambda answer: [{**answer, "scalar/examples": float("nan")}], "NaN or infinite"),
    (lambda answer: [{**answer, "row/model": answer["row/model"].long()}], "of type torch.int64"),
    (
        lambda answer: [{**answer, "order": "no JSON"}],
        "asks for (JSONDecodeError",
    ),
]


@pytest.mark.parametrize(("change", "reason"), FAULTS)
def test_a_bad_answer_is_left_out_and_the_records_say_who(
    tmp_path: Path, change: Any, reason: str
) -> None:
    file = written(tmp_path, "fedavg")
    short = "deadline" in reason  # a busy machine must not miss the others' deadline
    file.write_text(file.read_text().replace("deadline = 60", f"deadline = {1 if short else 60}"))
    hall = Hall(kits(tmp_path, SITES, tmp_path), spoiled("15", change))
    federated.run(str(file), str(tmp_path / "out"), hall, list(SITES))
    folder = tmp_path / "out" / "records" / "fedavg" / "target" / "seed-0"
    first, second = map(json.loads, (folder / "rounds.jsonl").read_text().splitlines())
    assert first["clients"] == ["0", "15", "30"] and not first["dropped"]
    assert second["clients"] == ["0", "30"] and reason in second["dropped"]["15"]
    messages = [json.loads(line) for line in (folder / "messages.jsonl").read_text().splitlines()]
    (bad,) = [m for m in messages if m["fault"]]
    assert (bad["site"], bad["round"], bad["exchange"]) == ("15", 1, "train")


def test_data_that_changed_are_refused_when_a_run_goes_on(tmp_path: Path) -> None:
    """A site that came back with other rows took part, and the table still had the old digest."""
    file = written(tmp_path, "fedavg", rounds=3)
    soon(file)
    found = kits(tmp_path, SITES, tmp_path)
    fewer = tmp_path / "fewer" / "visits.csv"
    fewer.parent.mkdir()
    rows = (tmp_path / "visits.csv").read_text().splitlines()
    mine = [row for row in rows if row.startswith("15,")]
    fewer.write_text("\n".join(row for row in rows if row not in mine[30:]) + "\n")

    def leave(answer: Answer) -> list[Answer]:
        hall.away.update({1, 3, 4})
        return []

    hall = Hall(found, spoiled("15", leave, (1,)))
    with pytest.raises(Waiting):
        federated.run(str(file), str(tmp_path / "out"), hall, list(SITES))
    start = found[2] / "join.toml"
    start.write_text(start.read_text().replace(f'"{tmp_path}"', f'"{fewer.parent}"'))
    again = Hall({n + 10: kit for n, kit in found.items()})
    federated.run(str(file), str(tmp_path / "out"), again, list(SITES))
    news = json.loads((tmp_path / "out" / "federation.json").read_text())
    assert "the data of site '15' changed since this run began" in news["without"]
    assert news["error"] == ""
    folder = tmp_path / "out" / "records" / "fedavg" / "target" / "seed-0"
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [line["clients"] for line in lines[1:]] == [["0", "30"]] * 2


def test_an_answer_that_comes_twice_or_after_a_second_try_changes_nothing(tmp_path: Path) -> None:
    file = written(tmp_path, "scaffold+ga")
    Study.read(file).run(tmp_path / "one", data_dir=tmp_path)
    tries: list[str] = []

    def once(answer: Answer) -> Iterable[Answer] | str:
        tries.append("")
        return "process killed" if len(tries) == 1 else [answer, answer]

    hall = Hall(kits(tmp_path, SITES, tmp_path), spoiled("15", once, (0, 1)))
    federated.run(str(file), str(tmp_path / "out"), hall, list(SITES))
    assert len(tries) == 3
    same(tmp_path / "one", tmp_path / "out")


def test_below_the_minimum_the_run_stops_and_goes_on_where_it_was(tmp_path: Path) -> None:
    file = written(tmp_path, "scaffold+ga", rounds=4)
    soon(file)
    Study.read(file).run(tmp_path / "one", data_dir=tmp_path)
    numbers = kits(tmp_path, SITES, tmp_path)
    hall = Hall(numbers)

    def leave(answer: Answer) -> list[Answer]:
        hall.away.update({1, 2})
        return []

    def tamper(name: str, question: Answer, answer: Answer) -> Iterable[Answer] | str:
        return spoiled(name if name in ("0", "15") else "", leave, (2,))(name, question, answer)

    hall.tamper = tamper
    with pytest.raises(Waiting, match="1 of at least 2 sites.*left within the exchange"):
        federated.run(str(file), str(tmp_path / "out"), hall, list(SITES))
    told = json.loads((tmp_path / "out" / "federation.json").read_text())
    assert told["round"] == 2 and "Run the same command again" in told["error"]
    # The sites come back, under other numbers, and the same command goes on.
    federated.run(
        str(file), str(tmp_path / "out"), Hall({n + 10: k for n, k in numbers.items()}), list(SITES)
    )
    same(tmp_path / "one", tmp_path / "out")


def test_a_site_leaves_for_a_round_and_comes_back(tmp_path: Path) -> None:
    file = written(tmp_path, "scaffold", rounds=4)
    numbers = kits(tmp_path, SITES, tmp_path)
    hall = Hall(numbers)

    def leave(answer: Answer) -> list[Answer]:
        hall.away.add(2)
        return []

    def tamper(name: str, question: Answer, answer: Answer) -> Iterable[Answer] | str:
        turn = json.loads(question["head"]).get("position", {})
        if turn.get("exchange") == "train" and turn["round"] == 3:
            hall.away.clear()
        return spoiled("15", leave, (1,))(name, question, answer)

    hall.tamper = tamper
    federated.run(str(file), str(tmp_path / "out"), hall, list(SITES))
    folder = tmp_path / "out" / "records" / "scaffold" / "target" / "seed-0"
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [line["clients"] for line in lines[:3]] == [["0", "15", "30"], ["0", "30"], ["0", "30"]]
    assert "left within the exchange" in lines[1]["dropped"]["15"]
    assert lines[2]["dropped"] == {"15": "was not connected"}
    # It rejoins while the last round is under way, or that round goes on without it.
    assert lines[3]["clients"] in (["0", "15", "30"], ["0", "30"])
    last = "3" if lines[3]["clients"][1] == "15" else "4"
    line = f"15: absent in rounds 2 to {last}; why is in the server's messages.jsonl"
    assert line in (tmp_path / "out" / "table.txt").read_text().splitlines()


def test_a_full_disk_leaves_the_last_good_state(tmp_path: Path) -> None:
    file = written(tmp_path, "fedavg", rounds=4)
    Study.read(file).run(tmp_path / "one", data_dir=tmp_path)
    folder = tmp_path / "out" / "records" / "fedavg" / "target" / "seed-0"

    def fill(answer: Answer) -> list[Answer]:
        (folder / "checkpoint.pt.part").unlink(missing_ok=True)
        (folder / "checkpoint.pt.part").symlink_to("/dev/full")
        return [answer]

    hall = Hall(kits(tmp_path, SITES, tmp_path), spoiled("15", fill, (1,)))
    with pytest.raises(OSError, match="No space left"):
        federated.run(str(file), str(tmp_path / "out"), hall, list(SITES))
    assert (
        "No space left" in json.loads((tmp_path / "out" / "federation.json").read_text())["error"]
    )
    (folder / "checkpoint.pt.part").unlink()
    again = Hall(kits(tmp_path, SITES, tmp_path))
    federated.run(str(file), str(tmp_path / "out"), again, list(SITES))
    trained = [
        json.loads(q["head"])["position"]["round"] for _, q in again.sent if "position" in q["head"]
    ]
    assert min(trained) == 1  # round 0 was safe
    same(tmp_path / "one", tmp_path / "out")


def test_the_name_of_a_site_is_its_keys(tmp_path: Path) -> None:
    """A site that takes another one's name is not let in, and the other stays."""
    numbers = kits(tmp_path, SITES, tmp_path)
    named = {number: kit.name for number, kit in numbers.items()}
    file = written(tmp_path, "fedavg", rounds=1)
    hall = Hall({**numbers, 9: numbers[1]}, keyed={**named, 9: "eve"})
    federated.run(str(file), str(tmp_path / "out"), hall, list(SITES))
    told = json.loads((tmp_path / "out" / "federation.json").read_text())
    assert told["finished"]
    why = introduced({"facts": json.dumps(_facts(tmp_path))}, "", "15")
    assert why.site == "15"
    with pytest.raises(Refused, match="says that it is '15', and its key is registered for 'eve'"):
        introduced({"facts": json.dumps(_facts(tmp_path))}, "", "eve")
    with pytest.raises(Refused, match="its description of its data cannot be read"):
        introduced({"facts": "{}"}, "", "")


def _facts(folder: Path) -> Any:
    return json.loads((folder / "out" / "terms.json").read_text())["facts"]["15"]


def test_what_a_site_refuses_and_why(tmp_path: Path) -> None:
    numbers = kits(tmp_path, SITES, tmp_path)
    file = written(tmp_path, "fedavg")
    for stranger, why in (
        ("unseen.data.digits:load", "rule code: .* which is not a part of unseen"),
        ("table(path='/etc/passwd', domain='a', label='b')", "rule files: .*leads out of the data"),
        ("table(path='../other.csv', domain='a', label='b')", "rule files"),
    ):
        text = file.read_text().replace(TABLE, stranger)
        bad = tmp_path / "bad.toml"
        bad.write_text(text)
        with pytest.raises(Waiting, match=f"says it is 0.: refused by its {why}"):
            federated.run(str(bad), str(tmp_path / "bad"), Hall(numbers), list(SITES))
    with pytest.raises(UnseenError, match="75 only evaluates.*source of task"):
        bad.write_text(
            file.read_text().replace('"30"]', '"75"]').replace('t = ["75"]', 't = ["30"]')
        )
        federated.run(str(bad), str(tmp_path / "role"), Hall(numbers), list(SITES))
    with pytest.raises(UnseenError, match="deepall pools the sites' data"):
        federated.run(
            str(written(tmp_path, "deepall")), str(tmp_path / "pool"), Hall(numbers), list(SITES)
        )


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("protocol", 0, f"the protocol does not match: the server says 0, the site {PROTOCOL}"),
        ("layout", "old/old", "another question was answered at this position"),
        ("digest", "0", "Unexpected keyword argument: digest"),
    ],
)
def test_a_message_that_does_not_match_is_refused_with_both_values(
    tmp_path: Path, key: str, value: Any, reason: str
) -> None:
    numbers = kits(tmp_path, SITES, tmp_path)
    hall = Hall(numbers)
    file = written(tmp_path, "fedavg", rounds=1)
    federated.run(str(file), str(tmp_path / "out"), hall, list(SITES))
    turns = ((s, q, json.loads(q["head"]).get("position", {})) for s, q in hall.sent)
    site, question = next((s, q) for s, q, turn in turns if turn.get("exchange") == "train")
    if key == "protocol":
        question = {**question, key: value}
    else:
        head = json.loads(question["head"])
        (head if key == "digest" else head["position"])[key] = value
        question = {**question, "head": json.dumps(head)}
    kit = next(kit for kit in numbers.values() if kit.name == site)
    answer = handle(question, Site.read(kit))
    assert reason in str(answer["refused"])
    assert "row/model" not in answer


def test_a_message_names_no_model_that_the_site_has_not_allowed(tmp_path: Path) -> None:
    """The study's own model is looked at, and no message says one beside it."""
    numbers = kits(tmp_path, SITES, tmp_path)
    hall = Hall(numbers)
    file = written(tmp_path, "fedavg", rounds=1)
    federated.run(str(file), str(tmp_path / "out"), hall, list(SITES))
    name, question = next((s, q) for s, q in hall.sent if "train" in q.get("about", ""))
    head = json.loads(question["head"])
    model = f"os:mkdir(path='{tmp_path / 'made'}')"
    site = Site.read(next(kit for kit in numbers.values() if kit.name == name))
    for rule, other in (
        ("protocol", head | {"model": model}),
        ("code", head | {"study": head["study"] | {"model": model}}),
    ):
        answer = handle({**question, "head": json.dumps(other)}, site)
        assert answer["rule"] == rule and not (tmp_path / "made").exists()


@pytest.mark.parametrize("kind", ["masks()", "ckks()"])
def test_a_channel_over_messages_is_the_channel_in_one_process(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tenseal" if kind == "ckks()" else "cryptography", reason="needs extra he")
    from unseen.privacy import channel

    names = [name for name in SITES if name != "75"]
    file = written(tmp_path, "fedavg" if kind == "masks()" else "ppdg(order='fixed')", rounds=1)
    file.write_text(file.read_text() + f'[privacy]\nchannel = "{kind}"\n')
    Study.read(file, {"privacy.channel": "clear"}).run(tmp_path / "one", data_dir=tmp_path)
    numbers = kits(tmp_path, SITES, tmp_path)
    shared, own = channel.read(kind, "clear").keys(list(SITES), {})
    for kit in numbers.values():
        for path, content in own[kit.name].items():
            (kit / path).write_bytes(content)
    for path, content in shared.items():
        (tmp_path / path).write_bytes(content)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    hall = Hall(numbers)
    federated.run(str(file), str(tmp_path / "out"), hall, list(SITES))
    (clear,), (found,) = (list(p.rglob("final.safetensors")) for p in
                          (tmp_path / "one", tmp_path / "out"))  # fmt: skip
    left, right = load(clear.read_bytes()), load(found.read_bytes())
    assert all(torch.allclose(left[k], right[k], atol=1e-5) for k in left)
    ledger = (found.parent / "ledger.jsonl").read_text()
    assert ("masked" if kind == "masks()" else "encrypted") in ledger and names
