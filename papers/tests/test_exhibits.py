"""tools/exhibits.py: which cells count, by which run, and that coverage.md is what it writes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from unseen.errors import UnseenError

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "papers" / "tools"
RESULTS = ROOT / "docs" / "results"


def load() -> ModuleType:
    sys.path.insert(0, str(TOOLS))  # for the modules next to it
    spec = importlib.util.spec_from_file_location("exhibits", TOOLS / "exhibits.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["exhibits"] = module
    spec.loader.exec_module(module)
    return module


exhibits = load()
TABLE4 = {"exhibits": ("ppdg/table4",), "folder": "ppdg-table4", "what": "", "why": ""}


@pytest.fixture
def reader(tmp_path: Path):  # type: ignore[no-untyped-def]
    return exhibits.Reader(exhibits.Archive(RESULTS, tmp_path))


def test_the_committed_page_is_what_the_records_say() -> None:
    assert exhibits.main(["--check"]) == 0


def test_a_cell_counts_once_and_by_the_strongest_kind(reader) -> None:  # type: ignore[no-untyped-def]
    """Two rows of ours are FedAvg's; the same records named again add nothing."""
    real = exhibits.Ran(kind="real", **TABLE4)
    weaker = exhibits.Ran(kind="other-network", **TABLE4)
    found = exhibits.places(reader, [weaker, real])["ppdg/table4"]
    assert {kind: len(cells) for kind, cells in found.items()} == {"real": 56, "other-network": 0}


def test_other_data_count_for_no_cell(reader) -> None:  # type: ignore[no-untyped-def]
    assert exhibits.places(reader, [exhibits.Ran(kind="substitute", **TABLE4)]) == {}


def test_an_average_is_of_tasks_and_seeds_that_are_all_there(reader) -> None:  # type: ignore[no-untyped-def]
    row = reader.figures(exhibits.Ran(kind="real", **TABLE4), "accuracy")["ppdg(lam=0.001)"]
    tasks = [values for task, values in row.items() if task != "average"]
    assert len(tasks) == 6
    assert row["average"][2] == pytest.approx(sum(values[2] for values in tasks) / 6)


def test_tests_are_those_of_the_committed_table(reader) -> None:  # type: ignore[no-untyped-def]
    ran = exhibits.Ran(kind="real", reference="ppdg(lam=0.001)", **TABLE4)
    (line,) = reader.lines(ran, "ppdg/table7/rotated-mnist")
    text = (RESULTS / "ppdg-table7" / "table.md").read_text("utf-8")
    for label, figure in zip(line.columns, line.ours, strict=True):
        method = {"AggRand": "agrrand", "ArgSum": "agrsum"}.get(label, label.lower())
        (row,) = [x for x in text.splitlines() if x.startswith((f"| {method} |", f"| {method}("))]
        assert row.split("|")[-2].strip() == figure


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('exhibits = ["ppdg/table9"]\nkind = "real"', "no paper has"),
        ('exhibits = []\nkind = "x"', "kind"),
    ],
)
def test_an_entry_that_means_nothing_is_refused(tmp_path: Path, line: str, says: str) -> None:
    rest = '\nfolder = "f"\nwhat = ""\nwhy = ""\n'
    (tmp_path / "coverage.toml").write_text(f"[[ran]]\n{line}{rest}", "utf-8")
    with pytest.raises(UnseenError, match=says):
        exhibits.read(tmp_path / "coverage.toml")


def test_every_exhibit_is_on_the_page() -> None:
    text = (RESULTS / "coverage.md").read_text("utf-8")
    for name in exhibits.published.contents():
        assert f"| {exhibits._title(name)} |" in text
