"""What a server that lies asks, and a site that answers no more than it promised."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="needs the extra flower")

from support.hall import OPEN, Hall, kits, vouched
from test_hall import SITES, _quick, written

from unseen import UnseenError
from unseen.core import Client, Exchange, Reply, Split
from unseen.core.metrics.evaluation import Evaluate
from unseen.core.metrics.row_shares import of_few
from unseen.core.turn import Turn
from unseen.methods.compose import method as compose
from unseen.methods.exact.node_rows import merged
from unseen.serving import foreign_code
from unseen.sites.flower import server_run as federated
from unseen.sites.flower.site import Site
from unseen.sites.flower.site_handler import handle, sparing
from unseen.sites.kits.provision import write_sum_keys
from unseen.sites.policy import spending
from unseen.sites.policy.approvals import Approvals
from unseen.sites.policy.few_rows import few, hidden_groups, without_few
from unseen.sites.policy.site_policy import SitePolicy
from unseen.sites.policy.study_rules import breaches, columns_of
from unseen.studies.execution.checks import check_completed
from unseen.studies.settings.study import StudySpec

__all__ = ["_quick"]  # the fixture of test_hall
RANGES = "columns = {a = [-4, 4], b = [-4, 4], c = [-4, 4], d = [-4, 4]}\n"
RELEASE = {"noise": 2.0, "rate": 1.0, "steps": 1, "delta": 1e-5, "clip": 1.0}


def asked(
    folder: Path,
    exchange: str,
    policy: str = OPEN,
    privacy: str = "",
    masks: bool = False,
    method: str = "fedavg",
) -> tuple[Site, dict[str, Any]]:
    """Site 0 after a federation, and the last question of an exchange that it got."""
    study = written(folder, method)
    study.write_text(study.read_text() + privacy)
    places = kits(folder, SITES, folder, policy)
    if masks:
        write_sum_keys(folder / "kits", list(SITES), ["masks"])
    hall = Hall(places)
    federated.run(str(study), str(folder / "out"), hall, list(SITES))
    questions = [q for name, q in hall.sent if name == "0" and exchange in str(q["about"])]
    return Site.read(next(kit for kit in places.values() if kit.name == "0")), questions[-1]


def changed(question: Mapping[str, Any], position: Mapping[str, Any] = {}, **agreed: Any) -> Any:
    head = json.loads(question["head"])
    head["position"] |= position
    head["agreement"] |= agreed
    return {**question, "head": json.dumps(head)}


def another_run(site: Site, question: Mapping[str, Any], **agreed: Any) -> Any:
    """The question in a run that the site approved after the first, of other sites or terms."""
    approvals = Approvals(site.account)
    approvals.approve(*approvals.every())
    other = changed(question, run="another", **agreed)
    assert site.kit is not None
    return vouched(other, site.kit.parent)


@pytest.mark.parametrize(
    "method",
    [
        "stack(members=['evil:f', 'glm'])",
        "portfolio(members=['glm', 'fedavg+evil:f'])",
        "bag(of='evil:f')",
        "stack(members=['glm', \"bag(of='evil:f(x=1)')\"])",
    ],
)
def test_code_among_the_members_of_a_mixture_is_code(method: str) -> None:
    study = StudySpec(dataset="rotated-digits", methods=(method,))
    assert [breach.rule for breach in breaches(SitePolicy(), study)] == ["code"]
    assert foreign_code.parts({"method": method}) == ["evil:f"]


def test_members_of_a_mixture_are_among_the_methods_that_a_site_allows() -> None:
    study = StudySpec(dataset="rotated-digits", methods=("stack(members=['glm', 'scaffold'])",))
    allowed = SitePolicy(methods={"names": ["stack", "glm"]})
    (breach,) = breaches(allowed, study)
    assert breach.rule == "methods" and "scaffold" in breach.why
    assert not list(breaches(SitePolicy(methods={"names": ["stack", "glm", "scaffold"]}), study))


def test_every_use_of_a_column_is_looked_at() -> None:
    table = "table(path='v.csv', domain='site', label='died', groups=['died'])"
    assert columns_of(table) == [("site", "domain"), ("died", "label"), ("died", "group")]
    policy = SitePolicy(columns={"died": ["group", "levels"], "*": "feature"})
    rules = [breach.why for breach in breaches(policy, StudySpec(dataset=table, methods=("glm",)))]
    assert "the column 'died' may not be used as label" in rules


@pytest.mark.parametrize("what", ["terms", "members", "run"])
def test_noise_is_other_noise_for_every_other_question(what: str, tmp_path: Path) -> None:
    """Noise of 50 under two questions that differ in the label's codes alone does not cancel."""
    pytest.importorskip("opacus", reason="needs the extra dp")
    privacy = f'[privacy]\nexamples = "dp(clip=1.0, noise=50.0, delta=1e-4)"\n{RANGES}'
    site, question = asked(tmp_path, "train", privacy=privacy)
    first = handle(question, site)["row/model"]
    assert torch.equal(handle(question, site)["row/model"], first)
    agreed = json.loads(question["head"])["agreement"]
    terms, members = agreed["terms"], agreed["members"]
    other = {
        "terms": {"terms": {**terms, "classes": terms["classes"][::-1]}},
        "members": {"members": members | {"90": "evaluate"}},
        "run": {},
    }[what]
    second = handle(another_run(site, question, **other), site)["row/model"]
    assert (second - first).abs().median() > 0.1 * first.abs().median()


