"""Columns of text at sites: each reads its own, and there is nothing to agree on but how."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from support.hall import Hall, contents, kits

from unseen import Study
from unseen.errors import UnseenError
from unseen.sites.flower import server_run as federated
from unseen.sites.flower import site_messages
from unseen.sites.flower.terms import Facts, Terms

SITES = ("north", "south", "west")
WORDS = ("pain", "fever", "sleep", "walked", "home", "stable")


def rows(k: int, age: bool) -> list[str]:
    """Rows of site k; a column of one category that the others lack keeps their order apart."""
    return [
        f'{f"{40 + 7 * k + i}," * age}"{WORDS[(i + k) % 6]} {WORDS[i * i % 5]}",{(i + k) % 2}'
        for i in range(16 + k)
    ]


@pytest.mark.parametrize(("age", "methods"), [(True, '"fedavg", "glm"'), (False, '"glm"')])
def test_sites_with_notes_give_the_records_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age: bool, methods: str
) -> None:
    monkeypatch.setattr(site_messages, "POLL", 0.005)
    monkeypatch.setattr(site_messages, "LOOK", 0.01)
    header = f"{'age,' * age}note,died"
    whole = [f"site,{header}"]
    whole += [f"{site},{row}" for k, site in enumerate(SITES) for row in rows(k, age)]
    (tmp_path / "visits.csv").write_text("\n".join(whole) + "\n")
    study = tmp_path / "study.toml"
    options = "path='visits.csv', domain='site', label='died', text='note', text_features=16"
    study.write_text(
        f'dataset = "table({options})"\nmethods = [{methods}]\nrounds = 2\nseeds = 1\n'
        'on_bad_reply = "drop"\ntargets = ["west"]\n[training]\nbatch_size = 4\n'
    )
    Study.read(study).run(tmp_path / "one", data_dir=tmp_path)
    found = kits(tmp_path, dict.fromkeys(SITES, "train"), tmp_path)
    for k, kit in enumerate(found.values()):
        own = tmp_path / f"{kit.name}.csv"
        own.write_text("\n".join([header, *rows(k, age)]) + "\n")
        text = (kit / "join.toml").read_text().replace(f'data = "{tmp_path}"', f'data = "{own}"')
        (kit / "join.toml").write_text(text)
    hall = Hall(found)
    federated.run(str(study), str(tmp_path / "sites"), hall, list(SITES))
    assert contents(tmp_path / "one") == contents(tmp_path / "sites")
    asked = {question["kind"] for _, question in hall.sent}
    assert ("statistics" in asked) is age
    told = (tmp_path / "sites" / "terms.json").read_text()
    assert '"features": 16' in told and not any(word in told for word in WORDS)


def test_sites_that_hash_otherwise_do_not_fit() -> None:
    fields = {
        "site": "a", "role": "train", "data": "table", "classes": ("0", "1"), "columns": {},
        "categories": {}, "levels": {}, "shape": (16,), "digest": "",
        "texts": {"note": {"features": 16, "pairs": False}},
    }  # fmt: skip
    one = Facts.read(fields)
    other = Facts.read({**fields, "site": "b", "texts": {"note": {"features": 16, "pairs": True}}})
    with pytest.raises(UnseenError, match="do not fit together: texts .*pairs=False"):
        Terms.agree([one, other])
    schema = Terms.agree([one]).schema
    assert schema is not None and schema.columns == () and schema.width == 16
