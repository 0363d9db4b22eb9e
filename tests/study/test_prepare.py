"""From domains to clients: splits, encodings with training statistics, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from unseen.core.client import Client, Split
from unseen.core.turn import keyed
from unseen.data import DataSet, Domain, check
from unseen.data.dataset import Totals
from unseen.data.tables.encoding import Schema
from unseen.errors import UnseenError
from unseen.studies.execution import Study
from unseen.studies.execution.checks import check_clients, check_model
from unseen.studies.execution.column_statistics import statistics
from unseen.studies.execution.doubts import Doubt, doubts_of, empty_columns, of_empty, sentences
from unseen.studies.execution.method_checks import check_batches
from unseen.studies.execution.plan import prepare_study
from unseen.studies.execution.prepare import Prepared, prepare
from unseen.studies.settings.holdout import Task
from unseen.studies.settings.study import StudySpec

TASK = Task("c", ("a", "b"), ("c",))


def data(
    *domains: Domain, classes: tuple[str, ...] | None = ("no", "yes"), **options: Any
) -> DataSet:
    return DataSet("made", domains, classes, "", "", "", **options)


def counted(name: str, n: int, **options: Any) -> Domain:
    """A domain whose inputs [N, 1] count its rows, so that a split shows which rows it has."""
    x = torch.arange(n, dtype=torch.float32).unsqueeze(1)
    return Domain(name, x, torch.arange(n) % 2, **options)


def numbers(split: Split | None) -> list[int]:
    assert split is not None
    return [int(i) for i in split.x.flatten()]


def ready(source: Split, classes: int | None = 2, outputs: int = 2) -> Prepared:
    """One source with these training rows, and nothing wrong elsewhere."""
    client = Client("a", source, source, classes)
    other = Client("c", None, source, classes)
    return Prepared({"a": client}, {}, {"c": other}, tuple(source.x.shape[1:]), outputs, classes)


# --- splits --------------------------------------------------------------------------------


@given(n=st.integers(2, 60), share=st.floats(0.01, 0.99), seed=st.integers(0, 5))
def test_a_source_is_split_in_two(n: int, share: float, seed: int) -> None:
    made = data(counted("a", n), counted("b", 9), counted("c", 5))
    prepared = prepare(made, TASK, Study(validation=share), seed)
    train, held = (numbers(prepared.sources["a"].split(s)) for s in ("train", "validation"))
    assert sorted(train + held) == list(range(n))
    assert train
    assert held
    assert len(held) == pytest.approx(min(max(share * n, 1), n - 1), abs=0.51)
    assert train == sorted(train)  # in the domain's order
    assert prepared.sources["a"].split("train").y.tolist() == [i % 2 for i in train]


def test_a_split_depends_on_the_seed_and_the_domains_name_alone() -> None:
    made = data(counted("a", 40), counted("b", 40), counted("c", 40))

    def held(task: Task, seed: int, name: str, **settings: Any) -> list[int]:
        prepared = prepare(made, task, Study(**settings), seed)
        return numbers(prepared.sources[name].validation)

    first = held(TASK, 0, "a")
    assert held(Task("b", ("c", "a"), ("b",)), 0, "a") == first
    assert held(TASK, 0, "a", methods=["ppdg"], rounds=3, training={"batch_size": 5}) == first
    assert held(TASK, 1, "a") != first
    assert held(TASK, 0, "b") != first


def test_an_official_validation_split_is_kept() -> None:
    official = counted("a", 10, validation=torch.tensor([7, 1, 4]))
    made = data(official, counted("b", 9), counted("c", 5))
    for seed in (0, 1):
        source = prepare(made, TASK, Study(validation=0.5), seed).sources["a"]
        assert numbers(source.validation) == [1, 4, 7]
        assert numbers(source.train) == [0, 2, 3, 5, 6, 8, 9]


def test_targets_and_validators_are_whole_and_cannot_train() -> None:
    official = counted("c", 10, validation=torch.tensor([7]))
    made = data(counted("a", 8), counted("b", 8), official, counted("d", 6))
    prepared = prepare(made, Task("c", ("a",), ("c",), ("d",)), Study(), 0)
    assert (list(prepared.sources), list(prepared.validators), list(prepared.targets)) == (
        ["a"],
        ["d"],
        ["c"],
    )
    assert numbers(prepared.targets["c"].validation) == list(range(10))
    assert numbers(prepared.validators["d"].validation) == list(range(6))
    for client in (prepared.targets["c"], prepared.validators["d"]):
        with pytest.raises(UnseenError, match=f"client '{client.name}' has no train split"):
            client.split("train")


def test_metadata_stays_with_its_rows() -> None:
    region = torch.arange(20) % 3
    made = data(
        counted("a", 20, meta={"region": region}),
        *(counted(n, 6, meta={"region": region[:6]}) for n in "bc"),
        levels={"region": ("N", "S", "W")},
    )
    prepared = prepare(made, TASK, Study(), 0)
    for split in (prepared.sources["a"].split("train"), prepared.sources["a"].split("validation")):
        assert split.meta["region"].tolist() == [i % 3 for i in numbers(split)]


def test_oversampling_touches_the_training_split_alone() -> None:
    y = torch.tensor([0] * 16 + [1] * 4)
    rare = Domain("a", torch.arange(20.0).unsqueeze(1), y)
    made = data(rare, counted("b", 9), counted("c", 5))
    plain = prepare(made, TASK, Study(), 3)
    study = Study(training={"oversample": True})
    first, again = (prepare(made, TASK, study, 3) for _ in range(2))
    train = first.sources["a"].split("train")
    before = plain.sources["a"].split("train")
    assert numbers(train)[: len(before)] == numbers(before)  # originals are all kept
    counts = torch.bincount(train.y).tolist()
    assert counts[0] == counts[1] == int(torch.bincount(before.y).max())
    assert [y[i] for i in numbers(train)] == train.y.tolist()
    assert numbers(first.sources["a"].validation) == numbers(plain.sources["a"].validation)
    assert numbers(first.targets["c"].validation) == list(range(5))
    assert numbers(again.sources["a"].train) == numbers(train)
    other = prepare(made, TASK, study, 4)
    assert numbers(other.sources["a"].train) != numbers(train)


def test_shapes_and_outputs() -> None:
    image = torch.zeros(6, 1, 4, 5)
    made = data(*(Domain(n, image, torch.arange(6) % 2) for n in "abc"))
    prepared = prepare(made, TASK, Study(), 0)
    assert (prepared.shape, prepared.outputs, prepared.classes) == ((1, 4, 5), 2, 2)
    made = data(*(Domain(n, image, torch.zeros(6)) for n in "abc"), classes=None)
    prepared = prepare(made, TASK, Study(), 0)
    assert (prepared.outputs, prepared.classes) == (1, None)
    assert prepared.sources["a"].classes is None


# --- tables --------------------------------------------------------------------------------

SCHEMA = Schema(("age", "dose", "kind"), {"kind": ("p", "q", "r")})


def raw(name: str, n: int = 30, kinds: int = 2) -> Domain:
    """A raw table with gaps; `kinds` of the three categories occur."""
    draw = keyed(name)
    x = torch.randn(n, 3, generator=draw, dtype=torch.float64) * torch.tensor([9.0, 0.1, 1]) + 50
    x[:, 2] = torch.randint(kinds, (n,), generator=draw).double()
    x[torch.rand(n, generator=draw) < 0.2, 1] = math.nan
    return Domain(name, x, torch.arange(n) % 2)


def test_a_table_is_encoded_with_the_sources_training_rows_alone() -> None:
    domains = {name: raw(name, kinds=2 + (name == "c")) for name in "abc"}
    made = data(*domains.values(), schema=SCHEMA)
    prepared = prepare(made, TASK, Study(validation=0.3), 0)
    plain = prepare(data(*domains.values()), TASK, Study(validation=0.3), 0)  # same rows, raw
    pooled = np.concatenate([plain.sources[n].split("train").x.numpy() for n in "ab"])
    mean, scale = np.nanmean(pooled[:, :2], axis=0), np.nanstd(pooled[:, :2], axis=0)

    def expected(x: np.ndarray) -> np.ndarray:
        z = (x[:, :2] - mean) / scale
        missing = np.isnan(z[:, 1:])
        kinds = [x[:, 2] == k for k in (0, 1)]  # "r" occurs at the target only: all zeros
        return np.column_stack([np.nan_to_num(z), missing, *kinds])

    groups = (prepared.sources, plain.sources), (prepared.targets, plain.targets)
    for encoded, before in groups:
        for name, client in encoded.items():
            for split in ("train", "validation") if client.train else ("validation",):
                found = client.split(split).x
                assert found.dtype == torch.float32
                wanted = expected(before[name].split(split).x.numpy())
                np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-6)
    assert prepared.shape == (5,)


def test_a_table_is_encoded_alike_whatever_the_held_out_rows_say() -> None:
    domains = [raw(name) for name in "abc"]
    before = prepare(data(*domains, schema=SCHEMA), TASK, Study(), 0)
    target = raw("other", n=7, kinds=3)
    x = domains[0].x.clone()
    held = before.sources["a"].split("validation")
    target.x[:, :2] *= 1e3
    made = data(*domains[:2], Domain("c", target.x, target.y), schema=SCHEMA)
    after = prepare(made, TASK, Study(), 0)
    for name in "ab":
        for split in ("train", "validation"):
            assert after.sources[name].split(split).x.equal(before.sources[name].split(split).x)
    # The sources' own validation rows teach nothing either.
    plain = prepare(data(*domains), TASK, Study(), 0).sources["a"].split("validation")
    for row in plain.x:
        x[(x[:, 0] == row[0]).nonzero().flatten(), :2] = 1e6
    changed = data(Domain("a", x, domains[0].y), *domains[1:], schema=SCHEMA)
    again = prepare(changed, TASK, Study(), 0).sources["a"]
    assert again.split("train").x.equal(before.sources["a"].split("train").x)
    assert not again.split("validation").x.equal(held.x)


def test_the_exchange_of_sums_is_declared() -> None:
    method = statistics(Totals(SCHEMA, None))
    (exchange,) = method.exchanges
    assert (exchange.name, exchange.who, exchange.rounds) == ("statistics", "all", (0, 0))
    assert method.shares
    assert "sum of squares" in method.shares[0]


# --- what is wrong with the data -------------------------------------------------------------


def refuses(made: DataSet, *words: str) -> None:
    with pytest.raises(UnseenError) as caught:
        check(made)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_sound_data_passes() -> None:
    check(data(counted("a", 4), counted("b", 4)))
    check(data(Domain("a", torch.zeros(2, 1), torch.tensor([0.5, -1.5])), classes=None))
    check(data(raw("a"), schema=SCHEMA))  # gaps are imputed later
    check(data(Domain("a", torch.zeros(2, 1, dtype=torch.uint8), torch.tensor([0, 1]))))


def test_a_domain_without_examples_is_named() -> None:
    refuses(data(counted("a", 4), counted("b", 0)), "'b'", "no examples")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_counted(value: float) -> None:
    x = torch.zeros(5, 3)
    x[1, 2] = x[4, 0] = value
    bad = Domain("b", x, torch.arange(5) % 2)
    fine = Domain("a", torch.zeros(5, 3), torch.arange(5) % 2)
    refuses(data(fine, bad), "'b'", "2 input values", "NaN or infinite")
    y = torch.tensor([0.5, value])
    refuses(data(Domain("b", torch.zeros(2, 3), y), classes=None), "'b'", "targets", "finite")


@pytest.mark.parametrize("label", [2, 7, -1])
def test_labels_outside_the_classes_are_shown(label: int) -> None:
    bad = Domain("b", torch.zeros(3, 1), torch.tensor([0, label, 1]))
    refuses(data(counted("a", 4), bad), "'b'", "0 to 1", f"[{label}]")


def test_labels_that_are_no_integers() -> None:
    bad = Domain("b", torch.zeros(2, 1), torch.tensor([0.0, 0.5]))
    refuses(data(bad), "'b'", "[0.5]")


def test_inputs_of_two_shapes() -> None:
    other = Domain("b", torch.zeros(4, 2), torch.arange(4) % 2)
    refuses(data(counted("a", 4), other), "'a': [1]", "'b': [2]")


@pytest.mark.parametrize("rows", [[], [0, 1, 2, 3]])
def test_an_official_split_must_leave_something_on_both_sides(rows: list[int]) -> None:
    bad = counted("b", 4, validation=torch.tensor(rows, dtype=torch.int64))
    refuses(data(counted("a", 4), bad), "'b'", f"{len(rows)} validation rows of 4")


def test_a_source_of_one_example_cannot_be_split() -> None:
    own = r"'b' has 1 example.* of a data set of your own in its function"
    with pytest.raises(UnseenError, match=own):
        prepare(data(counted("a", 4), counted("b", 1), counted("c", 1)), TASK, Study(), 0)


# --- what is wrong with the clients ----------------------------------------------------------


def test_a_batch_larger_than_a_clients_training_split() -> None:
    split = Split(torch.zeros(9, 1), torch.arange(9) % 2)
    assert not list(doubts_of(ready(split), Study(training={"batch_size": 9})))
    (sentence,) = sentences(doubts_of(ready(split), Study(training={"batch_size": 10})))
    assert sentence.startswith("clients with fewer training examples than a batch of 10")
    assert sentence.endswith("one step: 'a' (9)")
    with pytest.raises(UnseenError) as caught:
        training = {"batch_size": 10, "drop_last": True}
        check_clients(ready(split), Study(training=training), TASK)
    for word in ("batch_size = 10", "9 training examples", "client 'a'", "task 'c'"):
        assert word in str(caught.value)


@pytest.mark.parametrize(("methods", "steps"), [(("glm",), False), (("glm", "fedsgd"), True)])
def test_batches_are_looked_at_where_a_method_takes_steps_on_them(
    methods: tuple[str, ...], steps: bool, tmp_path: Path
) -> None:
    training = {"batch_size": 4096}
    study = StudySpec(dataset="rotated-digits", methods=methods, training=training, seeds=1)
    said = any("a batch of 4096" in text for text in prepare_study(study, tmp_path).warnings)
    assert said == steps
    short = study.model_copy(
        update={"training": study.training.model_copy(update={"drop_last": True})}
    )
    if steps:
        with pytest.raises(UnseenError, match="batch_size = 4096 is larger"):
            prepare_study(short, tmp_path)
    else:
        assert not prepare_study(short, tmp_path).warnings


def test_a_column_that_no_training_site_has_measured_is_named_with_the_remedy() -> None:
    """Of the tasks that lack it alone; a value at the target is none in training."""
    nan = math.nan
    x = torch.tensor([[1.0, nan, nan], [2.0, nan, nan], [3.0, nan, nan], [4.0, nan, nan]]).double()
    there = torch.tensor([[1.0, 5.0, 0.0], [2.0, nan, 1.0], [3.0, 6.0, 1.0]]).double()
    schema = Schema(("age", "lactate", "ward"), {"ward": ("x", "y")})
    made = data(
        Domain("a", x, torch.arange(4) % 2), Domain("b", x, torch.arange(4) % 2),
        Domain("c", there, torch.arange(3) % 2), schema=schema,
    )  # fmt: skip
    study = Study()
    lacking = empty_columns(prepare(made, TASK, study, 0), schema)
    assert lacking == ("lactate", "ward")
    other = empty_columns(prepare(made, Task("b", ("a", "c"), ("b",)), study, 0), schema)
    assert other == () and not of_empty({"b": other})
    (sentence,) = of_empty({"c": lacking, "b": other})
    assert sentence.startswith("no training site has a value of 'lactate' and 'ward' (task 'c')")
    assert sentence.endswith("by drop=['lactate', 'ward']")
    assert empty_columns(ready(Split(torch.zeros(4, 1), torch.arange(4) % 2)), None) == ()


def test_one_class_is_a_warning() -> None:
    both = Split(torch.zeros(4, 1), torch.tensor([0, 1, 1, 1]))
    study = Study(training={"batch_size": 2})
    assert not list(doubts_of(ready(both), study))
    one = Split(torch.zeros(4, 1), torch.ones(4, dtype=torch.int64))
    (sentence,) = sentences(doubts_of(ready(one), study, ("no", "yes")))
    for word in ("one class only", "'a' (yes)", "undefined"):
        assert word in sentence
    constant = Split(torch.zeros(4, 1), torch.ones(4))
    assert not list(doubts_of(ready(constant, classes=None, outputs=1), study))


def test_a_doubt_is_said_once_for_all_its_clients() -> None:
    doubts = [Doubt("few rows", f"s{i % 20:02}", str(i % 20)) for i in range(60)]
    (sentence,) = sentences(doubts)
    assert sentence.startswith("clients with few rows: 's00' (0), 's01' (1), ")
    assert sentence.endswith("'s07' (7) and 12 more")
    assert sentences(reversed(doubts)) == [sentence]  # a study of other tasks says the same


@pytest.mark.parametrize("where", ["train", "validation", "target", "validator"])
def test_features_that_are_not_finite_after_encoding(where: str) -> None:
    good = Split(torch.zeros(4, 1), torch.arange(4) % 2)
    bad = Split(torch.tensor([[0.0], [math.inf], [0.0], [math.nan]]), good.y)
    made = {part: bad if part == where else good for part in ("train", "validation")}
    prepared = Prepared(
        {"a": Client("a", made["train"], made["validation"], 2)},
        {"v": Client("v", None, bad if where == "validator" else good, 2)},
        {"c": Client("c", None, bad if where == "target" else good, 2)},
        (1,),
        2,
        2,
    )
    name = {"target": "c", "validator": "v"}.get(where, "a")
    with pytest.raises(UnseenError, match=rf"'{name}' .*2 values that are NaN or infinite"):
        check_clients(prepared, Study(training={"batch_size": 2}), TASK)


# --- what is wrong with the model ------------------------------------------------------------

EIGHT = Split(torch.zeros(8, 3), torch.arange(8) % 2)


class Twice(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x[:, :2], x


@pytest.mark.parametrize("outputs", [1, 2])
def test_two_classes_take_one_or_two_outputs(outputs: int) -> None:
    check_model(nn.Linear(3, outputs), ready(EIGHT), Study())


@pytest.mark.parametrize(
    ("module", "classes", "words"),
    [
        (nn.Linear(3, 3), 2, ("2 classes", "[2, 2]", "[2, 3]")),
        (nn.Linear(3, 1), 4, ("4 classes", "[2, 4]", "[2, 1]")),
        (nn.Linear(3, 2), None, ("one number per example", "[2, 1]", "[2, 2]")),
        (nn.Flatten(0), 2, ("2 classes", "[6]")),
        (Twice(), 2, ("2 classes", "tuple")),
        (nn.Linear(4, 2), 2, ("cannot take inputs of shape [3]", "logistic")),
        (nn.Conv2d(1, 2, 3), 2, ("cannot take inputs of shape [3]",)),
    ],
)
def test_outputs_that_do_not_fit(
    module: nn.Module, classes: int | None, words: tuple[str, ...]
) -> None:
    prepared = ready(EIGHT, classes, classes or 1)
    with pytest.raises(UnseenError) as caught:
        check_model(module, prepared, Study(model="logistic"))
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("batch", "drop_last", "fits"),
    [(8, False, True), (7, False, False), (7, True, True), (1, False, False), (3, False, True)],
)
def test_batchnorm_takes_no_batch_of_one(batch: int, drop_last: bool, fits: bool) -> None:
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    study = Study(training={"batch_size": batch, "drop_last": drop_last})
    roster = {"a": Client("a", EIGHT, EIGHT, 2)}
    check_batches(nn.Linear(3, 2), roster, study)
    if fits:
        check_batches(module, roster, study)
    else:
        with pytest.raises(UnseenError, match=f"client 'a' has 8 .*batch_size = {batch}"):
            check_batches(module, roster, study)


def test_batchnorm_of_maps_takes_a_batch_of_one() -> None:
    """One image has many numbers of a channel, unless one pixel is left of it."""
    images = {"a": Client("a", Split(torch.rand(5, 3, 8, 8), torch.zeros(5).long()), None, 2)}
    study = Study(training={"batch_size": 4})
    check_batches(nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2)), images, study)
    with pytest.raises(UnseenError, match="BatchNorm cannot normalise"):
        check_batches(nn.Sequential(nn.Conv2d(3, 2, 8), nn.BatchNorm2d(2)), images, study)
