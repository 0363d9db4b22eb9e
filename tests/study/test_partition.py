"""Several clients of each domain: every row at one of them, by the shares that were asked for."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.small_studies import domain, refused, rows, study, write

from unseen.core.client import Client, Split
from unseen.data import DataSet, Domain
from unseen.errors import UnseenError
from unseen.serving.fit import study_of
from unseen.studies.execution import Study
from unseen.studies.execution.prepare import prepare
from unseen.studies.settings.holdout import Task

TASK = Task("c", ("a", "b"), ("c",))
KINDS = ("domains(per={}, mix={})", "dirichlet(per={}, alpha={})", "quantity(per={}, alpha={})")


def numbered(name: str, n: int, first: int, **options: Any) -> Domain:
    """A domain whose inputs [N, 1] number its rows from `first` on, with three classes."""
    x = torch.arange(first, first + n, dtype=torch.float32).unsqueeze(1)
    return Domain(name, x, torch.arange(n) % 3, **options)


def data(*domains: Domain, classes: tuple[str, ...] | None = ("x", "y", "z")) -> DataSet:
    return DataSet("made", domains, classes, "", "", "")


def made(a: int = 40, b: int = 60, **options: Any) -> DataSet:
    return data(numbered("a", a, 0, **options), numbered("b", b, 1000), numbered("c", 9, 2000))


def sources(data: DataSet, partition: str, seed: int = 0, **settings: Any) -> dict[str, Client]:
    return prepare(data, TASK, Study(partition=partition, **settings), seed).sources


def of(split: Split | None) -> list[int]:
    assert split is not None
    return [int(i) for i in split.x.flatten()]


def held(clients: dict[str, Client]) -> list[int]:
    return sorted(i for client in clients.values() for i in of(client.validation))


@given(
    kind=st.sampled_from(KINDS),
    per=st.integers(1, 6),
    knob=st.sampled_from([0.001, 0.3, 1.0]),
    a=st.integers(40, 70),
    seed=st.integers(0, 3),
)
def test_every_row_is_at_one_client(kind: str, per: int, knob: float, a: int, seed: int) -> None:
    dealt = sources(made(a), kind.format(per, knob), seed, validation=0.3)
    assert list(dealt) == [f"{name}-{k + 1}" for name in "ab" for k in range(per)]
    every = [i for client in dealt.values() for i in of(client.train) + of(client.validation)]
    assert sorted(every) == [*range(a), *range(1000, 1060)]
    assert all(len(client.split(s)) for client in dealt.values() for s in ("train", "validation"))
    labels = [int(i) % 1000 % 3 for c in dealt.values() for i in of(c.train)]
    assert labels == [int(y) for c in dealt.values() for y in c.split("train").y]


@pytest.mark.parametrize("kind", KINDS)
def test_the_draw_depends_on_the_seed_alone(kind: str) -> None:
    one, again, other = (sources(made(), kind.format(3, 0.5), seed) for seed in (1, 1, 2))
    assert {n: of(c.train) for n, c in one.items()} == {n: of(c.train) for n, c in again.items()}
    assert {n: of(c.train) for n, c in one.items()} != {n: of(c.train) for n, c in other.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_held_back_is_what_is_held_back_without(kind: str) -> None:
    plain = sources(made(), "", validation=0.3)
    assert held(sources(made(), kind.format(4, 0.5), validation=0.3)) == held(plain)


@given(mix=st.floats(0, 1), per=st.integers(1, 5))
def test_counts_are_the_benchmarks_mixture(mix: float, per: int) -> None:
    """(1 − λ) n_d / per + λ n_d / K of the own domain, λ n_e / K of others, up to rounding."""
    dealt = sources(made(200, 300), f"domains(per={per}, mix={mix})", validation=0.5)
    sizes, K = {"a": 100, "b": 150}, 2 * per
    for name, client in dealt.items():
        found = Counter("ab"[i >= 1000] for i in of(client.train))
        for d, n in sizes.items():
            own = (1 - mix) * n / per * (name[0] == d)
            assert found[d] == pytest.approx(own + mix * n / K, abs=1.001)


def test_0_is_one_domain_each_and_1_the_same_mixture() -> None:
    alone = sources(made(60, 60), "domains(per=3, mix=0)")
    assert all({i >= 1000 for i in of(c.train)} == {n[0] == "b"} for n, c in alone.items())
    alike = sources(made(60, 60), "domains(per=3, mix=1)", validation=0.5)
    assert all(
        Counter(i >= 1000 for i in of(c.train)) == {False: 5, True: 5} for c in alike.values()
    )


def test_a_small_alpha_puts_a_class_at_one_client_and_a_large_one_spreads_it() -> None:
    def largest(partition: str) -> list[float]:
        dealt = [c for n, c in sources(made(90, 90), partition).items() if n.startswith("a")]
        counts = torch.stack([torch.bincount(c.split("train").y, minlength=3) for c in dealt])
        return (counts.max(0).values / counts.sum(0)).tolist()

    assert min(largest("dirichlet(per=3, alpha=0.001)")) > 0.9
    assert max(largest("dirichlet(per=3, alpha=100000)")) < 0.4


def test_quantities_are_skewed_and_labels_are_not() -> None:
    dealt = sources(made(300, 300), "quantity(per=3, alpha=0.3)", seed=1)
    sizes = sorted(len(c.split("train")) for n, c in dealt.items() if n.startswith("a"))
    assert sizes[-1] > 3 * sizes[0]
    most = max(dealt.values(), key=lambda c: len(c.split("train"))).split("train").y
    assert torch.bincount(most, minlength=3).min() > len(most) / 5


def test_a_unit_is_at_one_client() -> None:
    units = torch.arange(60) // 4
    dealt = sources(made(60, units=units), "dirichlet(per=3, alpha=0.5)", validation=0.4)
    owners: dict[int, set[str]] = {}
    for name, client in dealt.items():
        for i in of(client.train) + of(client.validation):
            if i < 1000:
                owners.setdefault(i // 4, set()).add(name)
    assert all(len(names) == 1 for names in owners.values())


def test_views_go_where_their_image_goes() -> None:
    x = torch.arange(40, dtype=torch.float32).unsqueeze(1)
    dealt = sources(made(40, views=(x + 0.25, x + 0.5)), "domains(per=4, mix=1)")
    for client in dealt.values():
        rows = [float(i) for i in client.split("train").x if i < 1000]
        assert Counter(int(i) for i in rows) == dict.fromkeys({int(i) for i in rows}, 3)


def test_a_study_of_many_clients_runs_and_samples_them(tmp_path) -> None:
    csv = write(tmp_path / "visits.csv", rows(count=40))
    settings = {"participation": 5, "targets": ["a"], "validation": 0.5, "rounds": 3}
    results = study(csv, partition="domains(per=12, mix=0.5)", **settings).run(tmp_path / "out")
    assert results.table().rows(lambda text, mark: text)
    records = next((tmp_path / "out").rglob("rounds.jsonl")).read_text().splitlines()
    rounds = [r for r in map(json.loads, records) if r["exchange"] == "train"]
    assert [len(r["clients"]) for r in rounds] == [5, 5, 5]
    assert len({name for r in rounds for name in r["clients"]}) > 5


def test_clients_of_one_class_are_counted_once(tmp_path) -> None:
    csv = write(tmp_path / "visits.csv", rows(count=40))
    settings = {"targets": ["a"], "validation": 0.5, "rounds": 1}
    partition = "dirichlet(per=6, alpha=0.01)"
    with pytest.warns(UserWarning, match=r"of one class only, .* 'c-2' \(1\) and 10 more"):
        study(csv, partition=partition, **settings).run(tmp_path / "out")


def test_refusals(tmp_path) -> None:
    with pytest.raises(UnseenError, match="10 clients need one each"):
        sources(made(), "domains(per=5)", validation=0.05)
    numbers = data(*(Domain(d.name, d.x, d.y.float()) for d in made().domains), classes=None)
    with pytest.raises(UnseenError, match="deals classes"):
        sources(numbers, "dirichlet")
    clash = data(numbered("a", 40, 0), numbered("b", 40, 100), numbered("c", 9, 200), domain("a-1"))
    with pytest.raises(UnseenError, match="'a-1' would be a client"):
        sources(clash, "domains")
    for wrong in ("domains(mix=2)", "domains+quantity", "domain", "quantity(alpha=0)"):
        with pytest.raises(UnseenError):
            Study(partition=wrong)
    with pytest.raises(UnseenError, match="sites are real"):
        study_of("digits", {"partition": "domains", "methods": ["fedavg"]})
    csv = write(tmp_path / "visits.csv", rows())
    refused(study(csv, partition="domains(per=2)", participation=7), tmp_path, "6 source clients")
