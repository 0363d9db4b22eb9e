"""Studies of masks: what runs, what it records, and what is refused with which reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from unseen.core.losses import CrossEntropyDice
from unseen.core.metrics.evaluation import FOR_MASKS, METRICS
from unseen.core.record_lines import read_lines
from unseen.core.turn import keyed
from unseen.data import DataSet
from unseen.data.networks import build
from unseen.data.networks.mixture import Mixture
from unseen.errors import UnseenError
from unseen.methods.compose import method as compose
from unseen.studies.execution import Study
from unseen.studies.execution.plan import prepare_study
from unseen.studies.execution.prepare import held_back
from unseen.studies.results.records import Job
from unseen.studies.settings.training import Recipe

SMALL: dict[str, Any] = {
    "dataset": "ellipses(size=16, count=12)", "model": "unet(widths=[4, 8])", "seeds": 1,
    "rounds": 2, "targets": ["plain"], "training": {"batch_size": 4, "optimiser": "adam(lr=0.01)"},
}  # fmt: skip


def small(**changes: Any) -> Study:
    return Study(**{**SMALL, **changes})


# --- a study from end to end ------------------------------------------------------------------


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("masks") / "out"
    methods = ["fedavg", "feddg(L=0.1)", "harmofl", "fedavg+ga"]
    small(methods=methods, save=["final"]).run(folder)
    return folder


def test_a_study_records_what_masks_have(out: Path) -> None:
    lines = read_lines(Job("fedavg", "plain", 0).folder(out) / "target.jsonl")
    assert len(lines) == 2
    assert set(FOR_MASKS) <= set(lines[-1])
    assert lines[-1]["examples"] == 12
    assert 0 <= lines[-1]["iou"] <= lines[-1]["dice"] <= 1
    assert 0 <= lines[-1]["hd95"] <= 16 * 2**0.5
    assert "dice" in (out / "table.md").read_text()


def test_recorded_figures_are_those_of_the_model_that_was_saved(out: Path) -> None:
    from safetensors.torch import load_file

    from unseen.data import load

    folder = Job("fedavg", "plain", 0).folder(out)
    network = build("unet(widths=[4, 8])", (3, 16, 16), 3, keyed("any"))
    network.load_state_dict(load_file(folder / "final.safetensors"))
    network.eval()
    domain = load("ellipses(size=16, count=12)")["plain"]
    with torch.no_grad():
        outputs = network(domain.x.float() / 255)
    last = read_lines(folder / "target.jsonl")[-1]
    for name in FOR_MASKS:
        assert last[name] == pytest.approx(METRICS[name](outputs, domain.y), rel=1e-4, abs=1e-5)


def test_training_on_masks_learns_them(tmp_path: Path) -> None:
    study = small(
        dataset="ellipses(size=16, count=24)", model="unet(widths=[8, 16])", rounds=12,
        targets=["amber"], metrics=["loss", "dice"], evaluate_every=12,
    )  # fmt: skip
    study.run(tmp_path / "out")
    sources = read_lines(Job("fedavg", "amber", 0).folder(tmp_path / "out") / "source.jsonl")
    last = [line["dice"] for line in sources if line["round"] == 11]
    assert sum(last) / len(last) > 0.5


# --- what does not go with masks --------------------------------------------------------------

ONE_LABEL = ("fishr", "coral", "irm", "copa", "fediir", "gperxan", "moon", "glm", "boost",
             "fedilc-inter", "fedavg+anchor", "fedavg+shift", "fedavg+intercepts", "portfolio",
             "stack(members=['fedavg', 'fedprox'])")  # fmt: skip
ONE_CLASS = ("csac", "fedsr", "fedcsa", "fedccrl", "fedavg+rsc", "fedavg+sd", "randconv")


def test_methods_that_read_one_label_per_example_are_refused(tmp_path: Path) -> None:
    methods = (*ONE_LABEL, *ONE_CLASS, "fedavg", "feddg", "fedavg+mixup", "fedavg+ensemble")
    planned = prepare_study(small(methods=methods), tmp_path)
    reasons = {compose(name).name: "needs one label per example" for name in ONE_LABEL}
    reasons |= {compose(name).name: "needs one class per example" for name in ONE_CLASS}
    assert {k: v.partition(" and ")[0] for k, v in planned.not_applicable.items()} == reasons


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"training": {"batch_size": 4, "augment": "flip"}}, "flip moves pixels of images alone"),
        ({"training": {"batch_size": 4, "balanced": True}}, "these labels are masks"),
        ({"training": {"batch_size": 4, "smoothing": 0.1}}, "these labels are masks"),
        ({"partition": "dirichlet(per=2)"}, "dirichlet deals examples by their one class"),
        ({"model": "bn-cnn"}, r"masks of 3 classes: expected shape \[2, 3, 16, 16\].*Take unet"),
        ({"model": "unet(widths=[4, 8, 16, 16, 16, 16])"}, "at least 32 by 32"),
        ({"dataset": "ellipses(size=18)", "model": "unet"}, "sides are multiples of 4"),
        ({"metrics": ["auroc"]}, "'auroc' is not for labels that are masks"),
        ({"privacy": {"examples": "dp(clip=1.0, noise=1.0, delta=1e-5)"}}, "is not for masks"),
    ],
)
def test_settings_without_a_meaning_are_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(UnseenError, match=words):
        prepare_study(small(**changes), tmp_path)


def test_colours_may_be_changed_and_rows_dealt_out(tmp_path: Path) -> None:
    training = {"batch_size": 4, "augment": "colour-jitter(brightness=0.2)"}
    prepare_study(small(training=training, partition="quantity(per=2, alpha=5)", validation=0.3,
                        model="unet(widths=[4, 8], norm='none')"), tmp_path)  # fmt: skip


def test_a_site_of_background_is_named(tmp_path: Path) -> None:
    planned = prepare_study(small(dataset="study.test_segmentation:blank"), tmp_path)
    assert any(line.endswith("towards finding nothing: 'faint'") for line in planned.warnings)


def blank(data_dir: Path | None) -> DataSet:
    from dataclasses import replace

    from unseen.data import load

    data = load("ellipses(size=16, count=12)")
    empty = replace(data["faint"], y=torch.zeros_like(data["faint"].y))
    domains = tuple(empty if d.name == "faint" else d for d in data.domains)
    return replace(data, domains=domains)


# --- parts ------------------------------------------------------------------------------------


def test_the_kind_of_labels_decides_the_loss() -> None:
    assert isinstance(Recipe().build("masks").loss, CrossEntropyDice)
    assert not isinstance(Recipe().build("classes").loss, CrossEntropyDice)


def test_units_of_masks_are_held_back_whole() -> None:
    y, units = torch.zeros(6, 3, 3, dtype=torch.int64), torch.tensor([1, 1, 2, 2, 3, 3])
    rows = held_back(y, units, 0.34, keyed("any"))
    assert rows.sum() == 2
    assert len(units[rows].unique()) == 1


def test_mixtures_of_networks_average_probabilities_of_pixels() -> None:
    nets = [build("unet(widths=[4])", (1, 4, 4), 3, keyed(f"{k}")).eval() for k in range(2)]
    x = torch.rand(2, 1, 4, 4, generator=keyed("x"))
    found = Mixture(nets, numbers=False).eval()(x).exp()
    expected = sum(net(x).softmax(1) for net in nets) / 2
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
def test_the_unet_sees_all_of_an_image_at_every_pixel(norm: str) -> None:
    """Two poolings and nine 3×3 convolutions reach farther than 16 pixels; skips keep places."""
    net = build(f"unet(widths=[8, 8, 8], norm='{norm}')", (1, 16, 16), 2, keyed("a")).eval()
    x = torch.rand(1, 1, 16, 16, generator=keyed("x"), requires_grad=True)
    outputs = net(x)
    assert outputs.shape == (1, 2, 16, 16)
    (slope,) = torch.autograd.grad(outputs[0, 1, 8, 8], x)
    assert float(slope[0, 0, 8, 8].abs()) > 0
    assert int((slope != 0).sum()) > 150


def test_the_unet_has_as_many_parameters_as_counted_by_hand() -> None:
    """conv: 9ab, + bias b or BatchNorm 2b; up: 4ab + b; head: ab + b."""

    def block(a: int, b: int) -> int:
        return 9 * a * b + 2 * b + 9 * b * b + 2 * b

    up = (4 * 32 * 16 + 16) + block(32, 16) + (4 * 16 * 8 + 8) + block(16, 8)
    count = block(1, 8) + block(8, 16) + block(16, 32) + up + 8 * 2 + 2
    net = build("unet", (1, 32, 32), 2, keyed("a"))
    assert sum(p.numel() for p in net.parameters()) == count == 29_490
