"""Bad input is refused before any training, with what was found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.small_studies import domain, refused, rows, study, write

from unseen.data import Domain
from unseen.errors import UnseenError

# --- bad input -----------------------------------------------------------------------------


def test_a_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "nowhere.csv"
    refused(study(path), tmp_path / "out", str(path), "does not exist")


@pytest.mark.parametrize(("dataset", "words"), [("pacs", ("art_painting", "PACS"))])
def test_missing_files_of_a_data_set(tmp_path: Path, dataset: str, words: tuple[str, ...]) -> None:
    with pytest.raises(UnseenError) as caught:
        study(dataset, model=None).run(tmp_path / "out", data_dir=tmp_path / "empty")
    for word in (*words, str(tmp_path / "empty")):
        assert word in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_no_folder_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNSEEN_DATA", raising=False)
    refused(study("pacs"), tmp_path / "out", "--data-dir", "UNSEEN_DATA", "PACS")


def test_a_domain_without_examples(register: Callable[..., str], tmp_path: Path) -> None:
    empty = Domain("c", torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    name = register(domain("a"), domain("b"), empty)
    refused(study(name), tmp_path / "out", "'c'", "no examples")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_features_that_are_not_finite(
    register: Callable[..., str], tmp_path: Path, value: float
) -> None:
    bad = domain("c")
    bad.x[3, 1] = value
    refused(study(register(domain("a"), domain("b"), bad)), tmp_path / "out", "'c'", "NaN or inf")


@pytest.mark.parametrize(
    ("site", "cell", "words"),
    [("a", "1e60", ("'a'", "NaN or infinite")), ("c", "1e200", ("line 50", "larger unit"))],
)
def test_a_cell_that_leaves_no_finite_feature(
    tmp_path: Path, site: str, cell: str, words: tuple[str, ...]
) -> None:
    # No float32 holds the first; the second's square is beyond float64 as well.
    body = rows("abc")
    body[[row[0] for row in body].index(site)][1] = cell
    path = write(tmp_path / "large.csv", body)
    refused(study(path, targets=["a"]), tmp_path / "out", *words)


@pytest.mark.parametrize("cell", ["inf", "-inf", "1e999"])
def test_an_infinite_cell(tmp_path: Path, cell: str) -> None:
    body = rows("abc")
    body[4][1] = cell
    path = write(tmp_path / "infinite.csv", body)
    refused(study(path), tmp_path / "out", "line 6 of infinite.csv", repr(cell), "'u'")


@pytest.mark.parametrize("label", [7, -1])
def test_labels_outside_the_classes(
    register: Callable[..., str], tmp_path: Path, label: int
) -> None:
    y = torch.arange(20) % 2
    y[5] = label
    name = register(domain("a"), domain("b"), Domain("c", torch.zeros(20, 3), y))
    refused(study(name), tmp_path / "out", "'c'", "0 to 1", str(label))


def test_a_single_domain(tmp_path: Path) -> None:
    path = write(tmp_path / "single.csv", rows("a"))
    refused(study(path), tmp_path / "out", "at least two domains", "'a'")


def test_a_batch_larger_than_a_clients_data(register: Callable[..., str], tmp_path: Path) -> None:
    name = register(domain("a"), domain("b", n=10), domain("c"))
    # 10 examples, of which 1 validates
    refused(
        study(name, training={"batch_size": 10, "drop_last": True}),
        tmp_path / "out",
        "client 'b'",
        "batch_size = 10",
        "9 training examples",
    )


def test_a_source_of_one_example(register: Callable[..., str], tmp_path: Path) -> None:
    name = register(domain("a"), domain("b", n=1), domain("c"))
    refused(study(name, training={"batch_size": 1}), tmp_path / "out", "'b'", "1 example")


def test_an_official_validation_split_of_nothing(
    register: Callable[..., str], tmp_path: Path
) -> None:
    none = torch.zeros(0, dtype=torch.int64)
    hollow = Domain("b", domain("b").x, domain("b").y, validation=none)
    name = register(domain("a"), hollow, domain("c"))
    refused(study(name), tmp_path / "out", "'b'", "validation")


REFUSED: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"selection": "source-validaton"}, ("source-validaton", "'source-validation'")),
    ({"selection": "target-oracle(afer=3)"}, ("afer", "'after'")),
    ({"selection": "ood-validation"}, ("ood-validation", "neither source nor target")),
    ({"metric": "acuracy"}, ("acuracy", "'accuracy'")),
    ({"metric": "worst accuracy@region"}, ("region",)),  # groups are not asked for
    ({"metrics": ["acuracy"]}, ("acuracy", "'accuracy'")),
    ({"metrics": ["loss", "pearson"]}, ("pearson",)),  # labels are classes
    ({"groups": ["regio"]}, ("regio", "'region'")),
    ({"methods": ["fedagv"]}, ("fedagv", "'fedavg'")),
    ({"methods": ["deepall+ga"]}, ("deepall+ga",)),
    ({"metric": "acuracy"}, ("unknown metric 'acuracy'", "'accuracy'")),
    ({"model": "logistc"}, ("logistc", "'logistic'")),
    ({"training": {"optimiser": "sgd(lrr=1)"}}, ("lrr", "'lr'")),
    ({"training": {"schedule": "cosin"}}, ("cosin", "'cosine'")),
    ({"participation": 4}, ("participation", "4", "3")),
    ({"targets": ["e"]}, ("target", "'e'")),
    ({"targets": []}, ("targets",)),
    ({"seeds": []}, ("seeds",)),
    ({"seeds": [1, 1]}, ("seeds", "1")),
    ({"device": "gpu"}, ("device", "gpu")),
    ({"holdout": {"growing": ["a", "b"], "target": ["c"], "first": 3}}, ("growing", "3")),
    (
        {"participation": 2, "holdout": {"growing": ["a", "b"], "target": ["c"]}},
        ("participation", "2", "1"),
    ),
]


@pytest.mark.parametrize(("settings", "words"), REFUSED, ids=[str(s) for s, _ in REFUSED])
def test_settings_that_cannot_work_are_refused_before_any_training(
    table: Path, tmp_path: Path, settings: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(UnseenError) as caught:
        study(table, **settings).run(tmp_path / "out")
    for word in words:
        assert word in str(caught.value)
    assert not list((tmp_path / "out").rglob("*.jsonl")), "records were written"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_device_that_is_not_there(table: Path, tmp_path: Path) -> None:
    refused(study(table, device="cuda"), tmp_path / "out", "cuda")


def test_auroc_of_many_classes_is_refused_before_any_training(
    register: Callable[..., str], tmp_path: Path
) -> None:
    three = [domain(name, n=30, y=torch.arange(30) % 3) for name in "abc"]
    name = register(*three, classes=("x", "y", "z"))
    refused(study(name, metrics=["auroc"]), tmp_path / "out", "auroc", "two classes")


@pytest.mark.parametrize("metric", ["accuracy", "auroc"])
def test_metrics_of_classes_are_refused_for_numbers(
    register: Callable[..., str], tmp_path: Path, metric: str
) -> None:
    numbers = [Domain(name, domain(name).x, domain(name).x[:, 0]) for name in "abc"]
    name = register(*numbers, classes=None)
    refused(study(name, metrics=[metric]), tmp_path / "out", metric)


@pytest.mark.parametrize("method", ["stack", "portfolio"])
@pytest.mark.parametrize(
    ("sites", "groups", "alone"),
    [("abc", 2, True), ("abcd", 2, True), ("abcd", 3, False), ("abcde", 2, False)],
)
def test_a_fold_of_one_site_under_masks(
    tmp_path: Path, method: str, sites: str, groups: int, alone: bool
) -> None:
    # Site a is the target. Groups are dealt in turn: of three sources in two groups one is alone.
    masked = study(
        write(tmp_path / "rows.csv", rows(sites)),
        methods=[f"{method}(members=['fedavg', 'glm(steps=2)'], groups={groups})"],
        targets=["a"],
        privacy={"channel": "masks()"},
    )
    if alone:
        why = f"a sum of 1 of the {len(sites) - 1} sites", "a group of sites is left out"
        refused(masked, tmp_path / "out", method, "masks", "at least 2", *why, "groups = G")
    else:
        assert list(masked.run(tmp_path / "out").jobs())


def test_one_site_alone_under_masks(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", rows("ab"))
    masked = study(path, methods=["fedavg"], targets=["a"], privacy={"channel": "masks()"})
    refused(masked, tmp_path / "out", "fedavg", "masks", "a sum of 1 of the 1 sites", "Add sites")


def test_all_sites_that_are_too_small_are_named_and_the_least_that_would_do(
    tmp_path: Path,
) -> None:
    lone = rows("cdefghi", count=1)
    small = write(tmp_path / "small.csv", [*rows("ab", count=4), *lone])
    named = [f"site {name!r} has 1 example" for name in "cdefg"]
    refused(study(small), tmp_path / "out", f"7 sites are too small: {', '.join(named)} and 2 more",
            "of a table by least=2 or without=[...]")  # fmt: skip
    two = write(tmp_path / "two.csv", [*rows("ab", count=4), *lone[:2]])
    refused(study(two), tmp_path / "out", "without=['c', 'd']")
    call = f'table(path="{small}", domain="site", label="y", groups=["region"], least=2)'
    assert len([*study(call).run(tmp_path / "left").folders()]) == 2


def test_a_least_that_drops_usable_sites_too_says_so(tmp_path: Path) -> None:
    body = [[*row[:1], *row[1:4], f"{row[0]}{i % 4}", row[5]]
            for i, row in enumerate([*rows("ac", count=40), *rows("b", count=60)])]  # fmt: skip
    body[:40] = [[*row[:4], "a", row[5]] for row in body[:40]]
    path = write(tmp_path / "units.csv", body)
    call = f'table(path="{path}", domain="site", label="y", unit="region")'
    refused(study(call), tmp_path / "out", "all 40 examples of site 'a' are of one unit",
            "least=41 (which leaves out 1 more, large enough) or without=['a']")  # fmt: skip
