"""An evaluation as one page that opens from disk: tables, curves and confusion matrices."""

from importlib import resources

from unseen.core.templates import render
from unseen.serving.directory import Trained
from unseen.serving.evaluate import Evaluation
from unseen.serving.evaluation.answer_curves import figures
from unseen.studies.report import plot, theme
from unseen.version import __version__


def page(trained: Trained, evaluation: Evaluation) -> str:
    """Return the page as HTML; it needs no other file."""
    curves = evaluation.answers and not trained.masks
    all_figures = figures(evaluation.answers, evaluation.policy) if curves else []
    drawings = [
        (one, [plot.panel_svg(panel, f"{one.key}/{i}") for i, panel in enumerate(one.panels)])
        for one in all_figures
    ]
    spec = trained.spec
    kind = spec["fits"].capitalize() if "fits" in spec else spec["model"]
    about = f"{kind}, trained by {spec['method']} at {', '.join(spec['sites']['sources'])}"
    return render(
        "unseen.serving",
        "evaluation.html.jinja",
        title=spec["name"],
        about=f"{about}; fingerprint {spec['fingerprint']}",
        grid=evaluation.grid,
        notes=evaluation.notes,
        figures=drawings,
        tables=evaluation.tables,
        plot=plot,
        theme=theme,
        version=__version__,
        style=(resources.files("unseen.studies.report") / "style.css").read_text("utf-8"),
    )
