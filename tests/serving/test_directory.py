"""The model's directory: read as it was written, and refused when it was damaged."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save

from unseen.errors import UnseenError
from unseen.serving import directory
from unseen.serving.directory import SPEC, TENSORS, Trained


@pytest.fixture
def copied(of_rows: Trained, tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    folder.mkdir()
    for name in (SPEC, TENSORS):
        shutil.copy(of_rows.folder / name, folder)
    return folder


def test_two_files_are_the_model_and_nothing_is_unpickled(
    copied: Path, of_rows: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("unpickled")

    monkeypatch.setattr(torch, "load", never)
    monkeypatch.setattr(pickle, "load", never)
    monkeypatch.setattr(pickle, "loads", never)
    monkeypatch.setattr(pickle, "Unpickler", never)
    found = directory.read(copied)
    x = torch.randn(5, *found.inputs.shape)
    assert torch.equal(found.outputs(x), of_rows.outputs(x))
    assert found.spec == of_rows.spec and found.inputs.to_json() == of_rows.spec["input"]


def test_written_again_it_is_the_same_bytes(copied: Path) -> None:
    before = {name: (copied / name).read_bytes() for name in (SPEC, TENSORS)}
    spec = {
        k: v for k, v in json.loads(before[SPEC]).items() if k not in ("tensors", "fingerprint")
    }
    directory.write(copied, spec, before[TENSORS])
    assert {name: (copied / name).read_bytes() for name in before} == before


def no_tensors(folder: Path) -> None:
    (folder / TENSORS).unlink()


def cut_tensors(folder: Path) -> None:
    (folder / TENSORS).write_bytes((folder / TENSORS).read_bytes()[:-4])


def other_tensors(folder: Path) -> None:
    tensors = load_file(folder / TENSORS)
    (folder / TENSORS).write_bytes(save({n: t + 1 for n, t in tensors.items()}))


def resigned(folder: Path, tensors: bytes, **changed: Any) -> None:
    """As somebody would who writes a directory by hand."""
    spec = json.loads((folder / SPEC).read_bytes()) | changed
    spec = {k: v for k, v in spec.items() if k not in ("tensors", "fingerprint")}
    directory.write(folder, spec, tensors)


def wrong_shape(folder: Path) -> None:
    tensors = load_file(folder / TENSORS)
    name = next(n for n, t in tensors.items() if t.ndim == 2)
    resigned(folder, save(tensors | {name: tensors[name][:, :-1].contiguous()}))


def lacking(folder: Path) -> None:
    tensors = load_file(folder / TENSORS)
    tensors.pop(next(iter(tensors)))
    resigned(folder, save(tensors))


def no_safetensors(folder: Path) -> None:
    resigned(folder, pickle.dumps({"a": 1}))


def other_model(folder: Path) -> None:
    resigned(folder, (folder / TENSORS).read_bytes(), model="mlp(widths=[5])")


def unknown_model(folder: Path) -> None:
    resigned(folder, (folder / TENSORS).read_bytes(), model="mlpp")


def no_spec(folder: Path) -> None:
    (folder / SPEC).unlink()


def half_a_spec(folder: Path) -> None:
    (folder / SPEC).write_text((folder / SPEC).read_text()[:200])


def edited_spec(folder: Path) -> None:
    (folder / SPEC).write_text((folder / SPEC).read_text().replace('"yes"', '"maybe"'))


def later_format(folder: Path) -> None:
    (folder / SPEC).write_text((folder / SPEC).read_text().replace('"format": 1', '"format": 9'))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (no_tensors, "cannot be read from"),
        (cut_tensors, "is not the file that model.json describes"),
        (other_tensors, "is not the file that model.json describes"),
        (wrong_shape, "does not fit the model .* was expected"),
        (lacking, "is missing"),
        (no_safetensors, "is not a safetensors file"),
        (other_model, "does not fit the model"),
        (unknown_model, "did you mean 'mlp'"),
        (no_spec, "is not a model's directory"),
        (half_a_spec, "is damaged"),
        (edited_spec, "was changed after it was written"),
        (later_format, "is of format 9"),
    ],
)
def test_a_damaged_directory_is_refused(
    copied: Path, damage: Callable[[Path], None], words: str
) -> None:
    damage(copied)
    with pytest.raises(UnseenError, match=words):
        directory.read(copied)
