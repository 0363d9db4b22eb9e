"""What a folder's records belong to: the settings, and the code of the user's own parts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Command

from unseen import Study, UnseenError
from unseen.studies.report.study_report import read_folder
from unseen.studies.settings.user_code import code_of, digest

OWN = """
import {helper}

from unseen.methods.combine import Mean
from unseen.core.exchange import Reference
from unseen.methods.base import federated


def mine(training, *, weights="examples"):
    return federated("mine", training, Mean(weights), Reference("Own.", "@misc{{own}}"))


def add_nothing(method):
    {helper}.look(method)
    return method
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module with a method and a modifier, which imports another of its folder."""
    name = f"own_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(OWN.format(helper=f"{name}_helper"))
    (tmp_path / f"{name}_helper.py").write_text("def look(method):\n    return None\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield name
    for module in [m for m in sys.modules if m.startswith(name)]:
        del sys.modules[module]


def small(*methods: str, **settings: Any) -> Study:
    found: dict[str, Any] = {"methods": methods, "targets": ["0"], "seeds": 1, "rounds": 1}
    return Study(**found | settings)


def about(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "study.json").read_text())
    return found


def edit(file: str) -> None:
    path = Path(f"{file}.py")
    path.write_text(path.read_text() + "\n# changed\n")


# --- code ----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["", "_helper"])
def test_records_of_edited_code_are_not_shown_as_todays(
    own: str, tmp_path: Path, where: str, unseen: Command
) -> None:
    out, study = tmp_path / "out", small("fedavg", f"{own}:mine")
    study.run(out)
    assert about(out)["code"] == {f"{own}:mine": {f"{own}:mine": digest(f"{own}:mine")}}
    before = (out / "study.json").read_bytes()
    study.run(out)  # unchanged: nothing to refuse
    edit(own + where)
    with pytest.raises(UnseenError) as caught:
        study.run(out)
    assert str(caught.value).startswith(
        f"the code of {own}:mine has changed since these records were written. Take another "
        f"--out, or remove the records ({out / 'records'}/{own}"
    )
    assert (out / "study.json").read_bytes() == before
    small("fedavg").run(out)  # the others go on, and what is known of the rest stays known
    with pytest.raises(UnseenError, match="has changed"):
        study.run(out)
    typed = ["rotated-digits.toml", "--out", str(out)]
    Path(typed[0]).write_text(f'methods = ["{own}:mine"]\ntargets = ["0"]\nseeds = 1\nrounds = 1\n')
    shown = unseen("table", *typed)
    assert shown.code == 0 and "mine" in shown.out and "has changed" in shown.err
    assert unseen("study", *typed, "--dry-run").code == 2
    for place in (out / "records").glob(f"{own}*"):
        for file in sorted(place.rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()
    study.run(out)
    assert about(out)["code"][f"{own}:mine"] == {f"{own}:mine": digest(f"{own}:mine")}


def test_a_method_that_joins_the_folder_later_has_code_of_its_own(own: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    small(f"fedavg+{own}:add_nothing").run(out)
    edit(own)
    small(f"fedprox+{own}:add_nothing").run(out)  # no records of it were written by other code
    with pytest.raises(UnseenError, match="add_nothing has changed"):
        small(f"fedavg+{own}:add_nothing", f"fedprox+{own}:add_nothing").run(out)


MODEL = """
from torch import nn

def net(shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))
"""
DATA = """
from unseen.data import load as plain

def sites(data_dir):
    return plain("rotated-digits")
"""


@pytest.mark.parametrize(
    ("text", "setting", "part"),
    [(MODEL, "model", "net"), (DATA, "dataset", "sites")],
)
def test_models_and_loaders_too(
    own: str, tmp_path: Path, text: str, setting: str, part: str
) -> None:
    Path(f"{own}_{setting}.py").write_text(text)
    settings = {"model": "logistic"} | {setting: f"{own}_{setting}:{part}"}
    study = small("fedavg", **settings)
    study.run(tmp_path / "out")
    assert list(about(tmp_path / "out")["code"]) == [setting]
    edit(f"{own}_{setting}")
    with pytest.raises(UnseenError, match=f"code of {own}_{setting}:{part} has changed"):
        study.run(tmp_path / "out")


def test_studies_without_own_parts_say_nothing_of_code(tmp_path: Path) -> None:
    small("fedavg").run(tmp_path)
    keys = ["identity", "study", "not_applicable", "tasks"]
    assert list(about(tmp_path)) == keys
    assert code_of(["fedavg+ga"], model="mlp", dataset="digits") == {}
    assert code_of(["unseen.methods:fedavg", "random:Random"]) == {}


def test_a_package_counts_with_what_it_imports_of_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "own_package_here"
    package.mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    texts = {"__init__": "", "rules": "from . import deep\nfrom .near import x\n\ndef f(): ...\n",
             "near": "x = 1\n", "deep": "import own_package_here.deeper\n", "deeper": "y = 1\n",
             "apart": "z = 1\n"}  # fmt: skip
    for name, text in texts.items():
        (package / f"{name}.py").write_text(text)
    (tmp_path / "numpy_like.py").write_text("w = 1\n")
    found = {"": digest("own_package_here.rules:f")}
    for name in texts:
        (package / f"{name}.py").write_text(texts[name] + "# more\n")
        found[name] = digest("own_package_here.rules:f")
    kept = [name for name, last in zip(texts, found, strict=False) if found[name] == found[last]]
    assert kept == ["apart"]


NOTEBOOK = """
import sys
from unseen.studies.settings.user_code import digest

