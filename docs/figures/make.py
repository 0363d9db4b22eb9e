"""Draw the README's figures from the records in docs/results, by the code of `unseen report`.

python docs/figures/make.py      writes docs/figures/*.svg, and the same as PNG with --png
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path

from unseen.report import curves, draw, outcome
from unseen.report import rule_weights
from unseen.report.figures import Figure
from unseen.report.study_report import Part
from unseen.report.png import to_png
from unseen.report.read import Choice, read
from unseen.results.records import Job

HERE = Path(__file__).parent
STUDY = HERE.parent / "results" / "methods-digits" / "records.tar.xz"
#: A few of the study's methods, and targets: an outer angle, a middle one, the other outer one.
METHODS = (
    "deepall", "fedavg", "scaffold", "gperxan", "rsc", "upgrad", "ppdg", "csac", "fedavg+ga",
)  # fmt: skip
LINES = ("deepall", "fedavg", "scaffold", "ppdg", "fedavg+ga")
TARGETS = ("0", "45", "75")


def part(methods: tuple[str, ...]) -> Part:
    """The study with these methods alone."""
    with tempfile.TemporaryDirectory() as place:
        wanted = {Job(m, "", 0).folder(Path()).parts[1] for m in methods}
        with tarfile.open(STUDY) as archive:
            members = [
                m for m in archive
                if "records" not in Path(m.name).parts or wanted & set(Path(m.name).parts)
            ]  # fmt: skip
            archive.extractall(place, members, filter="data")
        (file,) = Path(place).rglob("study.json")
        (found,), _ = read([file.parent], Choice(reference="fedavg"))
        kept = tuple(m for m in methods if m in found.methods)
        return replace(found, methods=kept, left=())


def only(figure: Figure, titles: tuple[str, ...], title: str) -> Figure:
    """Some of a figure's panels."""
    panels = tuple(p for name in titles for p in figure.panels if p.title == name)
    return replace(figure, panels=panels, title=title)


def main() -> None:
    """Write the figures."""
    whole = part(METHODS)
    few = replace(whole, methods=tuple(m for m in whole.methods if m in LINES))
    (ga,) = rule_weights.of_method(whole, "fedavg+ga")
    figures = {
        "averages": only(
            outcome.averages(whole, whole.main),
            ("average", "0", "75"),
            "Accuracy in % at angles that no client had, five seeds",
        ),
        "curves": only(
            curves.compared(few, "accuracy"),
            TARGETS,
            "Accuracy at the unseen angle over rounds, mean of five seeds",
        ),
        "weights": only(ga, TARGETS, "Weights of the clients under GA, for three unseen angles"),
    }
    for name, figure in figures.items():
        sheet = draw.sheet(figure)
        svg = sheet.to_file(f"{figure.title}. {figure.caption}")
        (HERE / f"{name}.svg").write_text(svg, "utf-8")
        if "--png" in sys.argv:
            (HERE / f"{name}.png").write_bytes(to_png(sheet))


if __name__ == "__main__":
    main()
