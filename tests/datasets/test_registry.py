"""Data sets by name: what is offered, what is refused, and what a refusal says."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from unseen.core.metrics.evaluation import METRICS
from unseen.data import check, datasets, load
from unseen.data.dataset import DataSet, Domain
from unseen.data.tables.encoding import Schema
from unseen.errors import UnseenError


def test_listing_names_imports_nothing_heavy() -> None:
    heavy = {"sklearn", "scipy", "pandas", "PIL", "torchvision"}
    code = f"import sys, unseen.data; print(sorted({heavy!r} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_every_data_set_says_what_it_is() -> None:
    for name, info in datasets().items():
        assert all((info.description, info.source, info.licence, info.model)), name
        assert set(info.metrics) <= set(METRICS), name


@pytest.mark.parametrize(
    ("name", "options", "hint"),
    [
        ("rotated-digit", {}, "did you mean 'rotated-digits'"),
        ("folder", {"size": 0}, "size must be an integer"),
        ("table", {"path": "x.csv", "label": "y"}, "needs domain"),
        ("table", {"path": "x.csv", "label": "y", "domain": "d"}, "does not exist"),
    ],
)
def test_a_wrong_name_or_option_is_answered_with_the_right_one(
    tmp_path: Path, name: str, options: dict[str, object], hint: str
) -> None:
    with pytest.raises(UnseenError) as caught:
        load(name, tmp_path, **options)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options", "file"),
    [
        ("pacs", {}, "art_painting"),
    ],
)
def test_a_missing_file_is_named_with_its_places_and_its_source(
    tmp_path: Path, name: str, options: dict[str, object], file: str
) -> None:
    with pytest.raises(UnseenError) as caught:
        load(name, tmp_path, **options)
    message = str(caught.value)
    assert file in message and str(tmp_path) in message and "\n" not in message
    with pytest.raises(UnseenError, match="UNSEEN_DATA"):
        load(name, None, **options)


X, Y = torch.zeros(3, 2), torch.tensor([0, 1, 1])
SOUND = Domain("a", X, Y, torch.tensor([2]), {"ward": torch.tensor([0, 0, 1])})
DATA = DataSet("d", (SOUND,), ("no", "yes"), "", "", "", levels={"ward": ("x", "y")})


def test_sound_data_passes_and_an_empty_domain_does_not() -> None:
    assert check(DATA) is DATA
    with pytest.raises(UnseenError, match="domain 'b' of data set 'd' has no examples"):
        check(replace(DATA, domains=(SOUND, Domain("b", X[:0], Y[:0]))))


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        (replace(SOUND, y=torch.tensor([0, 1, 2])), "labels outside its 2 classes"),
        (replace(SOUND, y=torch.tensor([0, 1, -1])), "labels outside its 2 classes"),
        (replace(SOUND, y=Y.float()), "labels outside its 2 classes"),
        (replace(SOUND, y=Y[:2]), "3 inputs and 2 labels"),
        (replace(SOUND, x=X.double()), "uint8 or float32"),
        (replace(SOUND, x=X.index_fill(0, torch.tensor([1]), float("nan"))), "NaN or infinite"),
        (replace(SOUND, x=X.index_fill(0, torch.tensor([1]), float("inf"))), "NaN or infinite"),
        (replace(SOUND, validation=torch.tensor([3])), "validation rows"),
        (replace(SOUND, validation=torch.tensor([1, 1])), "validation rows"),
        (replace(SOUND, meta={"ward": torch.tensor([0, 0, 2])}), "metadata 'ward'"),
        (replace(SOUND, meta={"bed": torch.tensor([0, 0, 0])}), "metadata 'bed'"),
    ],
)
def test_unsound_domains_are_named(broken: Domain, fault: str) -> None:
    with pytest.raises(UnseenError, match="domain 'a' of data set 'd'") as caught:
        check(replace(DATA, domains=(broken,)))
    assert fault in str(caught.value)


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        (replace(SOUND, x=X.numpy()), "'x' of type numpy.ndarray"),  # type: ignore[arg-type]
        (replace(SOUND, y=[0, 1, 1]), "'y' of type list"),  # type: ignore[arg-type]
        (replace(SOUND, meta={"ward": Y.numpy()}), "'ward' of type numpy.ndarray"),  # type: ignore[dict-item]
        (replace(SOUND, views=(X.numpy(),)), "'views' of type numpy.ndarray"),  # type: ignore[arg-type]
    ],
)
def test_arrays_that_are_no_tensors_are_named_with_what_makes_one(
    broken: Domain, fault: str
) -> None:
    with pytest.raises(UnseenError, match="domain 'a' of data set 'd'") as caught:
        check(replace(DATA, domains=(broken,)))
    message = str(caught.value)
    assert f"{fault}; a torch.Tensor was expected" in message and "torch.from_numpy" in message


def test_no_classes_are_none_and_not_an_empty_list() -> None:
    numbers = replace(SOUND, y=torch.tensor([0.5, 1.5, 2.5]))
    with pytest.raises(UnseenError, match=r"classes=\(\).*classes=None"):
        check(replace(DATA, classes=(), domains=(numbers,)))


def test_regression_targets_are_finite_float32() -> None:
    targets = replace(SOUND, y=torch.tensor([0.5, 1.5, 2.5]))
    regression = replace(DATA, classes=None, domains=(targets,))
    assert check(regression) is regression
    broken = replace(targets, y=torch.tensor([0.5, float("inf"), 2.5]))
    with pytest.raises(UnseenError, match="targets"):
        check(replace(regression, domains=(broken,)))


def test_a_table_may_have_missing_cells_but_no_infinite_ones() -> None:
    raw = replace(SOUND, x=torch.tensor([[1.0, float("nan")]] * 3, dtype=torch.float64))
    table = replace(DATA, domains=(raw,), schema=Schema(("u", "v")))
    assert check(table) is table
    with pytest.raises(UnseenError, match="infinite"):
        check(replace(table, domains=(replace(raw, x=raw.x / 0),)))


def test_domains_of_one_name_or_of_different_shapes_are_refused() -> None:
    with pytest.raises(UnseenError, match="different names"):
        check(replace(DATA, domains=(SOUND, SOUND)))
    wide = Domain("b", torch.zeros(1, 3), Y[:1])
    with pytest.raises(UnseenError, match="one shape"):
        check(replace(DATA, domains=(SOUND, wide)))
