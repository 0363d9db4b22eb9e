"""Columns of text: the numbers of scikit-learn's HashingVectorizer, and what cannot be text."""

from __future__ import annotations

import csv
import gzip
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import LogisticRegression
from support.command_line import Command

from unseen import Study
from unseen.data import load
from unseen.data.dataset import DataSet, Totals
from unseen.data.tables.encoding import Schema, encode, feature_names
from unseen.data.tables.hashing import Hashed
from unseen.errors import UnseenError
from unseen.studies.execution.prepare import split_rows

YOUTUBE = "sites/youtube.csv.gz"
NOTES = [
    ("a", "Chest pain, since MONDAY", 61, "no", "0"),
    ("a", "", 70, "refers to letter", "1"),
    ("b", "chest pain since monday", 55, "none", "1"),
    ("b", "? !", 80, "letter sent", "0"),
]


def read(folder: Path, header: str = "site,note,age,reply,died", **options: object) -> DataSet:
    with (folder / "t.csv").open("w", newline="") as file:
        file.write(header + "\n")
        csv.writer(file).writerows(NOTES)
    return load("table", folder, **{"path": "t.csv", "domain": "site", "label": "died", **options})


def hashed(texts: list[str], features: int = 1024, most: int = 1) -> np.ndarray:
    """By scikit-learn, with its defaults: lower case, words of two letters, signs, length 1."""
    vectorizer = HashingVectorizer(n_features=features, ngram_range=(1, most))
    return vectorizer.transform(texts).toarray()


@pytest.mark.parametrize(("pairs", "most"), [(False, 1), (True, 2)])
def test_texts_are_hashed_as_by_scikit_learn(tmp_path: Path, pairs: bool, most: int) -> None:
    names = ["note", "reply"]
    data = read(tmp_path, text=names, text_features=16, text_pairs=pairs)
    assert data.schema is not None and data.schema.columns == ("age",)
    assert data.schema.names == ("age", "note", "reply") and data.schema.width == 33
    x = torch.cat([domain.x for domain in data.domains])
    assert x[:, 0].tolist() == [61, 70, 55, 80]
    for k, column in enumerate((1, 3)):
        expected = hashed([str(row[column]) for row in NOTES], 16, most)
        np.testing.assert_array_equal(x[:, 1 + 16 * k : 17 + 16 * k].numpy(), expected)
    assert bool((x[1, 1:17] == 0).all())  # the case of letters aside, a missing cell has no words
    assert torch.equal(x[0, 1:17], x[2, 1:17])


def test_hashed_words_are_not_standardised_and_nothing_is_sent_about_them(tmp_path: Path) -> None:
    data = read(tmp_path, text="note", drop=["reply"], text_features=8)
    assert data.schema is not None
    x = torch.cat([domain.x for domain in data.domains])
    sums = data.schema.sums(x)
    ages = [61.0, 70, 55, 80]
    assert sums.tolist() == [4, 0, sum(ages), sum(age**2 for age in ages)]
    features = encode(data.schema, sums, x)
    assert torch.equal(features[:, 1:], x[:, 1:].float())
    assert feature_names(data.schema, sums) == ("age", *(f"note#{f}" for f in range(8)))


def test_a_table_of_text_alone_has_no_sums(tmp_path: Path) -> None:
    data = read(tmp_path, text="note", drop=["age", "reply"], text_features=8)
    assert data.schema is not None and Totals.of(data) is None
    nothing = torch.zeros(0)
    assert torch.equal(encode(data.schema, nothing, data["a"].x), data["a"].x.float())
    assert feature_names(data.schema, nothing) == tuple(f"note#{f}" for f in range(8))


def test_numbers_to_predict_from_text_are_standardised_by_their_own_sums(tmp_path: Path) -> None:
    options = {"label": "age", "task": "regression", "drop": ["reply", "died"]}
    totals = Totals.of(read(tmp_path, text="note", **options))
    assert totals is not None and totals.size == 4 and totals.columns == ("age",)
    sums = torch.tensor([4.0, 0, 266, 61**2 + 70**2 + 55**2 + 80**2], dtype=torch.float64)
    scale = totals.scale(sums)
    assert scale is not None and scale.mean == 66.5
    assert totals.of_table(sums) is not None and len(totals.of_table(sums)) == 0


