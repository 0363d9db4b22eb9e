"""Augmentation inside a study: training steps see changed images, evaluations do not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.sites import federation
from torch import Tensor, nn

from unseen.core.losses import CrossEntropy
from unseen.core.optimiser import SGD
from unseen.core.turn import Turn
from unseen.core.vector import Model
from unseen.errors import UnseenError
from unseen.methods.gradient import Backprop
from unseen.methods.local.train import Train
from unseen.methods.recipe import Training
from unseen.studies.execution import Study

DIGITS = {
    "dataset": "rotated-digits",
    "holdout": {"source": ["0", "30"], "target": ["60"]},
    "model": "mlp(widths=[4])",
    "seeds": 1,
    "rounds": 1,
}


class Flipped:
    """Turns every input around and remembers the draws it was given."""

    def __init__(self) -> None:
        self.drawn: list[float] = []

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        self.drawn.append(float(torch.rand((), generator=generator)))
        return x.flip(1)


def trained(augment: Flipped | None, turned: bool = False, round: int = 0) -> Tensor:
    """The weights after one epoch, on the images or on the same turned around."""
    client = federation(1, n=40)["site-a"]
    split = client.split("train")
    if turned:
        object.__setattr__(split, "x", split.x[:].flip(1))
    torch.manual_seed(0)
    net = nn.Linear(6, 3)
    model = Model(net)
    recipe = Training(SGD(lr=0.1), batch_size=8, augment=augment)
    local = Train(Backprop(CrossEntropy()), recipe)
    inbox = {"model": model.vector.clone(), "buffers": model.buffers.clone()}
    local(model, inbox, client, {}, Turn(0, round, 2, "train", "site-a"))
    return model.vector.clone()


def test_training_on_changed_images_is_training_on_images_changed_before() -> None:
    assert torch.equal(trained(Flipped()), trained(None, turned=True))
    assert not torch.equal(trained(Flipped()), trained(None))


def test_every_batch_and_every_round_has_its_own_draws() -> None:
    first, again, later = Flipped(), Flipped(), Flipped()
    trained(first), trained(again), trained(later, round=1)
    assert first.drawn == again.drawn
    assert len(set(first.drawn)) == len(first.drawn) > 1
    assert not set(first.drawn) & set(later.drawn)


def test_a_study_says_how_it_augmented(tmp_path: Path) -> None:
    plain = Study(**DIGITS).run(tmp_path / "a")
    changed = Study(**DIGITS, training={"augment": "flip(p=1.0)"}).run(tmp_path / "b")
    assert "augmentation flip(p=1.0)" in str(changed.table())
    assert "augmentation" not in str(plain.table())
    assert plain.table().cells != changed.table().cells


def test_augmentation_of_a_table_or_of_nothing_known_is_refused(tmp_path: Path) -> None:
    heart = {"dataset": "table(path='t.csv', domain='site', label='y')"}
    path = tmp_path / "t.csv"
    rows = [f"{site},{i},{i % 2}" for site in "abc" for i in range(20)]
    path.write_text("\n".join(["site,u,y", *rows]))
    heart["dataset"] = f"table(path={str(path)!r}, domain='site', label='y')"
    with pytest.raises(UnseenError, match="augment changes images"):
        Study(**heart, model="logistic", training={"augment": "flip"}).run(tmp_path / "out")
    with pytest.raises(UnseenError, match="did you mean 'flip'"):
        Study(**DIGITS, training={"augment": "flop"}).run(tmp_path / "out")