def test_names_that_nobody_has_a_key_of_hide_no_row(tmp_path: Path) -> None:
    noise = "dp(clip=1.0, noise=100.0, delta=1e-4, trust='sum')"
    privacy = f'[privacy]\nchannel = "masks()"\nclients = "{noise}"\n{RANGES}'
    site, question = asked(tmp_path, "train", privacy=privacy, masks=True)
    study = json.loads(question["head"])["study"] | {"holdout": "none"}
    members = dict.fromkeys([*SITES, "ghost"], "train")
    head = json.loads(question["head"]) | {"study": study}
    head["position"]["task"] = "all"
    other = changed({**question, "head": json.dumps(head)}, members=members, run="other")
    answer = handle(other, site)
    assert answer["refused"].startswith("this site has no key to mask its rows from ghost")


def test_a_validation_domain_measures_all_of_its_rows(tmp_path: Path) -> None:
    held_back = OPEN.replace("[columns]", 'evaluate = ["validation"]\n[columns]')
    site, question = asked(tmp_path, "validate", held_back)
    assert handle(question, site)["scalar/examples"] < 10
    head = json.loads(question["head"])
    head["study"]["holdout"] = {"source": ["15", "30"], "validation": ["0"], "target": ["75"]}
    head["agreement"]["run"] = "other"
    assert handle({**question, "head": json.dumps(head)}, site)["rule"] == "evaluate"


@pytest.mark.parametrize("method", ["fedavg+swad", "fedavg+ga(on='validation')"])
def test_training_says_nothing_of_held_back_rows_that_are_not_to_be_measured(
    method: str, tmp_path: Path
) -> None:
    site, question = asked(tmp_path, "train", method=method)
    assert "refused" not in handle(question, site)
    file = (site.kit or tmp_path) / "site.toml"
    file.write_text(file.read_text().replace("examples = 1", "examples = 10"))
    assert handle(question, Site.read(file.parent))["rule"] == "least.examples"
    file.write_text("evaluate = []\n" + file.read_text())
    assert handle(question, Site.read(file.parent))["rule"] == "evaluate"
    study = StudySpec(dataset="rotated-digits", methods=(method,), privacy={"metrics": "none"})
    with pytest.raises(UnseenError, match="sends figures of the rows that are held back"):
        check_completed(compose(method), study, 3)


@pytest.mark.parametrize(
    ("counts", "hidden"),
    [
        ([15, 40], []),
        ([15, 1, 40], [1, 0]),  # 1 alone would be what is left of all
        ([15, 6, 5, 40], [2, 1]),
        ([0, 3, 4], [1, 2]),
        ([9, 9], [0, 1]),
    ],
)
def test_groups_of_few_rows_are_hidden_and_cannot_be_told_by_what_is_left(
    counts: list[int], hidden: list[int]
) -> None:
    assert few(counts, 10) == hidden
    together = sum(counts[group] for group in hidden)
    assert together == 0 or together >= min(10, sum(counts))


def test_the_metrics_of_a_hidden_group_are_those_of_an_empty_one() -> None:
    arrays = {
        "examples@g": [30.0, 2.0, 20.0],
        "loss@g": [0.3, 0.9, 0.2],
        "loss.undefined@g": [0.0] * 3,
    }
    scalars = {name: torch.tensor(values) for name, values in arrays.items()}
    codes = {"g": torch.arange(3).repeat_interleave(torch.tensor([30, 2, 20]))}
    reply = without_few(Reply(scalars={"loss": 0.4, **scalars}), codes, 10)
    assert reply.scalars["loss"] == 0.4
    found = {name: value.tolist() for name, value in reply.scalars.items() if "@" in name}
    assert found == {
        "examples@g": [30.0, 0.0, 0.0],
        "loss@g": [pytest.approx(0.3), 0.0, 0.0],
        "loss.undefined@g": [0.0, 1.0, 1.0],
    }


