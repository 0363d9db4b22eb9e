"""`unseen.choose`: the command as a function, of a data frame, a file or a study."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import unseen
from unseen.errors import UnseenError

ROOT = Path(__file__).parents[2]
OPTIONS = {
    "site": "site", "label": "died", "recipes": ["glm"], "groups": 3, "rates": [1.0],
    "no_alone": True, "no_pool": True, "settings": {"rounds": 1, "model": "mlp(widths=[2])"},
}  # fmt: skip


def visits() -> pd.DataFrame:
    columns = {
        "site": [*"abc"] * 20,
        "age": [40 + 7 * i % 31 for i in range(60)],
        "died": [i // 3 % 2 for i in range(60)],
    }
    return pd.DataFrame(columns)


def test_a_frame_and_its_file_have_the_same_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    visits().to_csv("visits.csv", index=False)
    lines = unseen.choose(visits(), "a", dry_run=True, **OPTIONS)  # type: ignore[arg-type]
    assert lines[0] == "trainings: 6, of which 6 are still to run"
    assert not Path("a").exists()
    framed = unseen.choose(visits(), "a", **OPTIONS)  # type: ignore[arg-type]
    filed = unseen.choose("visits.csv", **OPTIONS)  # type: ignore[arg-type]
    assert framed.figures == filed.figures and framed.recipe == filed.recipe
    assert {*framed.figures} >= {"fedavg", "glm"} and "deepall" not in framed.figures
    assert Path("a/choice.json").is_file() and Path("choices/visits/choice.md").is_file()


def test_an_option_that_it_does_not_have_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnseenError, match="'rate'; did you mean 'rates'"):
        unseen.choose("heart", rate=[1])  # type: ignore[call-overload]


@pytest.mark.parametrize("page", ["docs/python.md", "README.md"])
def test_every_name_on_the_page_resolves(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    names = {*re.findall(r"(?<![\w./])unseen(?:\.[A-Za-z_]\w*)+", text)}
    imported = {*re.findall(r"from (unseen[\w.]*) import", text)}
    assert names
    for name in names - imported:
        module, _, last = name.rpartition(".")
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            assert hasattr(importlib.import_module(module), last), name
    code = "import unseen; unseen.choose; assert callable(unseen.choose), unseen.choose"
    subprocess.run([sys.executable, "-c", code], check=True)
