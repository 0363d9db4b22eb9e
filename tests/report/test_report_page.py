"""The page and its files, without a browser."""

from __future__ import annotations

import csv
import io
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image
from support.finished_studies import write_study

from unseen.report import theme
from unseen.report.axes import Scale, spread
from unseen.report.draw import panel
from unseen.report.figures import Dots, Line, Lines, Points, Row, Surface
from unseen.report.page import LIMIT, TOLERANCES, spoken
from unseen.report.read import Choice
from unseen.report.scene import Path as Mark
from unseen.report.scene import thinned
from unseen.report.write import report

PAPER = {"accuracy": {"fedavg": {"d0": ["50.0", "0.2"], "average": "51.0"}, "Old": {"d0": "40.0"}}}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("study")
    write_study(out, settings={"published": PAPER})
    return report([out], out / "report").parent


@pytest.fixture(scope="module")
def text(made: Path) -> str:
    return (made / "report.html").read_text()


class Tags(HTMLParser):
    """Every start tag with its attributes; unclosed ones are an error."""

    void = ("meta", "link", "input", "br", "path", "circle", "rect")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.stack: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "input", "br"):
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag, (tag, self.getpos())


def test_the_page_is_sound_html_of_its_own(text: str) -> None:
    tags = Tags(text)
    assert not tags.stack
    assert not re.findall(r'(?:src|href)="(?!#|data:)', text)
    assert "http" not in re.sub(r'xmlns="[^"]*"', "", text).replace("https://doi", "")
    ids = [a["id"] for _, a in tags.found if "id" in a]
    assert len(ids) == len(set(ids))
    links = [str(a["href"])[1:] for tag, a in tags.found if tag == "a"]
    assert links and set(links) <= set(map(str, ids))


def test_every_figure_is_told_in_words(text: str) -> None:
    drawings = [a for tag, a in Tags(text).found if tag == "svg"]
    assert len(drawings) > 10
    assert all(a.get("aria-hidden") or len(str(a["aria-label"])) > 15 for a in drawings)
    assert "accuracy percent by round; target 8.38 to 50" in text


def test_the_table_has_marks_and_the_paper_beside(text: str) -> None:
    assert "Made &lt;up&gt; &amp; told" in text and "<up>" not in text
    assert re.search(r'class="best"><span class="v">53\.[01]', text)
    assert "paper 50.0 ± 0.2" in text and "Old (published)" in text
    assert "selection: source-validation by accuracy" in text
    assert "@inproceedings{zhang2023ga" in text and "mcmahan" in text
    assert "abc1234" in text and "0123456789abcdef" in text


def test_tables_in_all_formats(made: Path) -> None:
    names = {str(p.relative_to(made)) for p in made.rglob("*") if p.is_file()}
    assert {"report.html", "report.md", "report.tex", "citations.bib", "tables/runs.csv"} <= names
    rows = list(csv.reader(io.StringIO((made / "tables/runs.csv").read_text())))
    assert rows[0] == ["method", "task", "seed", "round", "accuracy", "loss"] and len(rows) == 13
    assert (
        "| **53.1 ± 0.1** |" in (made / "report.md").read_text()
        or "**" in (made / "report.md").read_text()
    )
    assert (made / "report.tex").read_text().count(r"\begin{table}") == 2
    assert "zhang2023ga" in (made / "citations.bib").read_text()


def test_each_figure_is_svg_png_and_csv(made: Path) -> None:
    files = list((made / "figures").iterdir())
    stems = {
        p.with_suffix("").name if p.suffix in (".svg", ".png", ".csv") else p.name for p in files
    }
    assert len(files) == 3 * len(stems)
    for path in files:
        if path.suffix == ".svg":
            root = ElementTree.fromstring(path.read_text())
            assert root.tag.endswith("svg") and root.get("aria-label")
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert image.width >= 600 and len(image.convert("L").getcolors() or []) > 2


def test_the_same_records_give_the_same_files(made: Path, tmp_path: Path) -> None:
    again = report([made.parent], tmp_path / "again").parent
    for path in made.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (again / path.relative_to(made)).read_bytes(), path.name