@given(
    rows=st.lists(
        st.tuples(st.integers(-1, 2), st.integers(-1, 3), st.integers(0, 1)), max_size=60
    ),
    least=st.integers(1, 12),
)
@settings(deadline=None)
def test_groups_of_several_columns_give_no_few_rows_away(rows, least: int) -> None:
    """No sum or difference of whole groups that leave, and of all rows, is of few rows."""
    codes = {
        n: torch.tensor([row[i] for row in rows], dtype=torch.long) for i, n in enumerate("abc")
    }
    counts = {n: [int((c == g).sum()) for g in range(4)] for n, c in codes.items()}
    hidden = hidden_groups(counts, codes, least)
    everything = torch.ones(len(rows))
    for one, other in itertools.combinations("abc", 2):
        shown = {
            n: [(codes[n] == g).double() for g in range(4) if counts[n][g] and g not in hidden[n]]
            for n in (one, other)
        }
        for firsts in subsets(shown[one]):
            for seconds in subsets(shown[other]):
                left = sum(firsts, 0 * everything) - sum(seconds, 0 * everything)
                if bool((left >= 0).all()) or bool((left <= 0).all()):
                    assert int(left.abs().sum()) not in range(1, least)
    for column, groups in hidden.items():
        kept = [n for g, n in enumerate(counts[column]) if g not in groups]
        assert all(n == 0 or n >= least for n in kept)
        gone = len(rows) - sum(kept)  # of no group, too
        assert gone == 0 or gone >= least or sum(kept) == 0


