"""Directories from elsewhere: no code of theirs runs unasked; signatures say whose they are."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from support.command_line import Command

from unseen.errors import UnseenError
from unseen.serving import directory
from unseen.serving.directory import SPEC, TENSORS, Trained


def rewritten(trained: Trained, folder: Path, **changed: object) -> Path:
    """A directory whose fingerprint is right and whose description is somebody else's."""
    spec = json.loads((trained.folder / SPEC).read_bytes()) | changed
    folder.mkdir(exist_ok=True)
    (folder / SPEC).write_text(json.dumps(spec | {"fingerprint": directory.fingerprint(spec)}))
    shutil.copy(trained.folder / TENSORS, folder)
    return folder


@pytest.mark.parametrize("place", ["model", "method"])
def test_a_directory_runs_no_code_unless_it_may(
    of_rows: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(f"evil_{place}.py").write_text("open('pwned', 'w').close()\n\ndef part(*a, **k): ...\n")
    folder = rewritten(of_rows, tmp_path / "evil", **{place: f"evil_{place}:part"})
    with pytest.raises(
        UnseenError, match=rf"evil_{place}:part .*evil_{place}.py, SHA-256 [0-9a-f]{{16}}"
    ):
        directory.read(folder)
    assert not Path("pwned").exists()
    with pytest.raises(UnseenError, match=r"must make|made|method|part"):
        directory.read(folder, allow_code=True)
    assert Path("pwned").exists()


def test_a_command_of_the_system_is_not_called(
    of_rows: Trained, tmp_path: Path, unseen: Command
) -> None:
    model = f"os:system(command='touch {tmp_path}/pwned')"
    folder = rewritten(of_rows, tmp_path / "evil", model=model)
    result = unseen("predict", str(folder), str(tmp_path / "rows.csv"))
    assert (
        result.code
        and "os:system" in (result.out + result.err)
        and "--allow-code" in (result.out + result.err)
    )
    assert not (tmp_path / "pwned").exists()


def test_a_wrong_description_is_refused_in_words(of_rows: Trained, tmp_path: Path) -> None:
    spec, refused = json.loads((of_rows.folder / SPEC).read_bytes()), Counter[str]()
    values = (None, 3, "word", [], {}, {"shape": "x"}, [[]])
    for name in sorted(set(spec) - {"format", "tensors", "fingerprint"}):
        for value in values:
            folder = rewritten(of_rows, tmp_path / "wrong", **{name: value})
            try:
                directory.read(folder)
            except UnseenError:
                refused[name] += 1
    needed = {"input", "method", "model", "outputs", "sites", "study"}
    assert {name for name, count in refused.items() if count == len(values)} == needed
