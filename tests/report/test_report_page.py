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

from unseen.studies.report import plot, theme
from unseen.studies.report.figures import (
    INK,
    Dots,
    Figure,
    Line,
    Lines,
    Matrix,
    Panel,
    Row,
    on_one_scale,
    spread,
)
from unseen.studies.report.read import Choice
from unseen.studies.report.write import LIMIT, report

PAPER = {"accuracy": {"fedavg": {"d0": ["50.0", "0.2"], "average": "51.0"}, "Old": {"d0": "40.0"}}}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("study")
    write_study(out, settings={"published": PAPER})
    return report(out, out / "report").parent


@pytest.fixture(scope="module")
def text(made: Path) -> str:
    return (made / "report.html").read_text()


class Tags(HTMLParser):
    """Every start tag with its attributes; unclosed ones are an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.stack: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "input", "br", "wbr"):
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag, (tag, self.getpos())


def test_the_page_is_sound_html_of_its_own(text: str) -> None:
    tags = Tags(text)
    assert not tags.stack
    assert not re.findall(r'(?:src|href)="(?!#|data:)', text)
    named = text.replace("https://doi", "").replace("https://git.example.org/unseen/unseen", "")
    assert "http" not in re.sub(r'xmlns="[^"]*"', "", named)
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
            size = f"0 0 {root.get('width')} {root.get('height')}"
            assert root.get("viewBox") == size and "var(" not in path.read_text()
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert image.width >= 600 and len(image.convert("L").getcolors() or []) > 2


def test_the_same_records_give_the_same_files(made: Path, tmp_path: Path) -> None:
    again = report(made.parent, tmp_path / "again").parent
    for path in made.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (again / path.relative_to(made)).read_bytes(), path.name


def test_the_title_names_the_file_and_its_columns(tmp_path: Path) -> None:
    expression = "table(path='visits.csv', domain='hospital', label='died')"
    write_study(tmp_path, settings={"dataset": expression})
    text = report(tmp_path, tmp_path / "report", files=False).read_text()
    line = "visits.csv, label column died, domain column hospital"
    assert f"told: {line}</title>" in text and f'<p class="data">{line}</p>' in text
    assert f'Results <span class="soft">on {line}</span></h2>' in text


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [3, 40])
def test_five_hundred_runs_stay_below_three_megabytes(tmp_path: Path, rounds: int) -> None:
    methods = tuple(f"fedprox(mu={i / 100})" for i in range(1, 15))
    methods += tuple(f"fedavg+ga(step={i / 100})" for i in range(1, 15))
    domains = tuple(f"d{i}" for i in range(6))
    write_study(
        tmp_path, methods=methods, tasks=domains, seeds=3, rounds=rounds, domains=domains,
        settings={"reference": None},
    )  # fmt: skip
    page = report(tmp_path, tmp_path / "report", Choice(), files=False)
    assert len(methods) * 6 * 3 == 504
    assert page.stat().st_size < LIMIT < 3_000_000


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a: str, b: str) -> float:
    """The contrast of two colours by WCAG 2, from 1 to 21."""
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_colours_can_be_told_from_their_background() -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    for scheme in (0, 1):
        colours = {name: pair[scheme] for name, pair in theme.COLOURS.items()}
        for name in ("ink", "soft", "link"):
            for ground in ("paper", "raised", "warn"):
                assert contrast(colours[name], colours[ground]) >= 4.5, (name, scheme)
        for i in range(theme.SERIES):
            assert contrast(colours[f"s{i}"], colours["paper"]) >= 3, (i, scheme)
        # Numbers in a matrix: the text's colour on pale steps, the ground's on strong ones.
        for i in range(theme.STEPS):
            written = colours["paper" if i > 4 else "ink"]
            assert contrast(colours[f"h{i}"], written) >= 4.5, (i, scheme)


def test_series_can_be_told_apart_without_colour() -> None:
    looks = [theme.stroke(i, "plain") | {"color": ""} for i in range(32)]
    looks += [theme.stroke(0, kind) | {"color": ""} for kind in ("strong", "dotted", "faint")]
    assert all(a != b for i, a in enumerate(looks) for b in looks[:i])
    grays = sorted(luminance(theme.LIGHT[f"h{i}"]) for i in range(theme.STEPS))
    assert min(b - a for a, b in pairwise(grays)) > 0.02


def test_limits_of_an_axis() -> None:
    assert spread([*range(100), 10_000])[1] < 200
    assert spread([]) == (0.0, 1.0) and spread([3.0]) == pytest.approx((2.82, 3.18))


def test_panels_of_one_quantity_share_their_scale() -> None:
    def drawn(name: str, top: float) -> Lines:
        return Lines(name, "round", name[0], (Line("x", (0.0, 1.0), (0.0, top)),))

    panels = [(drawn(f"a{top}", top), drawn(f"b{top}", 1)) for top in (2, 9)]
    scaled = on_one_scale([Figure("k", "t", "", pair) for pair in panels])
    limits = [[panel.extent for panel in f.panels if isinstance(panel, Lines)] for f in scaled]
    assert limits == [[spread([0, 9]), spread([0, 1])]] * 2


PANELS: tuple[Panel, ...] = (
    Lines("a < b & c", "round", "loss", (
        Line("x<y", (0.0,), (1.25,)), Line("y", (0.0, 2.0), (1.0, 0.0)),
    )),
    Lines("log", "$lam$", "accuracy", (
        Line("p", (0.01, 0.1), (0.5, 9.0), (0.4, 0.5), (0.6, 0.7), colour=9, dots=True),
    ), True, (0.01,), (0.0, 1.0), True),
    Dots("b", "rank", (Row("x" * 60, 1.0, text="1"), Row("y", 2.0, 1.5, 2.5, "2", INK)), ((0, 1),)),
    Matrix("e", ("no", "yes"), ((9, 1), (0, 0))),
    Matrix("f", tuple(map(str, range(40))), tuple(
        tuple(int(i == j) for j in range(40)) for i in range(40)
    )),
)  # fmt: skip


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_every_kind_of_panel_is_drawn_within_its_frame(panel: Panel) -> None:
    svg = plot.panel_svg(panel, "one")
    root = ElementTree.fromstring(svg)
    assert root.get("aria-label") == panel.words() and len(panel.words()) > 10
    assert "#" not in re.sub(r'href="#|url\(#', "", svg)  # every colour follows the theme
    _, _, width, height = (float(v) for v in str(root.get("viewBox")).split())
    places = re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", re.sub(r"<defs>.*?</defs>", "", svg))
    assert all(-1 <= float(x) <= width and -1 <= float(y) <= height for x, y in places)
    text = "".join(root.itertext())
    assert panel.title in text
    assert svg == plot.panel_svg(panel, "one")
    ids = [set(re.findall(r' id="(.*?)"', plot.panel_svg(panel, key))) for key in ("one", "two")]
    assert not ids[0] & ids[1]


def test_what_is_drawn_is_what_is_said() -> None:
    """Places on the page follow from the numbers, and a matrix says the percent of each row."""
    line = Line("x", (0.0, 1.0, 4.0), (0.0, 0.5, 1.0))
    svg = plot.panel_svg(Lines("t", "round", "loss", (line,), limits=(0.0, 1.0)), "k")
    assert "M40 156L103 90L292 24" in svg  # 252 x 132 pixels from (40, 24) on
    assert "<title>x</title>" in svg
    svg = plot.panel_svg(Matrix("m", ("no", "yes"), ((3, 1), (1, 1))), "k")
    assert re.findall(r">(\d+)</text>", svg) == ["75", "25", "50", "50"]
    svg = plot.panel_svg(Dots("t", "x", (Row("fedavg", 0.5, text="50.05 ± 0.25"),)), "k")
    assert "fedavg\N{EN SPACE}50.05 ± 0.25" in svg
