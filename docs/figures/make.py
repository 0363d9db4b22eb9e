"""Draw the README's figures from the records of `unseen study methods/digits`.

python docs/figures/make.py results/methods/digits      writes docs/figures/*.svg, PNG with --png
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from unseen.studies.report import curves, plot
from unseen.studies.report.figures import Figure, on_one_scale
from unseen.studies.report.read import Choice, read
from unseen.studies.report.study_report import StudyReport

HERE = Path(__file__).parent
#: A few of the study's methods, and targets: an outer angle, a middle one, the other outer one.
METHODS = (
    "deepall", "fedavg", "scaffold", "gperxan", "rsc", "upgrad", "ppdg", "csac", "fedavg+ga",
)  # fmt: skip
LINES = ("deepall", "fedavg", "scaffold", "ppdg", "fedavg+ga")
TARGETS = ("0", "45", "75")


def part(folder: Path, methods: tuple[str, ...]) -> StudyReport:
    """The study with these methods alone."""
    study = read(folder, Choice(reference="fedavg"))
    return replace(study, methods=tuple(m for m in methods if m in study.methods))


def only(figure: Figure, titles: tuple[str, ...], title: str) -> Figure:
    """Some of a figure's panels."""
    panels = tuple(p for name in titles for p in figure.panels if p.title == name)
    return on_one_scale([replace(figure, panels=panels, title=title)])[0]


def main() -> None:
    """Write the figures."""
    whole = part(Path(sys.argv[1]), METHODS)
    few = replace(whole, methods=tuple(m for m in whole.methods if m in LINES))
    figures = {
        "curves": only(
            curves.compared(few, "accuracy"),
            TARGETS,
            "Accuracy at the unseen angle over rounds, mean of five seeds",
        ),
    }
    (ga,) = curves.weights_of(whole, "fedavg+ga")
    title = "Weights of the clients under GA, for three unseen angles"
    figures["weights"] = only(ga, TARGETS, title)
    for name, figure in figures.items():
        svg, png = plot.files(figure)
        (HERE / f"{name}.svg").write_bytes(svg)
        if "--png" in sys.argv:
            (HERE / f"{name}.png").write_bytes(png)


if __name__ == "__main__":
    main()
