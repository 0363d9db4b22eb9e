"""The citations of a report: this package, the methods that ran, and no placeholder."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
from support.command_line import Command

from unseen import Study
from unseen.cli.skeletons import write
from unseen.core import Reference
from unseen.studies.report.citations import bibtex, own_entry

#: What `unseen new method` of version 0.1 wrote.
PLACEHOLDER = """@misc{tilted,
  author = {Author},
  title  = {Title},
  year   = {2026}
}"""


@pytest.mark.parametrize(
    "entry",
    [
        PLACEHOLDER,
        "@misc{a, author={Bach, J. S.}, title={{Title}}}",
        '@misc{a, author = "Authors", title = {Fugues}}',
        "@misc{a, AUTHOR = {Name}, title = {Fugues}}",
    ],
)
def test_a_placeholder_is_left_out_and_its_method_named(entry: str) -> None:
    good = Reference("Bach.", "@misc{bach, author = {Bach, J. S.}, title = {The Title Page}}")
    with pytest.warns(UserWarning, match=r"leave out mine:tilted\(power=2\): .* placeholder"):
        found = bibtex([("mine:tilted(power=2)", Reference("", entry)), ("fugue", good)])
    assert found == f"{own_entry()}\n\n{good.bibtex}"


def test_entries_stand_once_and_an_empty_one_not_at_all() -> None:
    one = Reference("A.", "@misc{a, title = {Authors and their titles}}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = bibtex([("a", one), ("b", Reference("Not published.", "")), ("c", one)])
    assert found == f"{own_entry()}\n\n{one.bibtex}"


def test_a_report_cites_unseen_and_says_what_it_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unseen: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    write("method", "tilted", tmp_path)
    file = tmp_path / "tilted.py"
    empty = 'Reference("Not published.", "")'
    assert empty in file.read_text()
    file.write_text(file.read_text().replace(empty, f'Reference("Author.", """{PLACEHOLDER}""")'))
    study = Study(methods=["fedprox", "tilted:tilted"], targets=["0"], seeds=1, rounds=1)
    study.run(tmp_path / "out")
    ran = unseen("report", tmp_path / "out", "--page-only")
    assert ran.code == 0 and "warning: the citations leave out tilted:tilted" in ran.err
    cited = (tmp_path / "out" / "report" / "citations.bib").read_text()
    assert re.findall(r"^@\w+\{(\w+),", cited, re.MULTILINE) == ["unseen", "li2020fedprox"]
    assert own_entry() in (tmp_path / "out" / "report" / "report.html").read_text()