def test_two_protocols_on_one_page(tmp_path: Path) -> None:
    write_study(tmp_path / "a")
    write_study(tmp_path / "b", rounds=4, methods=("fedavg", "ppdg"))
    page = report([tmp_path / "a", tmp_path / "b", tmp_path / "c"], tmp_path / "out", files=False)
    text = page.read_text()
    Tags(text)
    assert "2 protocols" in text and "They differ in rounds." in text
    assert "Left out: 1" in text and "is not a folder" in text
    assert {p.name for p in (page.parent / "tables").iterdir()} >= {"1-runs.csv", "2-runs.csv"}


@pytest.mark.parametrize("rounds", [8, pytest.param(40, marks=pytest.mark.slow)])
def test_five_hundred_runs_stay_below_three_megabytes(tmp_path: Path, rounds: int) -> None:
    methods = tuple(f"fedprox(mu={i / 100})" for i in range(1, 15))
    methods += tuple(f"fedavg+ga(step={i / 100})" for i in range(1, 15))
    domains = tuple(f"d{i}" for i in range(6))
    write_study(
        tmp_path, methods=methods, tasks=domains, seeds=3, rounds=rounds, domains=domains,
        settings={"reference": None},
    )  # fmt: skip
    page = report([tmp_path], tmp_path / "report", Choice(), files=False)
    assert len(methods) * 6 * 3 == 504
    assert page.stat().st_size < LIMIT < 3_000_000


def test_colours_can_be_told_from_their_background() -> None:
    for scheme in (0, 1):
        paper, raised = (theme.COLOURS[name][scheme] for name in ("paper", "raised"))
        for name in ("ink", "soft", "link"):
            for ground in (paper, raised, theme.COLOURS["warn"][scheme]):
                assert theme.contrast(theme.COLOURS[name][scheme], ground) >= 4.5, (name, scheme)
        for i in range(theme.SERIES):
            assert theme.contrast(theme.COLOURS[f"s{i}"][scheme], paper) >= 3, (i, scheme)


def test_thinning_keeps_within_the_tolerance() -> None:
    points = [(float(i), 50 * (1 + (i * 37 % 11) / 500) ** (i / 40)) for i in range(200)]
    kept = thinned(points, 0.5)
    assert len(kept) < len(points) and {points[0], points[-1]} <= set(kept)
    for x, y in points:
        (x0, y0), (x1, y1) = next((a, b) for a, b in pairwise(kept) if a[0] <= x <= b[0])
        assert abs(y0 + (y1 - y0) * (x - x0) / (x1 - x0) - y) <= 0.5
    assert thinned([]) == () and TOLERANCES[0] <= 0.5


def test_scales_and_limits() -> None:
    assert Scale(0, 10, 100, 0)(2.5) == 75
    assert Scale(0, 10, 0, 100)(99) == 100
    assert Scale(0.01, 1, 0, 100, log=True)(0.1) == pytest.approx(50)
    assert Scale(0.01, 1, 0, 100, log=True).ticks() == [0.01, 0.1, 1.0]
    assert spread([*range(100), 10_000])[1] < 200
    assert spread([]) == (0.0, 1.0) and spread([3.0]) == pytest.approx((2.82, 3.18))


def test_every_kind_of_panel_draws_and_speaks() -> None:
    panels = [
        Lines("a", "round", "loss", (Line("x", (0.0,), (1.0,)), Line("y", (0.0, 2.0), (1.0, 0.0)))),
        Dots("b", "rank", (Row("x", 1.0, text="1"), Row("y", 2.0, 1.5, 2.5, "2")), ((0, 1),)),
        Points("c", (0.0, 1.0), (1.0, 0.0), ("p", "q")),
        Surface("d", (0.0, 1.0), (0.0, 1.0), ((0.0, 1.0), (2.0, 3.0)), (("global", 0.5, 0.5),)),
    ]
    for one in panels:
        scene = panel(one)
        ElementTree.fromstring(scene.to_file(spoken(one)))
        xs = [x for m in scene.marks if isinstance(m, Mark) for x, _ in m.points]
        assert not xs or (min(xs) >= 0 and max(xs) <= scene.width)
