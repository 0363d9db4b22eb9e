"""One weighting for all methods of a study, and what the table says of it and of solvers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from unseen import Study
from unseen.studies.settings.study import recorded

OPPOSED = '''
from dataclasses import dataclass, replace
from unseen.methods.combine import JacobianDescent
from unseen.core.exchange import Reply
from unseen.methods.base import cited, federated, with_exchange, trained


@dataclass(frozen=True)
class Opposed:
    """Two clients whose updates cancel exactly."""

    def __call__(self, model, inbox, client, memory, turn):
        model.vector.add_(0.25 if turn.index == 0 else -0.25)
        rows = {"model": model.vector, "buffers": model.buffers}
        return Reply(rows, {"loss": 1.0, "examples": 4.0}), memory


def bargain(training):
    method = federated("bargain", training, JacobianDescent("nash-mtl"), cited("navon2022nash"))
    return with_exchange(method, replace(trained(method), local=Opposed()))
'''


@pytest.fixture
def visits(tmp_path: Path) -> Path:
    """Three sites of very different size."""
    rng, lines = np.random.default_rng(0), ["site,a,b,y"]
    for site, n, shift in (("north", 120, 0.0), ("south", 24, 1.0), ("east", 30, -1.0)):
        for a, b in rng.normal(shift, 1, (n, 2)):
            lines.append(f"{site},{a:.4f},{b:.4f},{int(a + b > shift)}")
    path = tmp_path / "visits.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def study(path: Path, *methods: str, **settings: object) -> Study:
    return Study(
        dataset=f"table(path='{path}', domain='site', label='y')",
        model="logistic",
        training={"batch_size": 8, **settings.pop("training", {})},
        methods=methods,
        seeds=1,
        rounds=2,
        **settings,
    )


def test_sites_count_alike_in_every_method_by_default(visits: Path, tmp_path: Path) -> None:
    names = ("fedavg", "fedavg(weights='uniform')", "fedavg(weights='examples')", "fedprox(mu=0)")
    results = study(visits, *names).run(out=tmp_path / "out")
    figures = {
        name: [
            (r["domain"], r["loss"])
            for _, _, target in (job for job in results.jobs() if job[0].method == name)
            for r in target
        ]
        for name in names
    }
    assert figures["fedavg"] == figures["fedavg(weights='uniform')"] == figures["fedprox(mu=0)"]
    assert figures["fedavg"] != figures["fedavg(weights='examples')"]
    text = str(results.table())
    assert "aggregation weights: 1/K in every method's mean; as written in fedavg(weights=" in text


def test_a_study_may_leave_weights_to_the_methods_and_says_so(visits: Path) -> None:
    results = study(visits, "fedavg", "ppdg", training={"weights": "method"}).run()
    assert "aggregation weights: each method's own default" in str(results.table())
    examples = study(visits, "fedavg", training={"weights": "examples"}).run()
    assert "aggregation weights: n_i/n, by examples" in str(examples.table())


def test_records_of_before_kept_the_methods_own(visits: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    study(visits, "fedavg", training={"weights": "method"}).run(out=out)
    about = json.loads((out / "study.json").read_text())
    del about["identity"]["settings"]["training"]["weights"]
    (out / "study.json").write_text(json.dumps(about))
    assert recorded(about["identity"]["settings"])["training"]["weights"] == "method"
    study(visits, "fedavg", training={"weights": "method"}).run(out=out)
    with pytest.raises(Exception, match=r"training.weights was 'method' and is 'uniform'"):
        study(visits, "fedavg").run(out=out)


def test_a_table_counts_the_calls_in_which_a_solver_failed(
    visits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "opposed.py").write_text(OPPOSED)
    monkeypatch.syspath_prepend(str(tmp_path))
    results = study(visits, "opposed:bargain", "fedavg").run()
    sys.modules.pop("opposed", None)
    text = str(results.table())
    # Three targets, one seed, two rounds.
    assert "opposed:bargain: its solver failed 6 times, and the weights of the plain mean" in text
    assert "fedavg: its solver" not in text


def test_rows_with_weights_of_their_own_are_named(visits: Path) -> None:
    own = ("arfl", "krum", "fedavg+ga", "ppdg+ga", "fedavg(weights='examples')+ga", "arfl+tail")
    text = str(study(visits, "fedavg", "fedavg+tail", *own).run().table())
    assert f"1/K in every method's mean; {', '.join(own)}: by a rule of their own" in text
