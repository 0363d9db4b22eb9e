"""What a study records and keeps beyond metrics, against recomputation from what was saved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from unseen.errors import UnseenError
from unseen.studies.execution import Study
from unseen.studies.execution.prepare import prepare
from unseen.studies.execution.setting import read
from unseen.studies.results import records
from unseen.studies.results.records import Job
from unseen.studies.settings.holdout import Task

DATA = "rotated-digits"
BASE: dict[str, Any] = {
    "dataset": DATA,
    "model": "mlp(widths=[6])",
    "holdout": {"source": ["0", "30"], "target": ["60"], "name": "60"},
    "seeds": 1,
    "rounds": 2,
    "training": {"batch_size": 64, "optimiser": "sgd(lr=0.1)"},
}


def lines(out: Path, method: str, name: str) -> list[dict[str, Any]]:
    path = Job(method, "60", 0).folder(out) / name
    return [json.loads(line) for line in path.read_text().splitlines()]


def flat(tensors: Mapping[str, torch.Tensor], prefix: str = "") -> torch.Tensor:
    own = [t.double().flatten() for n, t in sorted(tensors.items()) if n.startswith(prefix)]
    return torch.cat(own)


def test_inner_products_are_those_of_the_local_models(tmp_path: Path) -> None:
    """One round: updates are the saved local models less the first weights, FedAvg's step is the
    final model less them; the first weights are those of a study that moves nothing."""
    common = {**BASE, "rounds": 1, "record": ["gram"], "save": ["final", "locals"]}
    Study(**common).run(tmp_path / "a")
    still = {**BASE["training"], "optimiser": "sgd(lr=1e-30)"}
    Study(**{**common, "training": still}).run(tmp_path / "b")
    folder = Job("fedavg", "60", 0).folder(tmp_path / "a")
    begun = flat(load_file(Job("fedavg", "60", 0).folder(tmp_path / "b") / "final.safetensors"))
    local = load_file(folder / "locals.safetensors")
    updates = torch.stack([flat(local, f"{client}/") - begun for client in ("0", "30")])
    step = flat(load_file(folder / "final.safetensors")) - begun
    (record,) = lines(tmp_path / "a", "fedavg", "rounds.jsonl")
    assert record["clients"] == ["0", "30"]
    found = record["gram"]["model"]
    close = {"rel": 1e-4, "abs": 1e-7}
    assert found["inner"] == [pytest.approx(row, **close) for row in (updates @ updates.T).tolist()]
    assert found["update"] == pytest.approx((updates @ step).tolist(), **close)
    assert found["norm"] == pytest.approx(float(step @ step), **close)


def test_drift_is_what_the_inner_products_say(tmp_path: Path) -> None:
    """Cosines with the step and lengths, by the inner products of the same rounds."""
    Study(**BASE, methods=["fedavg(weights='examples')"], record=["gram", "drift"]).run(tmp_path)
    for record in lines(tmp_path, "fedavg(weights='examples')", "rounds.jsonl"):
        gram, found = record["gram"]["model"], record["drift"]["model"]
        inner, step = gram["inner"], gram["norm"] ** 0.5
        lengths = [inner[i][i] ** 0.5 for i in range(2)]
        assert found["length"] == pytest.approx(lengths, rel=1e-4)
        assert found["step"] == pytest.approx(step, rel=1e-4)
        cosines = [u / (a * step) for u, a in zip(gram["update"], lengths, strict=True)]
        assert found["cosine"] == pytest.approx(cosines, rel=1e-4)
        assert found["conflict"] == float(inner[0][1] < 0)
        p = record["weights"]["model"]
        assert found["effective"] == pytest.approx(1 / (p[0] ** 2 + p[1] ** 2))


def test_every_local_model_is_evaluated_on_every_domain(tmp_path: Path) -> None:
    """The last round's cross evaluation, done once more by hand with the saved local models."""
    chosen = Study(**BASE, cross_evaluation=True, save=["locals"])
    chosen.run(tmp_path)
    found = lines(tmp_path, "fedavg", records.CROSS)
    seen = {(r["round"], r["client"], r["domain"], r["role"]) for r in found}
    roles = {"0": "source", "30": "source", "60": "target"}
    assert seen == {
        (r, c, d, role) for r in (0, 1) for c in ("0", "30") for d, role in roles.items()
    }
    prepared = prepare(read(DATA, None), Task("60", ("0", "30"), ("60",)), chosen, 0)
    local = load_file(Job("fedavg", "60", 0).folder(tmp_path) / "locals.safetensors")
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 6), torch.nn.ReLU())
    net.append(torch.nn.Linear(6, 10))
    for client in ("0", "30"):
        own = [t for n, t in local.items() if n.startswith(f"{client}/")]
        shapes = {tuple(t.shape): t for t in own}
        net.load_state_dict({n: shapes[tuple(p.shape)] for n, p in net.state_dict().items()})
        for domain in roles:
            split = prepared.everyone[domain].split("validation")
            x, y = split.batch(slice(None))
            right = (net(x).argmax(1) == y).double().mean()
            (record,) = [
                r for r in found if (r["round"], r["client"], r["domain"]) == (1, client, domain)
            ]
            assert record["accuracy"] == pytest.approx(float(right), abs=1e-9)