def helper(x):
    return x + {number}

def other(x):
    return x - {apart}

def load(data_dir):
    return [helper(i) for i in range(3)]

class Net:
    def forward(self, x):
        return helper(x)

print(digest("__main__:load"), digest("__main__:Net"))
"""


@pytest.mark.parametrize("way", ["script", "prompt"])
def test_a_part_of_main_counts_with_what_it_names(tmp_path: Path, way: str) -> None:
    def run(**numbers: int) -> str:
        text = NOTEBOOK.format(**numbers)
        (tmp_path / "script.py").write_text(text)
        # What is typed at the prompt has no source; neither has what comes through a pipe.
        how = {"script": [str(tmp_path / "script.py")], "prompt": ["-c", text]}[way]
        found = subprocess.run([sys.executable, *how], capture_output=True, text=True, check=True)
        return found.stdout

    first = run(number=1, apart=1)
    assert run(number=1, apart=2) == first
    other = run(number=2, apart=1)
    assert len({*first.split(), *other.split()}) == 4


# --- settings ------------------------------------------------------------------------------


def stopped(study: Study, out: Path, checkpoint: bool) -> None:
    """What a run leaves that ended before its first job did."""
    study.run(out)
    for file in out.rglob("done.json"):
        file.unlink()
        if checkpoint:
            (file.parent / "checkpoint.pt").write_bytes(b"some rounds")


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_run_without_a_finished_job_does_not_bind_its_folder(
    tmp_path: Path, checkpoint: bool, recwarn: pytest.WarningsRecorder
) -> None:
    out = tmp_path / "out"
    stopped(small("fedavg"), out, checkpoint)
    other = small("fedavg", rounds=2)
    other.run(out)
    assert about(out)["identity"]["settings"]["rounds"] == 2
    lines = next(out.glob("records/*/*/*/rounds.jsonl")).read_text().splitlines()
    assert len(lines) == 2  # none of the other settings
    aside = out / "unfinished-1"
    assert aside.exists() == checkpoint
    if checkpoint:
        assert any(f"--out {aside} resumes" in str(one.message) for one in recwarn)
        small("fedavg").run(aside)  # its own settings, in its own folder
    with pytest.raises(UnseenError, match=r"holds another study: settings\.rounds was 2 and is 1"):
        small("fedavg").run(out)


def test_a_table_of_nothing_says_that_no_job_is_finished(tmp_path: Path, unseen: Command) -> None:
    ran = unseen("table", "digits", "--seeds", "1", "--out", str(tmp_path))
    assert "no job is finished yet; cpu, 1 thread" in " ".join(ran.out.split())


def test_a_typo_is_reported_before_another_study(tmp_path: Path) -> None:
    small("fedavg").run(tmp_path)
    for wrong, words in (
        ({"model": "bn_cnnn"}, "did you mean 'bn-cnn'"),
        ({"selection": "lst"}, "did you mean 'last'"),
        ({"metric": "acuracy"}, "did you mean 'accuracy'"),
        ({"training": {"optimiser": "sgdd"}}, "did you mean 'sgd'"),
    ):
        with pytest.raises(UnseenError, match=words):
            small("fedavg", **{"rounds": 3} | wrong).run(tmp_path)


def test_a_report_says_that_the_code_of_its_records_has_changed(own: str, tmp_path: Path) -> None:
    small(f"{own}:mine", "fedavg").run(tmp_path / "out")
    said = f"the code of {own}:mine has changed since these records were written"
    assert not any(said in note for note in read_folder(tmp_path / "out").notes)
    edit(own)
    for module in [m for m in sys.modules if m.startswith(own)]:
        del sys.modules[module]
    assert any(said in note for note in read_folder(tmp_path / "out").notes)
