"""The bar in a notebook: one output, few drawings, no control characters, one line at the end."""

from __future__ import annotations

import sys
import threading
from types import ModuleType
from typing import Any

import pytest

from unseen.studies.tracking import progress_bar as module
from unseen.studies.tracking.progress_bar import progress_bar

CELL = """
import unseen
study = unseen.Study(
    dataset="rotated-digits", methods=["fedavg", "fedprox(mu=0.1)"], targets=["0"], seeds=2,
    rounds=1,
)
results = study.run(progress=True)
"""


class Handle:
    """What a notebook's `display` returns; every drawing is kept."""

    def __init__(self, first: str) -> None:
        self.drawn = [first]

    def update(self, bundle: dict[str, str], raw: bool) -> None:
        assert raw
        self.drawn.append(bundle["text/plain"])


@pytest.fixture
def handles(monkeypatch: pytest.MonkeyPatch) -> list[Handle]:
    shown: list[Handle] = []

    def display(bundle: dict[str, str], **options: Any) -> Handle:
        assert options == {"raw": True, "display_id": True}
        shown.append(Handle(bundle["text/plain"]))
        return shown[-1]

    library = ModuleType("IPython.display")
    library.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", library)
    monkeypatch.setattr(
        module, "Console", lambda: type("C", (), {"is_jupyter": True, "is_terminal": False})()
    )
    return shown


def test_a_notebook_has_one_output_that_ends_as_one_line(handles: list[Handle]) -> None:
    with progress_bar(1000, 0, "rounds", True) as show:
        for done in range(1, 1001):
            show(done, "fedavg")
    (handle,) = handles
    assert handle.drawn[0].startswith("░") and " 0/1000 rounds" in handle.drawn[0]
    assert len(handle.drawn) < 10  # not one for each round
    assert handle.drawn[-1] == "1000 of 1000 rounds in 0:00"
    assert all(line.isprintable() for line in handle.drawn)


def test_the_time_left_counts_what_was_done_here(
    handles: list[Handle], monkeypatch: pytest.MonkeyPatch
) -> None:
    # At the start (of the output, and of the work), after two of ten jobs more, at the end.
    clock = iter([0.0, 0.0, 30.0, 40.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    with progress_bar(10, 4, "jobs", True) as show:
        show(6, "ppdg")
    assert handles[0].drawn[1:] == [
        "█" * 24 + "░" * 16 + " 6/10 jobs · 0:30, left: 1:00 · ppdg",  # 15 seconds a job, 4 left
        "6 of 10 jobs in 0:40",
    ]


def test_without_a_bar_nothing_is_shown(handles: list[Handle]) -> None:
    with progress_bar(3, 0, "jobs", False) as show:
        show(1, "fedavg")
    assert handles == []


def test_a_file_gets_a_line_now_and_then_and_no_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with progress_bar(4, 0, "jobs", True) as show:
        show(2, "fedavg")
    assert capsys.readouterr() == ("", "")  # it took less than half a minute
    monkeypatch.setattr(module, "LINE", 0.02)
    before = threading.active_count()
    written = ""
    with progress_bar(4, 0, "jobs", True) as show:
        show(2, "fedavg", left=61.0)
        while "fedavg" not in written:
            written += capsys.readouterr().err
    assert "2/4 jobs · 0:00, left: 1:01 · fedavg" in written.splitlines()
    assert threading.active_count() == before


def test_a_total_that_changes_changes_the_time_left(handles: list[Handle]) -> None:
    with progress_bar(10, 0, "jobs", True) as show:
        show(2, "fedavg", total=4)
    assert handles[0].drawn[-1] == "2 of 4 jobs in 0:00"


def test_a_kernel_shows_one_output() -> None:
    nbformat = pytest.importorskip("nbformat", reason="needs nbclient and ipykernel")
    client = pytest.importorskip("nbclient", reason="needs nbclient and ipykernel")
    pytest.importorskip("ipykernel", reason="needs nbclient and ipykernel")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    client.NotebookClient(book, timeout=200, kernel_name="python3").execute()
    (output,) = book.cells[0].outputs
    assert output.data["text/plain"].startswith("4 of 4 jobs in 0:")
