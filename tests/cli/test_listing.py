"""Lists are kept on disk until the package changes, and every trouble with the file is survived."""

import json
from pathlib import Path

import pytest

from unseen.cli import listing
from unseen.cli.catalogue import CATALOGUES
from unseen.errors import UnseenError


def test_the_kept_list_is_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path))
    assert tuple(CATALOGUES) == listing.LISTS
    first = listing.listed("models")
    monkeypatch.setitem(CATALOGUES, "models", lambda: (("changed",), []))
    assert listing.listed("models") == first
    monkeypatch.setattr(listing, "_fingerprint", lambda: "another")
    assert listing.listed("models") == (("changed",), [])
    kept = json.loads((tmp_path / "lists.json").read_text())
    assert list(kept) == ["another"] and list(kept["another"]) == ["models"]


@pytest.mark.parametrize("place", ["off", "a file"])
def test_without_a_place_it_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("UNSEEN_CACHE", "off" if place == "off" else str(tmp_path / "file"))
    assert listing.listed("models") == CATALOGUES["models"]()


def test_a_broken_file_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path))
    (tmp_path / "lists.json").write_text("{")
    assert listing.listed("models") == CATALOGUES["models"]()
    assert json.loads((tmp_path / "lists.json").read_text())


def test_an_unknown_list_is_named() -> None:
    with pytest.raises(UnseenError, match="did you mean 'models'"):
        listing.listed("model")