def test_texts_make_other_data(tmp_path: Path) -> None:
    names = {
        repr(read(tmp_path, text="note", text_features=n, drop="reply").schema) for n in (8, 9)
    }
    assert len(names) == 2
    assert "texts" not in repr(Schema(("age",)))  # whose digests are as they were


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"text": "notes"}, "unknown column of t.csv 'notes'; did you mean 'note'?"),
        ({"text": "age"}, "'age' of t.csv, named in 'text', holds only numbers.*'categorical'"),
        ({"text": "site"}, "'site' is named in 'text' and once more"),
        ({"text": "died"}, "'died' is named in 'text' and once more"),
        ({"text": "reply", "unit": "reply"}, "'reply' is named in 'text' and once more"),
        ({"text": "reply", "groups": "reply"}, "'reply' is named in 'text' and once more"),
        ({"text": "reply", "drop": "reply"}, "'reply' is named in 'text' and once more"),
        ({"text": "reply", "categorical": "reply"}, "'reply' is named in 'text' and once more"),
        ({"text": ["reply", "reply"]}, "'reply' is named in 'text' and once more"),
        (
            {"text": "reply", "text_features": 0},
            r"text_features must be an integer in \[1, 65536\]",
        ),
        ({"text": "reply", "text_features": 8.5}, "text_features must be an integer"),
    ],
)
def test_what_cannot_be_text(tmp_path: Path, options: dict[str, object], fault: str) -> None:
    with pytest.raises(UnseenError, match=fault):
        read(tmp_path, **options)


def test_a_text_without_words_is_remarked_on(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("site,x,note,died\na,1,,0\na,2,?,1\nb,3,NaN,1\nb,4,!,0\n")
    data = load("table", tmp_path, path="t.csv", domain="site", label="died", text="note")
    assert "the text 'note' has no words in any row: all of its features are 0" in data.notes
    assert all(bool((domain.x[:, 1:] == 0).all()) for domain in data.domains)


def test_hashed_words_must_be_numbers() -> None:
    schema = Schema((), texts={"note": Hashed(2)})
    with pytest.raises(UnseenError, match="hashed words of note are not finite"):
        schema.check(torch.tensor([[0.5, float("nan")]]))
    with pytest.raises(UnseenError, match=r"of shape \[N, 2\]"):
        schema.check(torch.zeros(1, 1))
    with pytest.raises(UnseenError, match="note cannot be text and another column"):
        Schema(("note",), texts={"note": Hashed(2)})


def test_columns_of_text_are_recognised_and_counted(
    tmp_path: Path, unseen: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UNSEEN_DATA", raising=False)
    rows = [f"{'ab'[i % 2]},we saw him today at bed {i + 10},{i % 3 % 2}" for i in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["site,note,died", *rows]) + "\n")
    ran = unseen("data", "check", "t.csv")
    assert "site='site', label='died', text=['note'])" in ran.out.replace("\n", "")
    refused = unseen("data", "check", "table(path='t.csv', domain='site', label='died')")
    assert "by their words: text=['note']" in re.sub(r"\s+", " ", refused.out)
    ran = unseen("data", "check", "table(path='t.csv', domain='site', label='died', text='note')")
    assert ran.code == 0 and "7 to 7 words" in ran.out and "mean 7 at each" in ran.out


@pytest.fixture(scope="module")
def comments(real_data: Path) -> tuple[list[str], list[str], list[str]]:
    with gzip.open(real_data / YOUTUBE, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    sites, texts, labels = ([row[c] for row in rows] for c in ("site", "text", "label"))
    return sites, texts, labels


def test_comments_of_five_videos(
    comments: tuple[list[str], list[str], list[str]], real_data: Path
) -> None:
    sites, texts, _ = comments
    data = load("table", real_data, path=YOUTUBE, domain="site", label="label", text="text")
    assert len(data.domains) == 5 and sum(len(domain.y) for domain in data.domains) == 1956
    x = hashed(texts)
    for domain in data.domains:
        own = np.array([site == domain.name for site in sites])
        np.testing.assert_array_equal(domain.x.numpy(), x[own])


@pytest.mark.slow
def test_a_fit_by_sums_is_the_fit_on_the_pooled_comments(
    comments: tuple[list[str], list[str], list[str]], real_data: Path, tmp_path: Path
) -> None:
    """Newton's steps over 1,025 coefficients; a tenth of each site is held back by the study."""
    study = Study(
        dataset=f"table(path='{YOUTUBE}', domain='site', label='label', text='text')",
        methods=["glm"], targets=["-Psy"], seeds=[0], metrics=["accuracy"], rounds=1,
    )  # fmt: skip
    table = study.run(tmp_path, data_dir=real_data).table("accuracy", "last")
    data = load("table", real_data, path=YOUTUBE, domain="site", label="label", text="text")
    sites, texts, labels = map(np.array, comments)
    places = {name: np.flatnonzero(sites == name) for name in data.names}
    psy = places.pop("-Psy")
    trained = [own[split_rows(data[name], study, 0)[0]] for name, own in places.items()]
    rows = np.concatenate(trained)
    pooled = LogisticRegression(C=1.0, max_iter=1000).fit(hashed(list(texts[rows])), labels[rows])
    expected = pooled.score(hashed(list(texts[psy])), labels[psy])
    assert table.cells[0][0].values[0] == pytest.approx(expected, abs=1e-6)