def test_what_is_recorded_changes_nothing_that_is_computed(tmp_path: Path) -> None:
    plain, watched = tmp_path / "plain", tmp_path / "watched"
    Study(**BASE).run(plain)
    more: dict[str, Any] = {"save": ["final", "locals"], "cross_evaluation": True}
    Study(**BASE, record=["gram", "drift"], **more).run(watched)
    for name in ("source.jsonl", "target.jsonl"):
        assert lines(plain, "fedavg", name) == lines(watched, "fedavg", name)


def test_gaps_are_those_that_ga_measures(tmp_path: Path) -> None:
    """With step = 0 GA only measures: the same gaps, the same model."""
    Study(**BASE, methods=["fedavg"], record=["gaps"]).run(tmp_path / "probe")
    Study(**BASE, methods=["fedavg+ga(step=0.0)"]).run(tmp_path / "ga")
    probe = lines(tmp_path / "probe", "fedavg", "rounds.jsonl")
    ga = lines(tmp_path / "ga", "fedavg+ga(step=0.0)", "rounds.jsonl")
    assert [r["scalars"]["gap"] for r in probe] == [r["scalars"]["gap"] for r in ga]
    assert probe[1]["scalars"]["gap"] != [0.0, 0.0]
    Study(**BASE, methods=["fedavg+ga(step=0.0)"], record=["gaps"]).run(tmp_path / "both")
    assert lines(tmp_path / "both", "fedavg+ga(step=0.0)", "rounds.jsonl") == ga


def test_bytes_are_the_models_size_times_the_clients(tmp_path: Path) -> None:
    """64·6 + 6 + 6·10 + 10 numbers of four bytes, two clients; SCAFFOLD also moves its control."""
    Study(**BASE, methods=["fedavg", "scaffold"]).run(tmp_path)
    size = 4 * (64 * 6 + 6 + 6 * 10 + 10)
    assert lines(tmp_path, "fedavg", "rounds.jsonl")[0]["bytes"] == {
        "down": 2 * size,
        "up": 2 * size,
    }
    assert lines(tmp_path, "scaffold", "rounds.jsonl")[0]["bytes"] == {
        "down": 4 * size,
        "up": 4 * size,
    }


@pytest.mark.parametrize(
    "asked", [{"save": ["locals"]}, {"cross_evaluation": True}, {"record": ["gaps"]}]
)
def test_a_method_without_local_models_is_refused(asked: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UnseenError, match="fedsgd sends gradients"):
        Study(**BASE, methods=["fedsgd"], **asked).run(tmp_path)


def test_folders_of_an_older_version_go_on(tmp_path: Path) -> None:
    """A study file without a setting that has come since is read with that setting's default."""
    Study(**BASE).run(tmp_path)
    path = tmp_path / "study.json"
    about = json.loads(path.read_text())
    for name in ("record", "save", "cross_evaluation"):
        del about["identity"]["settings"][name]
    path.write_text(json.dumps({"identity": about["identity"]}))
    Study(**BASE).run(tmp_path)
    with pytest.raises(UnseenError, match="holds another study: settings.save"):
        Study(**BASE, save=["final"]).run(tmp_path)
