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


def test_a_signature_says_whose_a_directory_is(
    of_rows: Trained, tmp_path: Path, unseen: Command
) -> None:
    pytest.importorskip("cryptography", reason="needs the extra flower")
    folder = tmp_path / "model"
    shutil.copytree(of_rows.folder, folder)
    key, other = tmp_path / "anna.key", tmp_path / "ben.key"
    assert unseen("sign", "--new-key", str(other)).code == 0
    assert unseen("sign", str(folder), "--new-key", str(key)).code == 0
    assert key.stat().st_mode & 0o777 == 0o600
    public = f"{key}.pub"
    assert directory.read(folder, key=public).spec == of_rows.spec
    assert "README.md" in unseen("verify", str(folder), "--key", public).out
    with pytest.raises(UnseenError, match="does not bear the signature"):
        directory.read(folder, key=f"{other}.pub")
    rewritten(of_rows, folder, spec="another")
    with pytest.raises(UnseenError, match=r"model.json of .* differ"):
        directory.read(folder, key=public)
    result = unseen("predict", str(folder), "rows.csv", "--key", public)
    assert result.code and "differ from what was signed" in (result.out + result.err)
    (folder / "signature.json").unlink()
    with pytest.raises(UnseenError, match="is not signed"):
        directory.read(folder, key=public)


def test_tables_are_signed_too(tmp_path: Path, unseen: Command) -> None:
    pytest.importorskip("cryptography", reason="needs the extra flower")
    table, key = tmp_path / "table.txt", tmp_path / "anna.key"
    table.write_text("fedavg 79.7\n")
    assert unseen("sign", str(table), "--new-key", str(key)).code == 0
    assert unseen("verify", str(table), "--key", f"{key}.pub").code == 0
    table.write_text("fedavg 97.7\n")
    result = unseen("verify", str(table), "--key", f"{key}.pub")
    assert result.code and "table.txt" in (result.out + result.err)
