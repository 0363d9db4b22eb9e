"""The forest plot of a comparison by site."""

from __future__ import annotations

import pytest

from unseen_papers.compare.by_site import Effect
from unseen_papers.compare.forest_plot import forest


def effect(sites: int) -> Effect:
    differences = {f"site {i}": 0.01 * i for i in range(sites)}
    return Effect("glm", "fedavg", differences, 0.02, (0.01, 0.03), 0.1, 0.1, 0.2, None, None)


def test_the_last_bits_of_the_layout_do_not_reach_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layout's solver may differ in them from call to call."""
    engine = pytest.importorskip("matplotlib.layout_engine").ConstrainedLayoutEngine
    effects = [(f"set {n}", "accuracy", effect(n)) for n in (4, 6, 5, 8)]
    plain, execute = forest(effects), engine.execute

    def noisy(self, figure):
        execute(self, figure)
        for axes in figure.axes:
            box = axes.get_position()
            axes._set_position([box.x0 + 1e-9, box.y0 - 1e-9, box.width, box.height + 1e-9])

    monkeypatch.setattr(engine, "execute", noisy)
    assert forest(effects) == plain