def subsets(items: list[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
    return [own for n in range(len(items) + 1) for own in itertools.combinations(items, n)]


def test_a_column_within_another_does_not_give_a_hidden_group_away(tmp_path: Path) -> None:
    """Of region north ward N1 has all rows but two, and ward N2 these two."""
    wards = torch.tensor([0] * 28 + [1] * 2 + [2] * 30)
    codes = {"region": torch.tensor([0] * 30 + [1] * 30), "ward": wards}
    counts = {"region": [30, 30], "ward": [28, 2, 30]}
    assert sorted(hidden_groups(counts, codes, 10)["ward"]) in ([0, 1], [1, 2])
    assert hidden_groups(counts, codes, 2) == {"region": [], "ward": []}


def test_shares_of_a_class_of_few_rows_are_not_given() -> None:
    y = torch.tensor([0, 0] + [1] * 18)
    by_class = ("specificity", "npv", "balanced-accuracy", "f1-macro", "mcc")
    local = Evaluate("validation", ("accuracy", *by_class, "auroc"), groups={"g": 2})
    split = Split(torch.zeros(20, 1), y, {"g": torch.zeros(20, dtype=torch.long)})
    client, turn = Client("va", None, split, 2), Turn(0, 0, 1)
    outputs = torch.stack([torch.linspace(1, 0, 20), torch.linspace(0, 1, 20)], 1)
    given_all = local.scored(outputs, client, turn).scalars
    assert given_all["specificity"] == 1.0 and given_all["npv.undefined"] == 0.0
    spared = sparing(Exchange("validate", local, {}), 3).local.scored(outputs, client, turn).scalars
    for name in by_class:
        assert spared[name] == 0.0 and spared[f"{name}.undefined"] == 1.0
        assert spared[f"{name}.undefined@g"].tolist() == [1.0, 1.0]
    assert spared["accuracy"] == given_all["accuracy"] and spared["auroc"] == given_all["auroc"]


def test_figures_by_class_need_enough_rows_of_each_of_many_classes() -> None:
    outputs, y = torch.eye(3).repeat_interleave(5, 0), torch.arange(3).repeat_interleave(5)
    assert of_few(outputs, y, 6) and not of_few(outputs, y, 5)
    assert of_few(outputs, y.clamp(max=1), 6)  # nobody is of the third class
    assert of_few(outputs[:-1], y[:-1], 5) and not of_few(outputs[:10], y[:10], 5)


def test_rows_under_masks_are_counted_by_the_rows(tmp_path: Path) -> None:
    pytest.importorskip("opacus", reason="needs the extra dp")
    line = {"answer": "the head alone", "trained": True}
    line |= {"releases": [{**RELEASE, "protects": "client"}]}
    once, again, other = ({**line, "rows": rows} for rows in ("x", "x", "y"))
    assert spending.epsilon([once, again], 1e-5) == spending.epsilon([once], 1e-5)
    two = {**line, "answer": "two", "rows": "z"}
    assert spending.epsilon([once, other], 1e-5) == spending.epsilon([once, two], 1e-5)
    assert (
        spending.epsilon([once, other], 1e-5)["client"] > spending.epsilon([once], 1e-5)["client"]
    )


def test_what_is_private_of_sites_is_spent_by_examples_too() -> None:
    pytest.importorskip("opacus", reason="needs the extra dp")
    lines = [
        {"answer": str(i), "releases": [{**RELEASE, "protects": protects}]}
        for i, protects in enumerate(("example", "client"))
    ]
    alone = [{"answer": str(i), "releases": lines[0]["releases"]} for i in range(2)]
    assert spending.epsilon(lines, 1e-5)["example"] == spending.epsilon(alone, 1e-5)["example"]


@settings(max_examples=60)
@given(st.lists(st.integers(0, 6), min_size=2, max_size=40), st.integers(1, 12))
def test_counts_that_leave_are_of_enough_rows(rows: list[int], least: int) -> None:
    """No cell below the least, no row lost unless a class has too few, none moved past another."""
    counts = torch.tensor([rows, rows[::-1]])
    leaving = merged(counts, least)
    assert not bool(((leaving > 0) & (leaving < least)).any())
    total = sum(rows) if sum(rows) >= least else 0
    assert leaving.sum(1).tolist() == [total, total]
    if total:
        moved = (leaving.cumsum(1) - counts.cumsum(1)).abs().max()
        assert int(moved) < 2 * least
    assert torch.equal(merged(counts, 1), counts)


@pytest.mark.parametrize(
    ("lie", "fault"),
    [
        ({"schema": {"categories": {"a": ["0", "1", "2", "3"]}}}, "column 'a' is 'category'"),
        ({"schema": {"flags": ["b"]}}, "column 'b' is 'flag'"),
        ({"schema": {"columns": ["a", "a", "b", "c", "d"]}}, "columns is"),
        ({"schema": {"columns": ["a", "b", "c"]}}, "columns is"),
        ({"schema": None}, "one is a table"),
        ({"classes": None}, "numbers as labels"),
        ({"standardise": "died"}, "labels to standardise"),
        ({"times": ["t", "event"]}, "columns of time and event"),
    ],
)
def test_terms_that_read_the_data_otherwise_get_no_sums(lie, fault: str, tmp_path: Path) -> None:
    """A number as a category would leave as a count of each of its values."""
    site, question = asked(tmp_path, "statistics")
    assert "refused" not in handle(question, site)
    terms = json.loads(question["head"])["agreement"]["terms"]
    schema = terms["schema"]
    if "schema" in lie:
        schema = lie["schema"] and schema | lie["schema"]
    changes = lie | {"schema": schema}
    answer = handle(another_run(site, question, terms=terms | changes), site)
    assert answer.get("rule") == "study" and fault in str(answer["refused"])
    assert not any(name.startswith("row/") for name in answer)


#: Settings of a study that would end or stop the process of a site that took them.
HOSTILE: Mapping[str, Mapping[str, Any]] = {
    "threads": {"threads": 100_000}, "many threads": {"threads": 10**12},
    "device": {"device": "meta"}, "no such device": {"device": "cuda:7"},
    "brackets": {"methods": ["(" * 5000 + "fedavg" + ")" * 5000]},
    "nested": {"methods": ["stack(members=[" * 300 + "'glm'" + "])" * 300]},
    "deep path": {"dataset": "table(path=" + "[" * 3000 + "]" * 3000 + ")"},
    "code": {"training": {"augment": "os:system('x')"}},
}  # fmt: skip


@pytest.mark.parametrize("setting", HOSTILE)
def test_no_setting_of_a_study_stops_a_site(setting: str, tmp_path: Path) -> None:
    """The site is open to any study that its rules allow."""
    site, question = asked(tmp_path, "train")
    head = json.loads(question["head"])
    for key, value in HOSTILE[setting].items():
        own = head["study"][key]
        head["study"][key] = {**own, **value} if isinstance(value, dict) else value
    before = torch.get_num_threads()
    answer = handle({**question, "head": json.dumps(head)}, site)
    assert "refused" in answer or "failed" in answer
    assert "row/model" not in answer and torch.get_num_threads() == before
    honest = handle(question, site)
    assert "row/model" in honest
